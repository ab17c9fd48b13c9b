"""Agents and clients that stand still for longer than they may, and go on afterwards.

Promised: an agent that is silent has lost what it held; its device is opened by one process at a time, whoever else is
started for it; what it brings afterwards is kept, marked SUPERSEDED or refused as FENCED, and never counted. A client
that is silent or dead loses its device when its lease ends, not later, and is told so.
Seen here: attempts and their states, who holds the device's lock, when the next client gets the device, and that no
kernel found another one on its device. `test_frozen_long` has the same at full length, under Ray.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from farm.client.job import AttemptState
from farm.errors import Fenced
from fault.farms import until

NUMBERS = itertools.count(1)
OFFLINE_S = 5.0

CLIENT = """
import sys
import numpy as np
import farm
from farm.artifact import Artifact
from farm.errors import FarmError

address, path, ttl_s, number, ticks = sys.argv[1:]
client = farm.connect(address)
session = client.acquire("kind=cpu", ttl_s=float(ttl_s))
witness = session.load(Artifact.load(path))["witness"]
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(witness(np.array([int(number), int(ticks), 0], np.int32)).tolist(), flush=True)
    except FarmError as error:
        print(error.code, flush=True)
"""


@pytest.fixture(scope="module")
def running(shared_farm):
    shared_farm.start_tracker(offline_s=OFFLINE_S)
    return shared_farm


@pytest.fixture(scope="module")
def client(running):
    return running.client()


def states(job):
    return [it.state for it in job.status().attempts]


@pytest.fixture
def _end_agents(running):
    yield
    running.end_agents()


@pytest.mark.usefixtures("_end_agents")
def test_agent_frozen_past_its_limit_brings_a_result_that_is_kept_and_not_counted(running, client):
    first = running.start_agent("a1", "cpu")
    running.until_good(client, "a1-cpu")
    number = next(NUMBERS)
    job = running.submit(client, number, ticks=20)
    running.until_runs(number)
    first.freeze()  # its worker goes on: the kernel ends while nobody listens
    until(lambda: states(job) == [AttemptState.LOST], "the silent agent's run to be given up")
    running.start_agent("a2", "cpu")
    until(lambda: states(job) == [AttemptState.LOST, AttemptState.DONE])
    first.thaw()
    late = [AttemptState.SUPERSEDED, AttemptState.DONE]
    until(lambda: states(job) == late, f"the late result\n{running.story()}")
    assert any(
        it.kind == "attempt.superseded" and it.subject == f"{job.job_id}.1"
        for it in client.events()
    )
    assert running.runs(number) == (2, 2)  # on two devices
    running.until_good(client, "a1-cpu", "a2-cpu")
    running.check(client, reruns=True)


@pytest.mark.usefixtures("_end_agents")
def test_agent_frozen_past_its_limit_brings_a_result_that_counts_if_nobody_began_anew(
    running, client
):
    first = running.start_agent("a1", "cpu")
    running.until_good(client, "a1-cpu")
    number = next(NUMBERS)
    job = running.submit(client, number, ticks=20, selector="device_id=a1-cpu")
    running.until_runs(number)
    first.freeze()
    until(lambda: states(job) == [AttemptState.LOST])
    client.drain("device_id=a1-cpu", "so that nobody begins anew")
    first.thaw()
    until(lambda: states(job) == [AttemptState.DONE], f"the late result\n{running.story()}")
    client.resume("device_id=a1-cpu")
    running.check(client)
    assert running.runs(number) == (1, 1)  # taken late, not run again


@pytest.mark.usefixtures("_end_agents")
def test_device_of_a_frozen_agent_has_one_opener_and_its_late_result_is_fenced(running, client):
    """A second process of the same agent is started in the same folder, as Ray would."""
    first = running.start_agent("a1", "cpu")
    running.until_good(client, "a1-cpu")
    number = next(NUMBERS)
    job = running.submit(client, number, ticks=40, selector="device_id=a1-cpu")
    running.until_runs(number)
    first.freeze()
    second = running.start_agent("a1", "cpu")

    def is_locked():
        device = running.device(client, "a1-cpu")
        return (device.observed, device.health_cause) == ("online", f"locked by pid {first.pid}")

    until(is_locked, f"the second process to find the device taken\n{running.story()}")
    assert states(job) == [AttemptState.LOST]
    until(lambda: running.runs(number)[1] == 1, "the kernel to end under its frozen agent")
    assert running.runs(number) == (1, 1)
    assert is_locked()
    first.thaw()
    assert first.wait() == Fenced.exit_code
    assert re.search("a newer process has connected|was replaced by", first.log.read_text())
    until(lambda: AttemptState.DONE in states(job), f"the job\n{running.story()}")
    assert states(job) == [AttemptState.LOST, AttemptState.DONE]
    assert running.runs(number) == (2, 2)
    second.kill()
    running.start_agent("a1", "cpu")  # finds what the first one wrote after all
    until(lambda: states(job) == [AttemptState.SUPERSEDED, AttemptState.DONE], running.story())
    running.check(client, reruns=True)


class Client:
    """A client in a process of its own, that has a device and calls when it is told to."""

    def __init__(self, running, number, ttl_s, ticks=0):
        path = running.root / "witness.farm"
        running.artifact.save(path)
        arguments = [running.address, str(path), str(ttl_s), str(number), str(ticks)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self):
        return self.process.stdout.readline().strip()

    def call(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self):
        self.process.kill()
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@pytest.fixture
def start_client(running, client):
    """Start clients in processes of their own."""
    agent = running.agents.get("a1")
    if agent is None or agent.ended is not None:
        running.start_agent("a1", "cpu")
    running.until_good(client, "a1-cpu")
    made = []

    def start(*arguments, **options):
        made.append(Client(running, *arguments, **options))
        assert made[-1].line() == "ready"
        return made[-1]

    yield start
    for it in made:
        it.close()


@pytest.mark.parametrize("ticks", [0, 3000], ids=["idle", "in a call"])
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["frozen", "killed"])
def test_client_that_is_gone_loses_its_device_when_its_lease_ends(
    running, client, start_client, number, ticks
):
    ttl_s, mine = 2.0, next(NUMBERS)
    other = start_client(mine, ttl_s, ticks)
    if ticks:
        other.call()
        running.until_runs(mine)
    else:
        other.call()
        assert other.line() == str([mine + 1])
    os.kill(other.process.pid, number)
    began = time.monotonic()
    after = next(NUMBERS)
    with client.acquire("kind=cpu", wait_s=200) as session:
        waited = time.monotonic() - began
        witness = session.load(running.artifact)["witness"]
        assert witness(np.array([after, 1, 0], np.int32)).tolist() == [after + 1]
    # Loads of this machine are in it: what counts is the lease, not the minutes that connections take to die.
    assert waited < ttl_s + 60, running.story()
    assert (client.leases(), running.runs(after)) == ([], (1, 1))
    if number == signal.SIGSTOP:
        os.kill(other.process.pid, signal.SIGCONT)
        other.call()
        assert other.line() in ("FENCED", "DEVICE_LOST"), running.story()
    running.check(client, reruns=True)


def test_client_that_is_killed_while_it_waits_leaves_no_place_in_the_queue(
    running, client, start_client
):
    held = client.acquire("kind=cpu")
    last = running.submit(client, next(NUMBERS), priority=-1)
    path = running.root / "witness.farm"
    running.artifact.save(path)
    arguments = [running.address, str(path), "2", "0", "0"]
    waiting = subprocess.Popen([sys.executable, "-c", CLIENT, *arguments])
    try:
        until(lambda: last.why().position == 2, "the other client to wait")
    finally:
        waiting.kill()
        waiting.wait()
    until(lambda: last.why().position == 1, f"its place to be given up\n{running.story()}")
    held.close()
    running.check(client)


def test_job_of_a_client_that_is_killed_goes_on(running, client, start_client):
    number = next(NUMBERS)
    code = (
        "import sys, numpy as np, farm; from farm.artifact import Artifact\n"
        "job = farm.connect(sys.argv[1]).submit(Artifact.load(sys.argv[2]), 'witness', "
        "[np.array([int(sys.argv[3]), 50, 0], np.int32)], selector='kind=cpu', "
        "client_key=f'job-{sys.argv[3]}')\n"
        "print(job.job_id, flush=True); job.wait()"
    )
    path = running.root / "witness.farm"
    running.artifact.save(path)
    other = subprocess.Popen(
        [sys.executable, "-c", code, running.address, str(path), str(number)],
        stdout=subprocess.PIPE,
        text=True,
    )
    running.jobs[number] = other.stdout.readline().strip()
    other.kill()
    other.stdout.close()
    other.wait()
    running.check(client)
