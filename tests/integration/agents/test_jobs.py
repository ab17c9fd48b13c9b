"""Durable jobs on a whole farm of plain processes: submitted, run, told, whoever restarts meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import farm
from farm.client.job import Outcome, Verdict
from farm.errors import Cancelled, KernelCrashed, TimeLimit, TrackerUnreachable
from farm.testing import EmbeddedFarm
from farm.testing.agents import AgentPlan

LIMIT_S = 120.0
ONE = np.array([41], np.int32)


def until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def client():
    """A client of a farm with one CPU."""
    plan = AgentPlan("a1", (), ("cpu",))
    with (
        EmbeddedFarm("processes", plans=(plan,)) as running,
        farm.connect(running.address) as connected,
    ):
        yield connected


def test_job_gives_its_result(client, hostile):
    job = client.submit(hostile, "increment", [ONE], repeat=5)
    result = job.result(LIMIT_S)
    (output,) = result.outputs
    assert (output.tolist(), len(result.samples_ns)) == ([42], 5)
    info = job.status()
    assert (info.outcome, info.verdict) == (Outcome.COMPLETED, Verdict.PASS)
    assert [attempt.state.value for attempt in info.attempts] == ["done"]


def test_job_that_prints_has_its_log(client, hostile):
    job = client.submit(hostile, "chatter", [ONE])
    assert b"".join(chunk.data for chunk in job.logs(timeout_s=LIMIT_S)) == b"noise\nnoise\n"
    assert job.result(LIMIT_S).outputs[0].tolist() == [42]


@pytest.mark.parametrize(("symbol", "error"), [("segfault", KernelCrashed), ("spin", TimeLimit)])
def test_job_whose_kernel_is_at_fault_fails_once_and_the_device_is_back(
    client, hostile, symbol, error
):
    job = client.submit(hostile, symbol, [ONE], limit_s=0.5)
    info = job.wait(LIMIT_S)
    assert (info.outcome, info.verdict) == (Outcome.COMPLETED, Verdict.FAIL)
    assert type(info.failure) is error
    assert len(info.attempts) == 1
    again = client.submit(hostile, "increment", [ONE])
    assert again.result(LIMIT_S).outputs[0].tolist() == [42]


def test_job_that_is_cancelled_ends_and_the_device_is_back(client, hostile):
    job = client.submit(hostile, "spin", [ONE])
    until(lambda: job.status().state.value == "running")
    job.cancel("enough")
    assert type(job.wait(LIMIT_S).failure) is Cancelled
    again = client.submit(hostile, "increment", [ONE])
    assert again.result(LIMIT_S).outputs[0].tolist() == [42]


def test_many_jobs_all_end_on_one_device(client, hostile):
    jobs = [client.submit(hostile, "increment", [np.array([n], np.int32)]) for n in range(20)]
    assert [job.result(LIMIT_S).outputs[0].tolist() for job in jobs] == [[n + 1] for n in range(20)]


@contextlib.contextmanager
def process(log, *command):
    with log.open("ab") as output:
        child = subprocess.Popen([sys.executable, *command], stdout=output, stderr=output)
    try:
        yield child
    finally:
        child.terminate()
        child.wait(LIMIT_S)


@pytest.fixture
def parts(tmp_path):
    """How to start a tracker and an agent of one farm: ``(address, tracker(), agent())``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    data, log = tmp_path / "data", tmp_path / "farm.log"
    tracker = ("-m", "farm_tracker", "--data-dir", str(data), "--listen", address, "--plaintext")
    agent = ("-m", "farm_agents", "--tracker", address, "--agent-id", "a1", "--device", "cpu")
    return (
        address,
        lambda: process(log, *tracker),
        lambda: process(log, *agent, "--work-dir", str(tmp_path / "a1")),
    )


def connected(address):
    """Connect as soon as the tracker answers."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return farm.connect(address)
        except TrackerUnreachable:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def wait_for_device(client):
    until(lambda: any(device.health == "good" for device in client.devices()))


def test_job_that_ends_while_the_tracker_is_dead_is_told_to_the_next_and_ran_once(
    parts, hostile, tree, tmp_path
):
    address, tracker, agent = parts
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(tracker())
        running = stack.enter_context(agent())
        with connected(address) as client:
            wait_for_device(client)
            job = client.submit(hostile, "announce", [ONE], limit_s=400.0)
            with contextlib.closing(job.logs(timeout_s=LIMIT_S)) as logs:
                assert next(logs).data == b"noise\n"  # the kernel has begun
            first.send_signal(signal.SIGKILL)
            first.wait()
            (worker,) = tree.workers(running.pid)
            os.kill(worker, signal.SIGSEGV)
            record = tmp_path / "a1" / "outbox" / f"{job.job_id}.1.run"
            until(lambda: b"SIGSEGV" in record.read_bytes())
            stack.enter_context(tracker())
            info = job.wait(LIMIT_S)
            assert type(info.failure) is KernelCrashed
            assert info.failure.details["signal"] == "SIGSEGV"
            assert len(info.attempts) == 1
            assert b"".join(chunk.data for chunk in job.logs(timeout_s=LIMIT_S)) == b"noise\n"
