"""Hostile kernels as native code in a session: each ends as its record says, and the next call finds a worker.

They are written as LLVM IR with system calls of their own, so that no compiler and no library of ours stands between
them and the host. What a kernel may do to the process it runs in, the harness's own, is its own affair: it can spoil
or forge the result of the call that it was asked for, and of no other session.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
from farm_agents.sandbox.limits import Limits
from farm_agents.worker import processes
from fault.farms import until

from farm.api.v1 import session_pb2
from farm.errors import FarmError, KernelCrashed, TimeLimit

LIMIT_S = 0.5
PATIENCE_S = 120.0
SPIN = "  br label %spin\nspin:\n  store volatile i32 1, ptr %y\n  br label %spin"
PROT_ALL, MAP_PRIVATE_ANONYMOUS = 7, 0x22


def kernel(name, body, strings=()):
    """IR of a function of the farm's calling convention; strings are @s0, @s1, ... and %s0, %s1, ... as numbers."""
    texts = [s.encode("latin-1") + b"\0" for s in strings]
    constants = "".join(
        f'@s{i} = private constant [{len(t)} x i8] c"{"".join(f"{chr(92)}{b:02X}" for b in t)}"\n'
        for i, t in enumerate(texts)
    )
    numbers = "".join(f"  %s{i} = ptrtoint ptr @s{i} to i64\n" for i in range(len(texts)))
    return f"""{constants}@block = private global [65536 x i8] zeroinitializer
@name_{name} = private constant [{len(name) + 1} x i8] c"{name}\\00"
@entry_{name} = constant {{ ptr, ptr }} {{ ptr @name_{name}, ptr @{name} }}, section "farm_functions"
@llvm.used = appending global [1 x ptr] [ptr @entry_{name}], section "llvm.metadata"
declare void @llvm.trap()
declare ptr @memcpy(ptr, ptr, i64)
define i32 @{name}(ptr %args, i32 %n) {{
start:
  %p0 = getelementptr ptr, ptr %args, i64 0
  %t0 = load ptr, ptr %p0
  %x = load ptr, ptr %t0
  %p1 = getelementptr ptr, ptr %args, i64 1
  %t1 = load ptr, ptr %p1
  %y = load ptr, ptr %t1
  %buffer = ptrtoint ptr @block to i64
{numbers}{body}
}}
"""


def call(result, number, *arguments):
    """IR of a system call of x86-64 Linux."""
    registers = ("rdi", "rsi", "rdx", "r10", "r8", "r9")[: len(arguments)]
    constraints = ",".join(["={rax}", "0", *(f"{{{r}}}" for r in registers)])
    values = ", ".join(f"i64 {value}" for value in (number, *arguments))
    types = f'"{constraints},~{{rcx}},~{{r11}},~{{memory}}"'
    return f'  %{result} = call i64 asm sideeffect "syscall", {types}({values})\n'


def answer(value):
    """Return a number to the client."""
    return f"  %answer = trunc i64 {value} to i32\n  store i32 %answer, ptr %y\n  ret i32 0"


def asks(number, *arguments, strings=()):
    """A kernel that makes one system call and tells what came of it."""
    return call("r", number, *arguments) + answer("%r"), strings


def forever(body, before=""):
    return f"{before}  br label %again\nagain:\n{body}  br label %again"


# name: (body, strings, signal or other details that the record must have)
CRASHES = {
    "null_pointer": ("  store volatile i32 1, ptr null\n  ret i32 0", (), {"signal": "SIGSEGV"}),
    "trap": ("  call void @llvm.trap()\n  unreachable", (), {"signal": "SIGILL"}),
    "illegal_instruction": (
        '  call void asm sideeffect ".byte 0x0f, 0xff", ""()\n  ret i32 0',
        (),
        {"signal": "SIGILL"},
    ),
    "abort": (
        call("me", 39) + call("r", 62, "%me", 6) + answer("%r"),
        (),
        {"signal": "SIGABRT"},
    ),
    "division": (
        '  call void asm sideeffect "xorl %ecx, %ecx; xorl %edx, %edx; movl $$1, %eax; idivl %ecx", '
        '"~{eax},~{ecx},~{edx},~{flags}"()\n  ret i32 0',
        (),
        {"signal": "SIGFPE"},
    ),
    "stack_overflow": (
        '  call void asm sideeffect "1: pushq %rax; jmp 1b", "~{memory}"()\n  ret i32 0',
        (),
        {"signal": "SIGSEGV"},
    ),
    "leave": (call("r", 231, 3) + "  unreachable", (), {"exit_code": "3"}),
    # Every process that it can see: the keeper of its room, and so itself.
    "kill_everything": (call("r", 62, -1, 9) + SPIN, (), {"signal": "SIGKILL"}),
    "kill_parent": (
        call("p", 110)
        + call("r", 62, "%p", 9)
        + SPIN,  # inside it has none: the number is 0, its own group
        (),
        {"signal": "SIGKILL"},
    ),
    "other_abi": (
        '  call void asm sideeffect "movl $$20, %eax; int $$0x80", "~{eax},~{memory}"()\n  ret i32 0',
        (),
        {"signal": "SIGSYS"},
    ),
    "memory_bomb": (
        forever(
            call("at", 9, 0, 1 << 26, 3, MAP_PRIVATE_ANONYMOUS | 0x8000, -1, 0)  # MAP_POPULATE
        ),
        (),
        {"limit": "memory"},
    ),
    "close_all": (call("r", 436, 3, 0xFFFFFFF, 0) + answer("%r"), (), {}),
    "garbage_to_every_descriptor": (
        "  br label %again\nagain:\n  %fd = phi i64 [ 0, %start ], [ %next, %again ]\n"
        + call("r", 1, "%fd", "%s0", 12)
        + "  %next = add i64 %fd, 1\n  %more = icmp ult i64 %next, 64\n"
        + "  br i1 %more, label %again, label %hang\nhang:\n"
        + SPIN,
        ("\x7f\x7f\x7f\x7fjunkjunk",),
        {},
    ),
    # A whole, well-formed frame that answers another request (4 bytes: field 1, seq 1,000,000).
    "forged_answer_of_another": (
        call("r", 1, 3, "%s0", 8) + SPIN,
        ("\x04\0\0\0\x08\xc0\x84\x3d",),
        {},
    ),
    # The harness's own code: the client gets no result, or a wrong one of its own call, never somebody else's.
    "overwrite_harness": (
        "  %f = ptrtoint ptr @memcpy to i64\n  %page = and i64 %f, -4096\n"
        + call("r", 10, "%page", 8192, PROT_ALL)
        + "  store volatile i16 2831, ptr @memcpy\n  call ptr @memcpy(ptr %y, ptr %x, i64 4)\n"
        + "  ret i32 0",
        (),
        {"signal": "SIGILL"},
    ),
}

HANGS = {
    "endless": (SPIN, ()),
    "sleep": (forever(call("r", 34)), ()),
    "block_signals": (
        "  store i64 -1, ptr @block\n" + call("r", 14, 0, "%buffer", 0, 8) + SPIN,
        (),
    ),
    "fork_bomb": (forever(call("r", 57)), ()),
    "output_flood": (forever(call("r", 1, 1, "%buffer", 65536)), ()),
    "thread_bomb": (forever(call("r", 56, 17, 0)), ()),
}

EPERM, EROFS, ENOENT, ENOSYS = -errno.EPERM, -errno.EROFS, -errno.ENOENT, -errno.ENOSYS
REFUSED = {
    "write_usr": (asks(2, "%s0", 0o101, 0o600, strings=("/usr/lib/evil",)), {EROFS}),
    "write_root": (asks(2, "%s0", 0o101, 0o600, strings=("/evil",)), {EROFS}),
    "write_cache": (asks(2, "%s0", 0o101, 0o600, strings=("/cache/evil",)), {EROFS}),
    "write_sysctl": (
        asks(2, "%s0", 0o1, strings=("/proc/sys/kernel/core_pattern",)),
        {EROFS, -errno.EACCES, ENOENT},
    ),
    "write_memory_of_init": (asks(2, "%s0", 2, strings=("/proc/1/mem",)), {EROFS, -errno.EACCES}),
    "see_host_processes": (asks(2, "%s0", 0, strings=("/proc/100000/stat",)), {ENOENT}),
    "socket_inet": (asks(41, 2, 1, 0), {EPERM}),
    "socket_unix": (asks(41, 1, 1, 0), {EPERM}),
    "socket_vsock": (asks(41, 40, 1, 0), {EPERM}),
    "ptrace_init": (asks(101, 16, 1, 0, 0), {EPERM}),
    "process_write": (asks(311, 1, "%buffer", 1, "%buffer", 1, 0), {EPERM}),
    "unshare": (asks(272, 0x10000000), {EPERM}),
    "setns": (asks(308, 3, 0), {EPERM}),
    "mount": (asks(165, "%s0", "%s0", "%s1", 0, 0, strings=("/tmp", "tmpfs")), {EPERM}),
    "clone_namespace": (asks(56, 0x10000000 | 17, 0), {EPERM}),
    "clone3": (asks(435, "%buffer", 64), {ENOSYS}),
    "setuid_root": (asks(105, 0), {EPERM, -errno.EINVAL}),
    "raise_limits": (
        (
            "  store i64 1000000, ptr @block\n  %second = getelementptr i64, ptr @block, i64 1\n"
            + "  store i64 1000000, ptr %second\n"
            + call("r", 302, 0, 7, "%buffer", 0)
            + answer("%r"),
            (),
        ),
        {EPERM},
    ),
    "keyctl": (asks(250, 0, -3, 0), {EPERM}),
    "bpf": (asks(321, 0, "%buffer", 64), {EPERM}),
    "perf": (asks(298, "%buffer", 0, -1, -1, 0), {EPERM}),
    "io_uring": (asks(425, 8, "%buffer"), {EPERM}),
    "userfaultfd": (asks(323, 0), {EPERM}),
    "load_module": (asks(175, "%buffer", 64, "%buffer"), {EPERM}),
    "personality": (asks(135, 0x0400000), {EPERM}),
    "fill_scratch": (
        (
            call("fd", 2, "%s0", 0o102, 0o600)
            + call("r", 285, "%fd", 0, 0, 1 << 40)
            + answer("%r"),
            ("/tmp/full",),
        ),
        {-errno.ENOSPC, -errno.EFBIG},
    ),
    "future_call": (asks(1000), {ENOSYS}),
}

DOUBLE_FORK = (
    call("a", 57)
    + "  %child = icmp eq i64 %a, 0\n  br i1 %child, label %first, label %done\nfirst:\n"
    + call("b", 112)
    + call("c", 57)
    + "  %grandchild = icmp eq i64 %c, 0\n  br i1 %grandchild, label %stay, label %end\nend:\n"
    + call("d", 231, 0)
    + "  unreachable\nstay:\n"
    + call("e", 34)
    + "  br label %stay\ndone:\n"
    + answer("1")
)
INCREMENT = "  %v = load i32, ptr %x\n  %w = add i32 %v, 1\n  store i32 %w, ptr %y\n  ret i32 0"
TRIANGLE = """  %count = load i32, ptr %x
  br label %loop
loop:
  %i = phi i32 [ 0, %start ], [ %j, %loop ]
  %s = phi i32 [ 0, %start ], [ %u, %loop ]
  %j = add i32 %i, 1
  %u = add i32 %s, %j
  %more = icmp ult i32 %j, %count
  br i1 %more, label %loop, label %out
out:
  store i32 %u, ptr %y
  ret i32 0"""


@pytest.fixture(scope="module")
def session(client):
    with client.acquire("device_id=one") as held:
        assert held.device.labels["sandbox"] == "bwrap"
        yield held


@pytest.fixture(scope="module")
def kernels(session, make_artifact):
    bodies = {name: (body, strings) for name, (body, strings, _) in CRASHES.items()}
    bodies |= HANGS | {name: it for name, (it, _) in REFUSED.items()}
    bodies |= {"double_fork": (DOUBLE_FORK, ()), "honest": (INCREMENT, ()), "sum": (TRIANGLE, ())}
    texts = {name: kernel(name, *body) for name, body in bodies.items()}
    return session.load(make_artifact(texts))


def value(function, number, limit_s=PATIENCE_S):
    return int(function(np.array([number], np.int32), limit_s=limit_s)[0])


def check_that_it_is_back(kernels):
    """The next call of the session, with everything loaded again, answers."""
    assert value(kernels["honest"], 41) == 42


def test_honest_kernels_give_right_results(kernels):
    assert value(kernels["honest"], 41) == 42
    assert value(kernels["sum"], 100) == 5050


@pytest.mark.parametrize("name", CRASHES)
def test_kernel_that_dies_or_breaks_its_harness_is_a_record(kernels, name):
    with pytest.raises(KernelCrashed) as caught:
        value(kernels[name], 1, limit_s=300.0)  # filling the memory takes a busy host a while
    details = CRASHES[name][2]
    assert {key: caught.value.details.get(key) for key in details} == details
    check_that_it_is_back(kernels)


@pytest.mark.parametrize("name", HANGS)
def test_kernel_that_hangs_is_killed_at_its_limit(kernels, name):
    with pytest.raises(TimeLimit) as caught:
        value(kernels[name], 1, LIMIT_S)
    assert caught.value.details["limit_s"] == f"{LIMIT_S:g}"
    check_that_it_is_back(kernels)


@pytest.mark.parametrize("name", REFUSED)
def test_kernel_is_refused_what_it_asks_for(kernels, name):
    assert value(kernels[name], 1) in REFUSED[name][1]


def test_kernel_cannot_read_the_agents_files(session, make_artifact, data_dir):
    secrets = [path for path in data_dir.rglob("*") if path.is_file() and "cache" not in path.parts]
    assert secrets
    chosen = {f"read_{i}": str(path) for i, path in enumerate(secrets[:40])}
    chosen["read_environment"] = f"/proc/{os.getpid()}/environ"
    texts = {n: kernel(n, *asks(2, "%s0", 0, strings=(path,))) for n, path in chosen.items()}
    loaded = session.load(make_artifact(texts))
    assert {name: value(loaded[name], 1) for name in loaded} == dict.fromkeys(chosen, ENOENT)


def test_flood_of_output_is_cut(client, make_artifact, data_dir):
    limit = Limits.default().output_bytes
    mark = f"\n[output cut after {limit} bytes]\n".encode()
    before = set(data_dir.rglob("output.log"))

    def flood(function):
        with contextlib.suppress(FarmError):  # it never ends by itself
            value(function, 1, 300.0)

    def logs():
        return set(data_dir.rglob("output.log")) - before

    with client.acquire("device_id=two") as held:
        loaded = held.load(make_artifact({"flood": kernel("flood", *HANGS["output_flood"])}))
        flooding = threading.Thread(target=flood, args=(loaded["flood"],))
        flooding.start()
        until(lambda: any(mark in log.read_bytes() for log in logs()), "a log that is cut")
        (log,) = logs()
        assert log.stat().st_size == limit + len(mark)
    flooding.join(PATIENCE_S)
    assert not flooding.is_alive()


def test_forged_result_concerns_its_own_session_only(client, make_artifact):
    # It runs in its harness's process, so it can write to the harness's channel; the request's number it can guess.
    packed = session_pb2.PackedReply(done=1, outputs=struct.pack("<i", 15))
    reply = session_pb2.SessionReply(seq=2, packed=packed).SerializeToString()
    frame = struct.pack("<I", len(reply)) + reply
    forge = call("r", 1, 3, "%s0", len(frame)) + answer("1")
    texts = {
        "forge": kernel("forge", forge, (frame.decode("latin-1"),)),
        "honest": kernel("honest", INCREMENT),
    }
    artifact = make_artifact(texts)
    with client.acquire("device_id=two") as liar, client.acquire("kind=ea") as other:
        lies, truths = liar.load(artifact), other.load(artifact)
        assert value(lies["forge"], 1) == 15
        with pytest.raises(KernelCrashed, match="instead of 3"):
            value(lies["honest"], 1)  # its own harness is out of step, is found out and replaced
        assert value(lies["honest"], 1) == 2
        assert value(truths["honest"], 1) == 2


def test_process_that_was_left_behind_ends_with_the_lease(client, make_artifact):
    before = set(processes_named("farm-session"))
    with client.acquire("device_id=two") as held:
        loaded = held.load(make_artifact({"double_fork": kernel("double_fork", DOUBLE_FORK)}))
        assert [value(loaded["double_fork"], 1) for _ in range(3)] == [1, 1, 1]
        left = set(processes_named("farm-session")) - before
        assert len(left) >= 4
    client.acquire(
        "device_id=two", wait_s=PATIENCE_S
    ).close()  # only when the device is clean again
    assert left.isdisjoint(processes_named("farm-session"))


def processes_named(name):
    """Every process below this one that has a name; other farms of the machine are none of ours."""
    found = []
    for pid in processes.descendants_of(os.getpid()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                found.append(pid)
    return found
