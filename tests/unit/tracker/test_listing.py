"""A list of jobs lets others have their turn, however many jobs there are."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from farm_tracker.jobs import LOOKED_AT_ONCE, Jobs

COUNT = 10 * LOOKED_AT_ONCE


@pytest.fixture
def farm():
    """Jobs of two accounts, oldest first; every thousandth is bob's."""
    made = {
        f"j{number}": SimpleNamespace(
            job_id=f"j{number}",
            account="alice" if number % 1000 else "bob",
            is_open=number % 2 == 0,
            attempt_ids=(f"j{number}.1",),
        )
        for number in range(COUNT)
    }

    async def settled():
        pass

    state = SimpleNamespace(run_jobs=made, run_attempts={f"{it}.1": it for it in made})
    tracker = SimpleNamespace(state=state, settled=settled, epoch_s=0.0)
    return SimpleNamespace(state=state, jobs=Jobs(tracker, None, None), turns=0)


def listed(farm, meanwhile=lambda turn: None, **options):
    async def others():
        while True:
            farm.turns += 1
            meanwhile(farm.turns)
            await asyncio.sleep(0)

    async def body():
        beside = asyncio.ensure_future(others())
        found = await farm.jobs.listed(**options)
        beside.cancel()
        return [it.job.job_id for it in found]

    return asyncio.run(body())


def test_jobs_are_listed_newest_first_and_others_have_their_turn(farm):
    found = listed(farm, account="bob", include_ended=True, limit=1000)
    assert found == [f"j{number}" for number in range(COUNT - 1000, -1, -1000)]
    assert farm.turns >= COUNT // LOOKED_AT_ONCE


def test_list_ends_where_its_limit_is_reached(farm):
    found = listed(farm, account="", include_ended=False, limit=3)
    assert found == [f"j{COUNT - 2 - 2 * number}" for number in range(3)]


def test_list_leaves_out_what_is_forgotten_meanwhile(farm):
    def forget(turn):
        if turn == 2:
            for number in range(COUNT // 2):
                del farm.state.run_jobs[f"j{number}"], farm.state.run_attempts[f"j{number}.1"]

    found = listed(farm, forget, account="bob", include_ended=True, limit=1000)
    assert found == [f"j{number}" for number in range(COUNT - 1000, COUNT // 2 - 1, -1000)]
