from __future__ import annotations

import asyncio
import threading

import pytest
from farm_tracker.commits import Commits, durable_part
from farm_tracker.state.commands import Warn
from farm_tracker.state.model import Agent
from farm_tracker.state.state import Changes, State, Step
from farm_tracker.store import StoredChanges
from sqlalchemy.exc import OperationalError

from farm.core.ids import AgentId
from farm.errors import InfrastructureError


def agent(**fields) -> Agent:
    return Agent(AgentId("a"), "p1", "1", (), 1, "test", "here", **fields)


def stored(name: str) -> StoredChanges:
    return StoredChanges(Changes(agents={name: agent()}), {})


def warn(text: str) -> Step:
    return Step(Changes(), (Warn(text),))


def test_commits_carry_out_in_order_after_the_write_and_share_transactions():
    async def body():
        log, go = [], threading.Event()

        def write(it):
            assert go.wait(60)
            log.append(sorted(it.changes.agents))

        commits = Commits(write, lambda command: log.append(command.message))
        commits.add(None, warn("nothing to store"))
        first = commits.add(stored("a"), warn("1"))
        await asyncio.sleep(0.05)
        rest = [
            commits.add(stored("b"), warn("2")),
            commits.add(None, warn("3")),
            commits.add(stored("c"), warn("4")),
        ]
        assert log == ["nothing to store"]
        go.set()
        await asyncio.gather(first, *rest)
        assert log == ["nothing to store", ["a"], "1", ["b", "c"], "2", "3", "4"]
        await commits.close()

    asyncio.run(body())


def test_commits_after_a_failed_write_carry_nothing_out():
    async def body():
        log = []

        def write(it):
            raise OperationalError("insert", {}, Exception("disk full"))

        commits = Commits(write, lambda command: log.append(command))
        waits = [commits.add(stored("a"), warn("1")), commits.add(None, warn("2"))]
        for it in waits:
            with pytest.raises(InfrastructureError, match="disk full"):
                await it
        assert log == []
        assert isinstance(commits.failed.result(), InfrastructureError)
        with pytest.raises(InfrastructureError):
            commits.add(None, warn("3"))
        await commits.close()

    asyncio.run(body())


@pytest.mark.parametrize("broken", ["write", "command"])
def test_commits_after_a_defect_refuse_every_step_that_was_under_way(broken):
    async def body():
        log = []

        def write(it):
            if broken == "write":
                raise KeyError("no such column")

        def carry_out(command):
            if command.message == "2":
                raise RuntimeError("no such column")
            log.append(command.message)

        commits = Commits(write, carry_out)
        waits = [commits.add(stored("a"), warn("0"))]
        await asyncio.sleep(0)  # the first is being stored
        waits += [commits.add(stored("b"), warn(text)) for text in ("1", "2", "3")]
        async with asyncio.timeout(60):
            told = await asyncio.gather(*waits, return_exceptions=True)
        done = 0 if broken == "write" else 2
        assert told[:done] == [None] * done
        assert [type(it) for it in told[done:]] == [InfrastructureError] * (4 - done)
        assert log == ["0", "1"][:done]
        await commits.close()

    asyncio.run(body())


def test_commits_after_a_defect_in_a_step_that_stores_nothing_take_no_more():
    async def body():
        def carry_out(command):
            raise RuntimeError("no such command")

        commits = Commits(lambda it: None, carry_out)
        with pytest.raises(RuntimeError):
            commits.add(None, warn("1"))
        assert isinstance(commits.failed.result(), InfrastructureError)
        with pytest.raises(InfrastructureError, match="no such command"):
            commits.add(None, warn("2"))
        await commits.close()

    asyncio.run(body())


def test_commits_that_fail_while_they_write_carry_nothing_more_out():
    async def body():
        log, go = [], threading.Event()
        commits = Commits(lambda it: go.wait(60), log.append)
        wait = commits.add(stored("a"), warn("1"))
        await asyncio.sleep(0.05)
        commits.fail(RuntimeError("a defect elsewhere"))
        go.set()
        with pytest.raises(InfrastructureError, match="a defect elsewhere"):
            await wait
        await commits.close()
        assert log == []

    asyncio.run(body())


def test_commits_that_close_store_what_comes_meanwhile():
    async def body():
        written = []
        commits = Commits(lambda it: written.extend(it.changes.agents), lambda command: None)
        first = commits.add(stored("a"), warn("1"))
        second = []
        first.add_done_callback(lambda _: second.append(commits.add(stored("b"), warn("2"))))
        await commits.close()
        await asyncio.gather(first, *second)
        assert written == ["a", "b"]

    asyncio.run(body())


def test_durable_part_of_a_mere_heartbeat_is_nothing():
    state = State()
    connected = Changes(agents={"a": agent()})
    assert durable_part(state, connected) is not None
    state.apply(connected)
    assert durable_part(state, Changes(agents={"a": agent(last_report=9.0)})) is None
    changed = Changes(agents={"a": agent(former_instances=("p0",))})
    assert durable_part(state, changed) == StoredChanges(changed, {})
