"""The session-wide check of `tests/conftest.py`, run over small sessions of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[2] / "conftest.py"

CLEAN = """
import subprocess

def test_process_that_is_waited_for():
    subprocess.run(["true"], check=True)
"""

CHILD = """
import subprocess

KEPT = []

def test_process_that_is_forgotten():
    KEPT.append(subprocess.Popen(["sleep", "61"]))
"""

ORPHAN = """
import subprocess

def test_process_whose_parent_has_ended():
    subprocess.run(["sh", "-c", "sleep 62 >/dev/null 2>&1 &"], check=True, start_new_session=True)
"""

ZOMBIE = """
import subprocess

KEPT = []

def test_process_that_is_never_waited_for():
    KEPT.append(subprocess.Popen(["true"]))
"""


def run_session(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Run `source` as a test module under the project's conftest."""
    conftest = CONFTEST.read_text("utf-8")
    assert "GRACE_S = 30.0" in conftest
    (folder / "conftest.py").write_text(conftest.replace("GRACE_S = 30.0", "GRACE_S = 0.3"))
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_case.py").write_text(source)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-pno:asyncio", "-pno:cacheprovider", folder],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


def end_process(output: str, command: str) -> None:
    """End the process that `output` reports as running `command`."""
    found = re.search(rf"^pid (\d+): {command}$", output, re.MULTILINE)
    assert found is not None, output
    os.kill(int(found[1]), signal.SIGKILL)


def test_session_without_processes_passes(tmp_path: Path) -> None:
    run = run_session(tmp_path, CLEAN)
    assert run.returncode == 0, run.stdout
    assert "left" not in run.stdout


@pytest.mark.parametrize(("source", "command"), [(CHILD, "sleep 61"), (ORPHAN, "sleep 62")])
def test_session_that_leaves_a_process_fails_and_names_it(
    tmp_path: Path, source: str, command: str
) -> None:
    run = run_session(tmp_path, source)
    end_process(run.stdout, command)
    assert run.returncode == 1
    assert "1 passed, 1 error" in run.stdout


def test_session_that_leaves_a_zombie_fails_and_says_so(tmp_path: Path) -> None:
    run = run_session(tmp_path, ZOMBIE)
    assert run.returncode == 1
    assert re.search(r"^pid \d+: true \(ended, but its parent has not", run.stdout, re.MULTILINE)


def test_session_without_tests_is_a_failure(tmp_path: Path) -> None:
    assert run_session(tmp_path, "").returncode == pytest.ExitCode.NO_TESTS_COLLECTED
