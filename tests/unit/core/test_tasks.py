"""Ending tasks that lose a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from farm.core.tasks import end_tasks, finish


def test_end_tasks_ends_a_task_that_loses_its_first_cancellation():
    async def main():
        lost = []

        async def stubborn():
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    if lost:
                        raise
                    lost.append(1)

        async def done():
            pass

        tasks = [asyncio.create_task(stubborn()), asyncio.create_task(done())]
        await asyncio.sleep(0)
        await asyncio.wait_for(end_tasks(tasks), 60)
        assert [task.done() for task in tasks] == [True, True]
        assert lost == [1]

    asyncio.run(main())


def test_finish_does_the_work_through_any_number_of_cancellations():
    async def main():
        steps = []

        async def work():
            await asyncio.sleep(0.05)
            steps.append("done")
            return 7

        task = asyncio.create_task(finish(work()))
        for _ in range(3):
            await asyncio.sleep(0.005)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert steps == ["done"]
        assert await finish(work()) == 7

    asyncio.run(main())
