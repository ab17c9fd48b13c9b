"""What holds for every test session: how hypothesis runs, and that no process outlives the tests.

Owns: the hypothesis profiles and the check for processes left behind. Does not own: fixtures of one
kind of test; they stand in a `conftest.py` beside those tests.

Invariant: a session that leaves a process behind fails, and says which.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

PROC = Path("/proc")
# Started processes inherit this name, so that one whose parent has died is still found as ours.
MARK = f"KERNEL_FARM_TEST_SESSION_{os.getpid()}"
# A process that was told to end may need a moment; one that was forgotten will not use it.
GRACE_S = 30.0
# Python's own, one a process, ends with its parent.
NOT_OURS = "from multiprocessing.resource_tracker import main"

# A shell starts background jobs with SIGINT ignored, which all our children would inherit; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples each time, however slow the machine is; campaigns, and HYPOTHESIS_PROFILE=random, look for others.
SLOW = [HealthCheck.too_slow]
every = settings(deadline=None, max_examples=50, suppress_health_check=SLOW)
settings.register_profile("ci", every, derandomize=True)
settings.register_profile("random", every, max_examples=100, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def _read(path: Path) -> bytes:
    """Return the bytes of a file below `/proc`, nothing if its process has ended meanwhile."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _describe(pid: int) -> str:
    """Return one line about a process: id, state and command line."""
    state = _read(PROC / str(pid) / "stat").rpartition(b")")[2].split()[:1]
    name = _read(PROC / str(pid) / "comm").decode(errors="replace").strip()
    words = _read(PROC / str(pid) / "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    note = " (ended, but its parent has not waited for it)" if state == [b"Z"] else ""
    return f"pid {pid}: {words or name}{note}"


def _processes_left() -> list[int]:
    """Return the ids of this session's processes: descendants, and orphans that carry the mark."""
    parents: dict[int, int] = {}
    ours = {os.getpid()}
    for entry in PROC.iterdir():
        fields = _read(entry / "stat").rpartition(b")")[2].split() if entry.name.isdigit() else []
        if fields:
            parents[int(entry.name)] = int(fields[1])
            if f"{MARK}=".encode() in _read(entry / "environ").split(b"\0"):
                ours.add(int(entry.name))
    while grown := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= grown
    left = sorted(ours - {os.getpid()})
    return [pid for pid in left if NOT_OURS not in _describe(pid)]


def pytest_sessionstart() -> None:
    """Mark what this session will start."""
    os.environ[MARK] = ""


@pytest.fixture(scope="session", autouse=True)
def own_credentials(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what trackers leave for this user's commands out of the user's own folder."""
    os.environ["FARM_CREDENTIALS"] = str(tmp_path_factory.mktemp("credentials"))
    for name in ("FARM_TOKEN", "FARM_CA"):
        os.environ.pop(name, None)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session, with one line for each, if processes are left behind."""
    deadline = time.monotonic() + GRACE_S
    while (left := _processes_left()) and time.monotonic() < deadline:
        time.sleep(0.05)
    if not left:
        return
    lines = "\n".join(_describe(pid) for pid in left)
    report = pytest.TestReport(
        nodeid="processes left behind",
        location=("", None, "processes left behind"),
        keywords={},
        outcome="failed",
        longrepr=f"The tests left {len(left)} process(es) behind; end and wait for each:\n{lines}",
        when="teardown",
    )
    session.config.hook.pytest_runtest_logreport(report=report)
    session.exitstatus = pytest.ExitCode.TESTS_FAILED
