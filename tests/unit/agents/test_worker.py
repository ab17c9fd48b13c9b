"""A worker's parts without processes: frames, control packets, blobs, processes, loaders."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from farm_agents.worker import processes
from farm_agents.worker.blobs import blob_path, keep_blob, read_blob
from farm_agents.worker.control import Exited, Fork, Forked, Kill, Ready, decode, encode
from farm_agents.worker.frames import (
    MAX_FRAME_BYTES,
    MAX_JOINED_BYTES,
    frame_parts,
    read_frame,
    write_frame,
)
from farm_agents.worker.loaders import LoaderSpec
from farm_agents.zygotes import describe_status
from hypothesis import given
from hypothesis import strategies as st

from farm.core.digest import digest_of
from farm.errors import InfrastructureError


@pytest.fixture
def ends():
    a, b = socket.socketpair()
    with a, b:
        yield a, b


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_frames_come_as_they_were_sent(frames):
    a, b = socket.socketpair()
    with a, b:
        for frame in frames:
            write_frame(a, frame)
        a.close()
        assert [read_frame(b) for _ in frames] == frames
        assert read_frame(b) is None


@pytest.mark.parametrize("size", [MAX_JOINED_BYTES, MAX_JOINED_BYTES + 1])
def test_frame_is_one_write_unless_it_is_large(ends, size):
    a, b = ends
    write_frame(a, bytes(size))
    assert len(frame_parts(bytes(size))) == (1 if size == MAX_JOINED_BYTES else 2)
    assert read_frame(b) == bytes(size)


def test_frame_over_the_limit_is_refused_before_it_is_read(ends):
    a, b = ends
    a.sendall(struct.pack("<I", MAX_FRAME_BYTES + 1))
    with pytest.raises(InfrastructureError, match="frame too large"):
        read_frame(b)


def test_frame_that_ends_early_is_refused(ends):
    a, b = ends
    a.sendall(struct.pack("<I", 5) + b"abc")
    a.close()
    with pytest.raises(InfrastructureError, match=r"ended inside a frame \(3 of 5 bytes\)"):
        read_frame(b)


LIMITS = """
import os, resource, subprocess, sys, time
from farm_agents.worker import processes
def soft(pid):
    return resource.prlimit(pid, resource.RLIMIT_CPU)[0]
processes.limit_cpu(3)
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
print(soft(os.getpid()), soft(child.pid))
while time.process_time() < 1.2:
    pass
processes.limit_cpu(100)
print(soft(os.getpid()), soft(child.pid))
child.communicate()
processes.limit_cpu(200)
print(soft(os.getpid()))
"""


def test_limit_on_cpu_time_counts_from_now_for_the_process_and_for_each_child():
    run = subprocess.run(
        [sys.executable, "-c", LIMITS], capture_output=True, text=True, check=True, timeout=180
    )
    assert run.stdout.split() == ["4", "4", "102", "101", "202"]


@pytest.mark.parametrize(
    "message", [Fork(1, {"log": "x", "n": 3}), Kill(2), Ready(3), Forked(4, 5), Exited(6, 139)]
)
def test_control_message_survives_its_packet(message):
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\xff",
        b"[]",
        b"3",
        b"{}",
        b'{"type": "Kill"}',
        b'{"type": "Kill", "child": "1"}',
        b'{"type": "Kill", "child": true}',
        b'{"type": "Kill", "child": 1, "more": 2}',
        b'{"type": "Fork", "child": 1, "config": []}',
        b'{"type": "Message", "child": 1}',
        b'{"type": [], "child": 1}',
    ],
)
def test_control_packet_malformed_is_refused(packet):
    with pytest.raises(InfrastructureError, match="malformed packet"):
        decode(packet)


def test_control_message_over_the_limit_is_refused():
    with pytest.raises(InfrastructureError, match="packet too large"):
        encode(Fork(1, {"log": "x" * (64 << 10)}))


def test_blob_is_kept_and_read_back(tmp_path):
    digest = keep_blob(tmp_path, b"content")
    assert digest == digest_of(b"content")
    assert read_blob(tmp_path, digest) == b"content"


def test_blob_absent_or_damaged_is_named(tmp_path):
    digest = digest_of(b"content")
    with pytest.raises(InfrastructureError, match="unreadable") as caught:
        read_blob(tmp_path, digest)
    assert caught.value.details == {"blob": digest.sha256}
    keep_blob(tmp_path, b"content")
    blob_path(tmp_path, digest).write_bytes(b"CONTENT")
    with pytest.raises(InfrastructureError, match="damaged") as caught:
        read_blob(tmp_path, digest)
    assert caught.value.details == {"blob": digest.sha256}


def test_loader_spec_survives_its_configuration():
    spec = LoaderSpec("qemu", "aarch64", ("llvm",), ("arch:aarch64", "cpu:*"))
    assert LoaderSpec.from_config(spec.to_config()) == spec


@pytest.mark.parametrize(
    "change", [{"kind": "other"}, {"arch": 1}, {"targets": "llvm"}, {"provides": [1]}]
)
def test_loader_configuration_malformed_is_refused(change):
    config = {**LoaderSpec("native", "", (), ()).to_config(), **change}
    with pytest.raises(InfrastructureError, match="malformed loader configuration"):
        LoaderSpec.from_config(config)
    with pytest.raises(InfrastructureError, match="malformed loader configuration"):
        LoaderSpec.from_config("native")


def test_processes_know_their_descent_and_marks():
    me = os.getpid()
    assert me in processes.children_of(os.getppid())
    assert me in processes.descendants_of(os.getppid())
    assert processes.marked("no process has this mark") == []
    processes.kill([])


def test_own_children_are_those_of_proc_until_they_were_waited_for(monkeypatch):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in processes.own_children()
        assert sorted(processes.own_children()) == sorted(processes.children_of(os.getpid()))
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert child.pid in processes.own_children()  # dead, and not waited for
        with monkeypatch.context() as patch:
            patch.setattr(processes, "_PROC", Path("/proc/self/nowhere"))
            patch.setattr(processes, "children_of", lambda pid: [pid])
            assert processes.own_children() == [os.getpid()]
    finally:
        child.kill()
        child.communicate()
    assert child.pid not in processes.own_children()


@pytest.mark.parametrize(
    ("status", "facts"),
    [(11, {"signal": "SIGSEGV"}), (139, {"signal": "SIGSEGV"}), (3 << 8, {"exit_code": "3"})],
)
def test_status_is_described(status, facts):
    assert describe_status(status) == facts
