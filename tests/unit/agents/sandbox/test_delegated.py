"""Control groups of a real v2 tree that an ordinary user was given, as systemd's ``Delegate=yes`` gives it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from farm_agents.sandbox.cgroups import Hierarchies
from farm_agents.sandbox.limits import Limits

NOBODY = 65534
LIMIT_S = 120.0


@pytest.fixture
def delegated():
    """A group of its own in the host's v2 tree, owned by an ordinary user."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [Path(line.split()[4]) for line in lines if " - cgroup2 " in line]
    if os.geteuid() != 0 or not points:
        pytest.skip("needs root and a mounted cgroup2, to give a part of it to somebody")
    base = points[0] / f"kernel-farm-test-{os.getpid()}"
    try:
        base.mkdir()
    except OSError as error:
        pytest.skip(f"needs a cgroup2 that can be written ({error})")
    for path in (base, base / "cgroup.procs", base / "cgroup.subtree_control"):
        os.chown(path, NOBODY, NOBODY)
    yield base
    base.rmdir()


def test_ordinary_user_with_a_tree_kills_a_group_and_proves_it_empty(delegated):
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(LIMIT_S))
        try:
            (delegated / "cgroup.procs").write_text("0")
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(write_fd, json.dumps(as_user()).encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as file:
        told = json.loads(file.read() or b"null")
    os.waitpid(pid, 0)
    assert told == {
        "versions": [2],
        "base": str(delegated),
        "held": True,
        "removed while held": False,
        "signal": int(signal.SIGKILL),
        "removed": True,
        "left": [],
    }


def as_user():
    """Make a group, put a process in, kill it; return what was seen."""
    found = Hierarchies.find()
    (tree,) = found.trees
    group = found.make("one", Limits.default())
    fds = group.open_procs()
    ready_fd, told_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        for fd in fds:
            os.write(fd, b"0")
        os.write(told_fd, b".")
        signal.pause()
    os.read(ready_fd, 1)
    seen = {
        "versions": [tree.version],
        "base": str(tree.base),
        "held": group.pids() == {pid},
        "removed while held": group.remove(),
    }
    group.kill()
    _, status = os.waitpid(pid, 0)
    deadline = time.monotonic() + LIMIT_S / 2
    while not (removed := group.remove()) and time.monotonic() < deadline:
        time.sleep(0.01)
    found.close()
    left = sorted(path.name for path in tree.base.glob("kernel-farm-*"))
    return {**seen, "signal": os.WTERMSIG(status), "removed": removed, "left": left}
