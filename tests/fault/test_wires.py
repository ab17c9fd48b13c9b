"""Messages between agents and tracker that come twice, late, and after newer ones.

Promised: every message may come again: the first result that is committed stands, and what is asked for again runs
once. Nothing that comes late changes what was committed, or makes two runs overlap.
Seen here, through a proxy that carries the bytes of real trackers and agents (`wires`): with repeats, and with reports
of the past, each job has one attempt, whose kernel ran once. With what trackers wanted in the past as well, which one
stream of HTTP/2 cannot bring, runs may be taken for lost, and be made again or given up as the farm's failure; none is
ever blamed on its kernel, a result that counts is right, what was committed stays, and no kernel finds another one on
its device.
"""

from __future__ import annotations

import itertools
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from farm.client.job import Outcome, Verdict
from farm.rpc.credentials import path_of
from fault.farms import LIMIT_S, until
from fault.wires import Wire
from fault.witness import overlaps

NUMBERS = itertools.count(1)
JOBS = 12


@pytest.fixture(scope="module")
def running(shared_farm):
    shared_farm.start_tracker()
    return shared_farm


@pytest.fixture
def client(running):
    client = running.client()
    yield client
    running.end_agents()


@pytest.fixture
def make_wire(running, client):
    """Put a proxy before the tracker, with this user's credentials for its address."""
    made = []

    def make(**options):
        wire = Wire(running.address)
        for name, value in options.items():
            setattr(wire, name, value)
        made.append(wire)
        shutil.copy(path_of(running.address), path_of(wire.start()))
        return wire

    yield make
    for wire in made:
        path_of(wire.address).unlink()
        wire.close()


@pytest.mark.parametrize("ages", [(), ("up",)], ids=["twice", "reports of the past"])
def test_messages_that_come_again_run_everything_once(running, client, make_wire, ages):
    wire = make_wire(reorders=False, ages=ages)
    running.start_agent("a1", "cpu", tracker=wire.address)
    running.start_agent("a2", "cpu", tracker=wire.address)
    running.until_good(client, "a1-cpu", "a2-cpu")
    jobs = [running.submit(client, next(NUMBERS)) for _ in range(JOBS)]
    with client.acquire("kind=cpu", wait_s=LIMIT_S) as session:
        witness = session.load(running.artifact)["witness"]
        number = next(NUMBERS)
        assert witness(np.array([number, 1, 0], np.int32)).tolist() == [number + 1]
        assert running.runs(number) == (1, 1)
    running.check(client)
    assert all(len(job.status().attempts) == 1 for job in jobs)
    assert wire.counts["repeated"] > wire.counts["sent"] / 2
    assert (wire.counts["old"] > 0) == bool(ages)


def test_messages_of_the_past_change_nothing_that_was_committed_and_overlap_no_runs(
    running, client, make_wire
):
    wire = make_wire()
    running.start_agent("a1", "cpu", tracker=wire.address)
    running.start_agent("a2", "cpu", tracker=wire.address)
    until(lambda: len(client.devices()) == 2)
    numbers = [next(NUMBERS) for _ in range(JOBS)]
    with ThreadPoolExecutor(JOBS) as threads:
        jobs = list(threads.map(lambda number: running.submit(client, number), numbers))
        seen = list(threads.map(lambda job: job.wait(LIMIT_S), jobs))
    assert wire.counts["old"] > 0
    for number, job, info in zip(numbers, jobs, seen, strict=True):
        assert info.verdict in (Verdict.PASS, None), info
        if info.verdict is Verdict.PASS:
            assert job.result(LIMIT_S).outputs[0].tolist() == [number + 1]
            assert [it.state.value for it in info.attempts].count("done") == 1
            assert running.runs(number)[1] >= 1
        else:
            assert info.outcome in (Outcome.INFRA_FAILED, Outcome.POISONED), info
    for entries in running.entries().values():
        assert overlaps(entries) == []
    wire.reorders, wire.ages = False, ()
    running.jobs.clear()
    running.until_good(client, "a1-cpu", "a2-cpu")
    running.submit(client, next(NUMBERS))
    running.check(client)
    after = [job.status() for job in jobs]
    assert [(it.outcome, it.verdict) for it in after] == [(it.outcome, it.verdict) for it in seen]
