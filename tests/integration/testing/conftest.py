"""Processes seen from outside, and scripts that open a farm."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LIMIT_S = 120.0


def _alive(pid: int) -> bool:
    """Tell whether a process runs; one that ended and was not waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def wait_until():
    """Wait until a condition holds: ``wait_until(lambda: ...)``."""

    def wait(condition, limit_s=LIMIT_S):
        deadline = time.monotonic() + limit_s
        while not (value := condition()):
            assert time.monotonic() < deadline, f"waited {limit_s} s"
            time.sleep(0.05)
        return value

    return wait


@pytest.fixture
def gone(wait_until):
    """Wait until none of these processes runs."""
    return lambda pids: wait_until(lambda: not any(map(_alive, pids)))


@pytest.fixture
def start(tmp_path):
    """Start a process whose standard output and error are pipes; it is killed after the test."""
    started = []
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # a killed process cannot tidy up

    def run(*command):
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()
