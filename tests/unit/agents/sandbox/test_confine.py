"""Forking into the pid namespace of a sandbox, and coming back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own: namespaces are for good if something is wrong.
FORKS = """
import os, sys
from farm_agents.sandbox.confine import children_inside

def seen():
    "Whether a child that is forked now has another process id for itself, and is in another namespace."
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(write, f"{os.getpid()} {os.readlink('/proc/self/ns/pid')}".encode())
        os._exit(0)
    own_id, space = os.read(read, 100).decode().split()
    os.waitpid(pid, 0)
    return int(own_id) != pid, space != os.readlink("/proc/self/ns/pid")

if len(sys.argv) > 2:
    os.setresuid(65534, 65534, 65534)
with children_inside(os.pidfd_open(int(sys.argv[1]))) as is_inside:
    inside = seen()
print(is_inside, *inside, *seen())
"""


@pytest.fixture
def room():
    """The first process of another pid namespace."""
    if os.geteuid() != 0:
        pytest.skip(
            "only root can make a pid namespace, and fork into one without a process in between"
        )
    command = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo $$; exec sleep 600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            yield int(listed.read_text())
        finally:
            process.kill()


def forked(*arguments):
    command = [sys.executable, "-c", FORKS, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.split() or done.stderr


def test_children_are_inside_while_that_is_wanted_and_not_after(room):
    assert forked(room) == ["True", "True", "True", "False", "False"]


def test_who_may_not_fork_into_a_sandbox_is_told_so(room):
    assert forked(room, "as nobody") == ["False"] * 5
