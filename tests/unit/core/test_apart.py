"""Processes for code of others: answers come through, nothing of theirs stays, nobody waits or fills up for them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from farm.core import apart
from farm.core.apart import run_apart

HEAD = """
import os, sys, time
from farm.core.apart import answers
answer = answers()
"""
LONG_S = 120.0  # of what ends by itself


@pytest.fixture
def others(tmp_path, monkeypatch):
    """Return a function that runs code apart, after the lines that make it answer."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(code, head=HEAD, **options):
        (tmp_path / "others.py").write_text(head + code)
        return run_apart("others", **{"limit_s": LONG_S, **options})

    return run


def gone(pid):
    """Wait until a process is gone, or nothing but its number is left."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_answer_comes_through_whatever_is_printed(others):
    ended = others("print('no answer'); os.system('echo nor this'); answer({'a': [1, 'é']})\n")
    assert (ended.status, ended.answer) == (0, {"a": [1, "é"]})
    assert sorted(ended.said.splitlines()) == ["no answer", "nor this"]


def test_every_answer_is_told_and_the_last_one_kept(others):
    told = []
    ended = others("for i in range(3): answer({'i': i})", tell=told.append)
    assert told == [{"i": 0}, {"i": 1}, {"i": 2}]
    assert ended.answer == {"i": 2}


def test_given_bytes_are_read_however_many_there_are(others):
    data = bytes(range(256)) * 4096
    code = "import hashlib; answer({'sha': hashlib.sha256(sys.stdin.buffer.read()).hexdigest()})"
    assert others(code, given=data).answer == {"sha": hashlib.sha256(data).hexdigest()}
    assert others("answer({})", given=data).status == 0  # that nobody reads


@pytest.mark.parametrize(
    ("code", "status", "how"),
    [
        ("sys.exit(3)", 3, "exit code 3"),
        ("os.abort()", -6, "SIGABRT"),
        ("os.kill(os.getpid(), 9)", -9, "SIGKILL"),
        ("raise ValueError('boom')", 1, "exit code 1"),
    ],
)
def test_end_is_told_as_it_was(others, code, status, how):
    ended = others(code)
    assert (ended.status, ended.how, ended.answer) == (status, how, None)


@pytest.mark.parametrize("line", ["[1]", "{", "7", "", "\\xff", "null"])
def test_what_is_no_object_is_no_answer(others, line):
    assert others(f"os.write(1, b'{line}\\n')", head="import os\n").answer is None


def test_answer_that_is_too_long_is_none_and_the_next_one_counts(others):
    ended = others("answer({'a': 'x' * 5000}); answer({'b': 1})", most_bytes=1000)
    assert ended.answer == {"b": 1}
    assert others("answer({'a': 'x' * 5000})", most_bytes=1000).answer is None


def test_process_that_prints_without_end_is_ended_and_hardly_any_of_it_held(others):
    ended = others("while True: print('x' * 100_000)", limit_s=2.0)
    assert (ended.status, ended.how) == (None, "time limit")
    assert len(ended.said) <= apart.KEPT_BYTES
    ended = others("while True: os.write(1, b'y' * 100_000)", head="import os\n", limit_s=2.0)
    assert (ended.status, ended.answer) == (None, None)


def test_what_was_forked_is_gone_and_nobody_waits_for_it(others):
    code = """
child = os.fork()
if not child:
    time.sleep(600)
answer({"child": child})
os._exit(0)
"""
    began = time.monotonic()
    ended = others(code)
    assert ended.status == 0
    assert gone(ended.answer["child"])
    assert time.monotonic() - began < LONG_S


def test_nobody_waits_for_what_left_the_group(others):
    code = """
child = os.fork()
if not child:
    os.setsid()
    os.execvp("sleep", ["sleep", "600"])
while os.getpgid(child) != child:  # else it would end with the group
    time.sleep(0.001)
answer({"child": child})
os._exit(0)
"""
    ended = others(code)
    assert ended.status == 0
    os.kill(ended.answer["child"], 9)


def test_interrupt_while_it_runs_ends_it(others):
    pids = []

    def interrupt(answer):
        pids.append(answer["pid"])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        others("answer({'pid': os.getpid()}); time.sleep(600)", tell=interrupt)
    assert gone(pids[0])


def test_it_does_not_live_longer_than_who_started_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "others.py").write_text(f"{HEAD}answer({{'pid': os.getpid()}}); time.sleep(600)")
    code = (
        "from farm.core.apart import run_apart\n"
        "run_apart('others', limit_s=600, tell=lambda it: print(it['pid'], flush=True))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as first:
        pid = int(first.stdout.readline())
        first.kill()
    assert gone(pid)


def descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_no_descriptor_is_left_open(others):
    others("answer({})")
    before = descriptors()
    others("answer({})")
    others("time.sleep(600)", limit_s=0.5)
    assert descriptors() == before
