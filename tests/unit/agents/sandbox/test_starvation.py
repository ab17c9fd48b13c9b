"""Whose memory ran out: the child's own, or the host's."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from farm_agents.builder import _crashed, _excused
from farm_agents.sandbox import starvation
from farm_agents.sandbox.cgroups import Group
from farm_agents.sandbox.starvation import CERTAIN, FELL, UNCERTAIN, UNKNOWN, Starvation
from farm_agents.session_worker import SessionWorker
from farm_agents.session_worker import _excused as _excused_reply
from farm_agents.state.model import BuildOrder

from farm.api.v1 import agent_pb2, session_pb2
from farm.core.digest import digest_of
from farm.core.wire import error_to_proto
from farm.errors import BuildFailed, KernelCrashed, TimeLimit

V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
V2 = "low 0\nhigh 0\nmax 9\noom {times}\noom_kill {kills}\n"
MIB = 1 << 20
KINDS = {
    # how a group tells its kills for want of memory, and that its own limit was reached
    "v1": ({"memory.oom_control": V1}, {"memory.failcnt": "3\n"}),
    "v1, kernel that does not count failures with swap": (
        {
            "memory.oom_control": V1,
            "memory.failcnt": "0\n",
            "memory.memsw.limit_in_bytes": f"{64 * MIB}\n",
            "memory.memsw.max_usage_in_bytes": f"{60 * MIB}\n",
        },
        {"memory.memsw.max_usage_in_bytes": f"{64 * MIB - 4096}\n"},
    ),
    "v2": ({"memory.events": V2}, {"memory.events": V2.replace("{times}", "3")}),
}


def write(folder, files, kills):
    for name, text in files.items():
        (folder / name).write_text(text.replace("{kills}", str(kills)).replace("{times}", "0"))


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Set how much the whole host has killed for want of memory; None: it does not count that."""
    file = tmp_path / "vmstat"
    monkeypatch.setattr(starvation, "_HOST", file)

    def kills(number):
        file.write_text(
            "nr_free_pages 7\n" + (f"oom_kill {number}\n" if number is not None else "")
        )

    kills(0)
    return kills


@pytest.fixture(params=KINDS)
def group(request, tmp_path, host):
    """A group of v1 or v2 and functions that let it have kills, and reach its limit."""
    folder = tmp_path / "group"
    folder.mkdir()
    files, reached = KINDS[request.param]
    write(folder, files, 0)
    return SimpleNamespace(
        group=Group((folder,)),
        kill=lambda number: write(folder, files, number),
        reach=lambda: write(folder, reached, 1),
    )


def test_host_that_kills_in_a_group_below_its_limit_is_blamed_once_for_each_time(group):
    counted = Starvation(group.group)
    assert counted.excuse("SIGKILL") == ""
    group.kill(1)
    assert group.group.exceeded() == {}
    assert counted.excuse("") == CERTAIN  # a process that the worker had started
    assert counted.excuse("SIGKILL") == ""  # told already: what fails now is the kernel's own
    group.kill(2)
    assert counted.excuse("SIGKILL") == CERTAIN


def test_group_that_reached_its_own_limit_blames_nobody_else(group):
    counted = Starvation(group.group)
    group.kill(1)
    group.reach()
    assert group.group.exceeded() == {"limit": "memory"}
    assert counted.excuse("SIGKILL") == ""


def test_kills_that_were_there_before_a_child_excuse_nothing(group):
    group.kill(4)
    assert Starvation(group.group).excuse("SIGKILL") == ""


def test_count_of_a_group_that_is_removed_is_kept(group):
    counted = Starvation(group.group)
    group.kill(1)
    counted.close()
    for file in group.group.folders[0].iterdir():
        file.unlink()
    assert counted.excuse("SIGKILL") == CERTAIN


@pytest.mark.parametrize("has_group", [False, True])
def test_without_memory_control_a_host_that_killed_something_excuses_only_sigkill(
    host, tmp_path, has_group
):
    counted = Starvation(Group((tmp_path,)) if has_group else None)
    assert not counted.is_blind
    assert counted.excuse("SIGKILL") == ""  # nothing was killed meanwhile: it did that itself
    host(1)
    assert counted.excuse("SIGSEGV") == ""
    host(2)
    assert counted.excuse("SIGKILL") == UNCERTAIN


@pytest.mark.parametrize(
    ("fell", "kills", "signal", "excuse"),
    [
        (True, 1, "SIGKILL", FELL),
        (
            True,
            0,
            "SIGKILL",
            "",
        ),  # nothing was killed for memory: it may have ended its sandbox itself
        (False, 1, "SIGKILL", ""),
        (True, 1, "SIGSEGV", ""),
    ],
)
def test_sandbox_that_fell_while_the_host_had_no_memory_is_no_fault_of_the_kernel(
    group, host, fell, kills, signal, excuse
):
    counted = Starvation(group.group, lambda: fell)
    host(kills)
    assert counted.excuse(signal) == excuse


def test_host_that_counts_nothing_excuses_nothing_and_says_so(host):
    host(None)
    counted = Starvation(None)
    assert counted.is_blind
    assert counted.excuse("SIGKILL") == ""


def dead_child(counted, status=9, **values):
    async def kill():
        return status

    known = {
        "kill": kill,
        "exceeded": {},
        "unheard": False,
        "zygote": SimpleNamespace(alive=True),
        "starvation": counted,
    }
    return SimpleNamespace(**{**known, **values})


def crash(child):
    worker = SessionWorker(None, None, None, Path(os.devnull))
    worker._child = child
    return asyncio.run(worker._crash(child, "call f", 5.0))


def test_worker_that_the_host_killed_is_the_farms_fault_and_never_the_kernels(group):
    counted = Starvation(group.group)
    group.kill(1)
    error = crash(dead_child(counted))
    assert error.code == "INFRASTRUCTURE"
    assert error.message == f"call f: {CERTAIN}; call again"


def test_worker_that_ends_itself_is_the_kernels_fault_also_where_nothing_counts_kills(host):
    error = crash(dead_child(Starvation(None)))
    assert (error.code, error.message) == (
        "KERNEL_CRASHED",
        "call f: ended the process it ran in (SIGKILL); fix the kernel",
    )
    host(None)
    error = crash(dead_child(Starvation(None)))
    assert error.code == "KERNEL_CRASHED"
    assert UNKNOWN in error.message


REPLIES = {
    "error": lambda error: session_pb2.SessionReply(error=error),
    "batch": lambda error: session_pb2.SessionReply(batch=session_pb2.BatchReply(error=error)),
    "packed": lambda error: session_pb2.SessionReply(packed=session_pb2.PackedReply(error=error)),
}


@pytest.mark.parametrize("kind", REPLIES)
def test_process_of_a_worker_that_the_host_killed_is_not_the_kernels_fault(group, kind):
    def failed():
        error = KernelCrashed("f: crashed (SIGKILL); look at the kernel", signal="SIGKILL")
        return REPLIES[kind](error_to_proto(error))

    def code(reply):
        part = getattr(reply, kind)
        return (part if kind == "error" else part.error).code

    child = dead_child(Starvation(group.group))
    assert code(_excused_reply(child, failed(), "call f")) == "KERNEL_CRASHED"
    group.kill(1)
    assert code(_excused_reply(child, failed(), "call f")) == "INFRASTRUCTURE"


def test_reply_that_went_well_is_left_alone_whatever_was_killed(group):
    child = dead_child(Starvation(group.group))
    group.kill(1)
    reply = session_pb2.SessionReply(seq=3, called=session_pb2.CallReply(samples_ns=[5]))
    assert _excused_reply(child, reply, "call f").called.samples_ns == [5]


ORDER = BuildOrder("t1", "host", "llvm", "f", digest_of(b"f"), 9.0)


def test_compiler_that_the_host_killed_is_the_farms_fault(group):
    counted = Starvation(group.group)
    group.kill(1)
    assert _crashed(ORDER, dead_child(counted), 9).error.code == "INFRASTRUCTURE"
    assert _crashed(ORDER, dead_child(counted), 9).error.code == "BUILD_FAILED"  # by itself


@pytest.mark.parametrize("gone", [{"unheard": True}, {"zygote": SimpleNamespace(alive=False)}])
def test_compiler_that_was_ended_from_outside_is_the_farms_fault(host, gone):
    assert _crashed(ORDER, dead_child(Starvation(None), **gone), 9).error.code == "INFRASTRUCTURE"


@pytest.mark.parametrize("error", [BuildFailed("f: no"), TimeLimit("f: the linker ran too long")])
def test_what_a_compiler_starts_and_the_host_kills_is_the_farms_fault(group, error):
    counted = Starvation(group.group)
    failed = agent_pb2.BuildAttempt(attempt_id="t1", error=error_to_proto(error))
    assert _excused(ORDER, dead_child(counted), failed).error.code == error.code
    group.kill(1)
    excused = _excused(ORDER, dead_child(counted), failed)
    assert (excused.attempt_id, excused.error.code) == ("t1", "INFRASTRUCTURE")
