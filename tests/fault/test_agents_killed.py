"""Agents are killed in each state of a run attempt, and workers under a running kernel.

Promised: a run whose agent died before its outcome was on disk is LOST and tried again (the job passes in the end); an
outcome that was on disk is told by the agent's next process, and the kernel is not run again. Nothing of a dead agent
goes on running on its device. A worker that is killed ends the one call that it served.
Seen here: attempts and their states as the tracker tells them, and how often each kernel began and ended, as the
kernels themselves wrote down under a lock that dies with its process.
"""

from __future__ import annotations

import itertools
import os
import signal

import numpy as np
import pytest
from farm_agents.crash_points import POINTS

from farm.client.job import Outcome, Verdict
from farm.errors import InfrastructureError, KernelCrashed
from fault.farms import LIMIT_S, lives, until

NUMBERS = itertools.count(1)
RERUN = {"run.waiting": 1, "run.fetching": 1, "run.loading": 1, "run.running": 1, "run.ending": 2}
"""How often a kernel begins if its agent is killed at a point where its outcome is not on disk yet."""
TOLD = ("run.storing", "run.finished")


@pytest.fixture(scope="module")
def running(shared_farm):
    shared_farm.start_tracker()
    return shared_farm


@pytest.fixture(scope="module")
def client(running):
    return running.client()


@pytest.fixture(autouse=True)
def _end_agents(running):
    yield
    running.end_agents()


def test_every_crash_point_of_agents_is_walked():
    assert {*RERUN, *TOLD, "run.killing"} == set(POINTS.names)


def test_agent_killed_at_each_crash_point_in_turn_loses_nothing(running, client):
    """Each process brings to an end what the one before left, and dies at the next point of the next job.

    On the way to its end a job passes each later point once more, so that it is the second time that counts; what is in
    the outbox is told without passing any.
    """
    jobs = {}
    for point in [*RERUN, *TOLD]:
        time = 1 if point in ("run.waiting", "run.finished") else 2
        doomed = running.start_agent("a1", "cpu", crash=f"{point}:{time}")
        for earlier in jobs.values():
            earlier.wait(LIMIT_S)
        number = next(NUMBERS)
        jobs[point, number] = running.submit(client, number, wait_for_device=True)
        assert doomed.wait(LIMIT_S) == -signal.SIGKILL, f"{point}\n{running.story()}"
    running.start_agent("a1", "cpu")
    running.check(client, reruns=True)
    for (point, number), job in jobs.items():
        states = [it.state.value for it in job.status().attempts]
        assert states == (["done"] if point in TOLD else ["lost", "done"]), (point, running.story())
        assert running.runs(number) == ((RERUN.get(point, 1),) * 2), point
    until(lambda: running.device(client, "a1-cpu").use == "idle")


def test_agent_killed_while_it_kills_a_run_leaves_nothing_behind(running, client):
    doomed = running.start_agent("a1", "cpu", crash="run.killing")
    number = next(NUMBERS)
    values = np.array([number, 3000, 0], np.int32)
    job = client.submit(running.artifact, "witness", [values], wait_for_device=True)
    worker = running.until_runs(number)
    job.cancel("enough")
    assert doomed.wait(LIMIT_S) == -signal.SIGKILL, running.story()
    until(lambda: not lives(worker), "the worker of a dead agent to end")
    running.start_agent("a1", "cpu")
    running.until_good(client, "a1-cpu")
    assert job.wait(LIMIT_S).outcome is Outcome.CANCELLED


def test_agent_killed_under_a_running_kernel_leaves_no_kernel_and_runs_it_again(running, client):
    first = running.start_agent("a1", "cpu")
    running.until_good(client, "a1-cpu")
    number = next(NUMBERS)
    job = running.submit(client, number, ticks=60)
    worker = running.until_runs(number)
    first.kill()
    assert not lives(worker)
    running.start_agent("a1", "cpu")
    running.check(client, reruns=True)
    assert [it.state.value for it in job.status().attempts] == ["lost", "done"]
    assert running.runs(number) == (2, 1)


def test_worker_killed_under_a_job_fails_that_job_alone(running, client):
    """Nobody can tell who killed it; it is taken as the kernel's own doing, which is never tried again."""
    running.start_agent("a1", "cpu")
    running.until_good(client, "a1-cpu")
    number, after = next(NUMBERS), next(NUMBERS)
    values = np.array([number, 3000, 0], np.int32)
    job = client.submit(running.artifact, "witness", [values])
    os.kill(running.until_runs(number), signal.SIGKILL)
    info = job.wait(LIMIT_S)
    assert (info.outcome, info.verdict) == (Outcome.COMPLETED, Verdict.FAIL)
    assert type(info.failure) is KernelCrashed
    assert info.failure.details["signal"] == "SIGKILL"
    assert len(info.attempts) == 1
    running.submit(client, after)
    running.check(client, reruns=True)


def test_worker_killed_in_a_session_is_replaced_with_all_that_was_loaded(running, client):
    running.start_agent("a1", "cpu")
    running.until_good(client, "a1-cpu")
    number, after = next(NUMBERS), next(NUMBERS)
    with client.acquire("kind=cpu") as session:
        witness = session.load(running.artifact)["witness"]
        assert witness(np.array([number, 0, 0], np.int32)).tolist() == [number + 1]
        worker = running.until_runs(number)
        os.kill(worker, signal.SIGKILL)
        until(lambda: not lives(worker))
        # A death that is noticed only by the call that needs the worker is the farm's fault.
        told = ""
        try:
            witness(np.array([after, 0, 0], np.int32))
        except InfrastructureError as error:
            told = error.message
        assert told == "" or "call again" in told
        assert witness(np.array([after, 0, 0], np.int32)).tolist() == [after + 1]
        assert running.until_runs(after) != worker
