from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from farm.core.crash import CrashPoints
from farm.errors import InvalidInput

NAMES = {"one": "here", "two": "there"}


def points(text=""):
    made = CrashPoints("VARIABLE", NAMES)
    made.arm({"VARIABLE": text} if text else {})
    return made


def test_crash_points_that_are_not_armed_do_nothing():
    made = points()
    assert not made.is_armed
    for name in NAMES:
        made.passed(name)


@pytest.mark.parametrize("text", ["three", "one:0", "one:-1", "one:x", "one:", ":1", "one:1:2"])
def test_crash_point_that_is_malformed_is_refused_with_all_names(text):
    with pytest.raises(InvalidInput, match="use NAME or NAME:N with one of one, two"):
        points(text)


def test_crash_point_kills_the_nth_time_and_others_never():
    code = (
        "from farm.core.crash import CrashPoints\n"
        "made = CrashPoints('V', {'one': '', 'two': ''})\n"
        "made.arm({'V': 'two:3'})\n"
        "for i in range(5): print(i, flush=True); made.passed('one'); made.passed('two')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (-signal.SIGKILL, "0\n1\n2\n")
