"""A client that waits, submits and reads events while the tracker is killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import farm
from farm import te
from farm.client import Verdict
from farm.testing import EmbeddedFarm
from farm.testing.agents import AgentPlan

SIZE = 1 << 16
LIMIT_S = 240.0


@pytest.fixture
def slow():
    """A function of which a thousand calls take some seconds."""
    x = te.placeholder((SIZE,), "float32", name="x")
    y = te.compute((SIZE,), lambda i: te.exp(te.tanh(x[i])), name="y")
    return farm.build({"llvm": [te.function("slow", [x, y])]})


@pytest.fixture
def fast():
    x = te.placeholder((16,), "int32", name="x")
    y = te.compute((16,), lambda i: x[i] * 3, name="y")
    return farm.build({"llvm": [te.function("triple", [x, y])]})


def test_client_goes_on_over_the_death_of_the_tracker(tmp_path, slow, fast):
    with EmbeddedFarm(
        "processes", plans=[AgentPlan("cpu-1", devices=("cpu",))], data_dir=tmp_path
    ) as running:
        client = farm.connect(running.address)
        job = client.submit(slow, "slow", [np.zeros(SIZE, np.float32)], repeat=1000, limit_s=400)
        started = threading.Event()
        ended = []

        def wait():
            def progress(info):
                if info.state == "running":
                    started.set()

            ended.append(job.wait(LIMIT_S, progress))

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert started.wait(LIMIT_S)
        os.kill(running.pids["tracker"], signal.SIGKILL)
        later = []  # submitted while nobody answers
        x = np.ones(16, np.int32)
        submitter = threading.Thread(
            target=lambda: later.append(client.submit(fast, "triple", [x]))
        )
        submitter.start()
        command = [sys.executable, "-m", "farm_tracker", "--data-dir", str(tmp_path / "tracker")]
        with subprocess.Popen(
            [*command, "--listen", running.address, "--plaintext"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as second:
            try:
                waiter.join(LIMIT_S)
                submitter.join(LIMIT_S)
                assert ended[0].verdict is Verdict.PASS
                assert len(ended[0].attempts) == 1  # adopted, not run again
                assert len(job.result(LIMIT_S).samples_ns) == 1000
                assert later[0].result(LIMIT_S).outputs[0].tolist() == [3] * 16
                assert len(client.jobs(include_ended=True)) == 2
                numbers = [event.number for event in client.events()]
                assert numbers == sorted(set(numbers))
                client.close()
            finally:
                second.terminate()
                second.wait(LIMIT_S)
