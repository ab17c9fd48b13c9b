"""Parts of the sandbox without one: output, limits, the command line, control groups of a made-up host, results."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from farm_agents.child import Child
from farm_agents.sandbox import cgroups
from farm_agents.sandbox.bubblewrap import command, find_bwrap, make_view
from farm_agents.sandbox.cgroups import Group, Hierarchies, Hierarchy, own_name
from farm_agents.sandbox.limits import Limits
from farm_agents.sandbox.output import OutputLog
from farm_agents.worker.blobs import keep_blob

from farm.core.digest import digest_of
from farm.errors import InfrastructureError, InvalidInput


def test_output_is_kept_up_to_the_limit_and_then_has_no_reader(tmp_path):
    log = tmp_path / "log"

    async def main():
        read_fd, write_fd = os.pipe()
        output = OutputLog(read_fd, 10)
        os.write(write_fd, b"before ")
        output.attach(log)
        os.write(write_fd, b"and after")
        await asyncio.sleep(0.05)
        with pytest.raises(BrokenPipeError):
            os.write(write_fd, b"more")
        output.close()
        os.close(write_fd)

    asyncio.run(main())
    assert log.read_bytes() == b"before and\n[output cut after 10 bytes]\n"


def test_output_that_came_last_is_kept(tmp_path):
    log = tmp_path / "log"

    async def main():
        read_fd, write_fd = os.pipe()
        output = OutputLog(read_fd, 1 << 20)
        output.attach(log)
        os.write(write_fd, b"last words")
        output.close()
        os.close(write_fd)

    asyncio.run(main())
    assert log.read_bytes() == b"last words"


def test_limits_are_above_zero():
    assert Limits.default().memory_bytes > 0
    with pytest.raises(InvalidInput, match="numbers above 0"):
        Limits(memory_bytes=1, processes=0)


def test_bwrap_absent_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InfrastructureError, match=r"kernel-farm\[sandbox\]"):
        find_bwrap()


def test_command_shows_nothing_writable_and_only_the_cache_of_the_work_folder(tmp_path):
    work = tmp_path / "agent"
    (work / "cache").mkdir(parents=True)
    words = command(Path("bwrap"), make_view(work / "cache", 1 << 20), 9)
    for flag in ("user", "pid", "ipc", "uts", "net", "cgroup"):
        assert f"--unshare-{flag}" in words
    assert {"--die-with-parent", "--new-session", "--clearenv"} <= set(words)
    assert not {"--bind", "--dev-bind", "--bind-try"} & set(words)
    assert [w for w in words if str(work) in w] == [str(work / "cache")]


@pytest.fixture
def host(tmp_path):
    return Hierarchies((Hierarchy(1, tmp_path, ("memory", "pids")),), ())


def test_group_has_its_limits_and_tells_which_was_passed(host, tmp_path):
    group = host.make("one", Limits(memory_bytes=1 << 20, processes=7))
    folder = tmp_path / own_name() / "one"
    assert group == Group((folder,))
    assert (folder / "pids.max").read_text() == "7"
    assert (folder / "memory.limit_in_bytes").read_text() == str(1 << 20)
    assert group.exceeded() == {}
    (folder / "pids.events").write_text("max 3\n")
    assert group.exceeded() == {"limit": "processes"}
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    (folder / "memory.failcnt").write_text("12\n")
    assert group.exceeded() == {"limit": "memory"}
    (folder / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert group.pids() == {os.getpid()}
    assert not group.remove()  # as if it were not empty


def test_group_that_is_empty_is_removed(host, tmp_path):
    folder = tmp_path / own_name() / "two"
    folder.mkdir(parents=True)
    assert Group((folder,)).remove()
    host.close()
    assert list(tmp_path.iterdir()) == []


def test_groups_of_a_dead_agent_are_removed_and_those_of_others_stay(tmp_path):
    mine, dead, other = own_name(), "kernel-farm-1.0", "system.slice"
    for name in (mine, dead, other):
        (tmp_path / name / "x").mkdir(parents=True)
    cgroups._remove_stale(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {mine, other}


def make_child(out):
    child = Child.__new__(Child)
    child.sandbox, child._ending, child._out = None, None, out
    return child


def test_result_is_read_once(tmp_path):
    digest = keep_blob(tmp_path, b"content")
    child = make_child(tmp_path)
    with child.result(digest) as path:
        assert path.read_bytes() == b"content"
    with pytest.raises(InfrastructureError, match="unreadable"):
        child.open_result(digest)


@pytest.mark.parametrize("kind", ["file", "folder", "pipe", "size"])
def test_result_that_leads_elsewhere_is_refused(tmp_path, kind):
    secret, out = tmp_path / "secret", tmp_path / "out"
    digest = digest_of(b"content")
    secret.mkdir()
    (secret / digest.sha256).write_bytes(b"content")
    out.mkdir()
    folder = out / digest.sha256[:2]
    if kind == "folder":
        folder.symlink_to(secret)
    else:
        folder.mkdir()
    place = folder / digest.sha256
    match kind:
        case "file":
            place.symlink_to(secret / digest.sha256)
        case "pipe":
            os.mkfifo(place)
        case "size":
            place.write_bytes(b"other")
    with pytest.raises(InfrastructureError, match="unreadable"):
        make_child(out).open_result(digest)
    assert (secret / digest.sha256).exists()
