"""The outbox: whole records whatever happens between two steps, bounds, full disks, damage."""

from __future__ import annotations

import errno
import os

import pytest
from farm_agents.outbox import Outbox, digests_of

from farm.api.v1 import agent_pb2, job_pb2, tensor_pb2
from farm.core.digest import digest_of
from farm.core.wire import digest_to_proto
from farm.errors import InfrastructureError

BIG = b"output" * 1000
STEPS = 21
"""Calls that change the disk, from the begin of an attempt to its removal."""


def attempt(name="job.1", **outcome):
    return agent_pb2.RunAttempt(
        attempt_id=name, epoch=3, started_at=10.0, **(outcome or {"running": True})
    )


def finished(name="job.1"):
    output = tensor_pb2.Tensor(dtype="int8", shape=[6000], blob=digest_to_proto(digest_of(BIG)))
    small = tensor_pb2.Tensor(dtype="int8", shape=[1], inline=b"x")
    done = attempt(name, result=job_pb2.JobResult(outputs=[output, small], samples_ns=[5]))
    done.log_chunks.append(digest_to_proto(digest_of(b"noise\n")))
    return done


def tree(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.fixture
def outbox(tmp_path):
    box = Outbox(tmp_path / "outbox")
    assert box.load() == []
    return box


def keep_all(box, tmp_path, name="job.1"):
    """Every durable step of an attempt, in the order that the agent takes them."""
    source = tmp_path / "worker-file"
    if not source.exists():
        source.write_bytes(BIG)
    box.begin(attempt(name))
    assert box.keep(name, b"noise\n") == digest_of(b"noise\n")
    box.keep_file(name, source, digest_of(BIG))
    box.finish(finished(name))


def test_outbox_gives_back_what_it_kept_after_a_restart(outbox, tmp_path):
    keep_all(outbox, tmp_path)
    again = Outbox(outbox.root)
    assert again.load() == [finished()]
    for content in (b"noise\n", BIG):
        assert again.blob("job.1", digest_of(content)).read_bytes() == content
    assert list(digests_of(finished())) == [
        (digest_of(content).sha256, len(content)) for content in (b"noise\n", BIG)
    ]
    again.remove("job.1")
    assert tree(outbox.root) == []
    again.remove("job.1")  # once more changes nothing


def test_outbox_attempt_that_was_running_is_lost_after_a_restart(outbox):
    outbox.begin(attempt())
    (found,) = Outbox(outbox.root).load()
    assert (found.attempt_id, found.epoch, found.error.code) == ("job.1", 3, "DEVICE_LOST")


class Crash(BaseException):
    """The process is gone: nothing after this happens."""


@pytest.fixture
def crash_at(monkeypatch):
    """Let the process die at the n-th call that changes the disk; nothing of it works after that."""

    def arm(number):
        left = [number]

        def wrap(name):
            real = getattr(os, name)

            def call(*args, **options):
                left[0] -= 1
                if left[0] < 0:
                    raise Crash(name)
                return real(*args, **options)

            monkeypatch.setattr(os, name, call)

        for name in ("fsync", "replace", "unlink", "mkdir", "rmdir"):
            wrap(name)
        return left

    yield arm
    monkeypatch.undo()


@pytest.mark.parametrize("number", range(STEPS))
def test_outbox_crash_between_any_two_steps_leaves_a_whole_state(
    outbox, tmp_path, crash_at, monkeypatch, number
):
    crash_at(number)
    steps = "nothing"
    try:
        box = Outbox(outbox.root)
        keep_all(box, tmp_path)
        steps = "finished"
        box.remove("job.1")
        steps = "removed"
    except Crash:
        pass
    monkeypatch.undo()
    again = Outbox(outbox.root)
    found = again.load()
    assert found in ([], [finished()]) or (
        steps == "nothing" and [it.error.code for it in found] == ["DEVICE_LOST"]
    )
    if number >= STEPS - 4:  # the result was kept, and is being forgotten
        assert steps != "nothing"
    if found == [finished()]:  # then every blob that it names is here
        assert all(again.blob("job.1", digest_of(content)) for content in (b"noise\n", BIG))
    if not found:
        assert tree(outbox.root) == []
    assert not [name for name in tree(outbox.root) if "/." in name or name.startswith(".")]


def test_outbox_crash_points_cover_every_step(outbox, tmp_path, crash_at):
    left = crash_at(1000)
    keep_all(outbox, tmp_path)
    outbox.remove("job.1")
    assert 1000 - left[0] == STEPS


@pytest.mark.parametrize("step", range(4))
def test_outbox_full_disk_is_the_farms_fault_and_leaves_nothing_torn(
    outbox, tmp_path, monkeypatch, step
):
    source = tmp_path / "source"
    source.write_bytes(BIG)
    steps = [
        lambda: outbox.begin(attempt()),
        lambda: outbox.keep("job.1", b"noise\n"),
        lambda: outbox.keep_file("job.1", source, digest_of(BIG)),
        lambda: outbox.finish(finished()),
    ]
    for do in steps[:step]:
        do()
    before = tree(outbox.root)

    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InfrastructureError, match="No space left on device"):
            steps[step]()
    after = tree(outbox.root)
    assert [name for name in after if not name.endswith(".blobs")] == [
        name for name in before if not name.endswith(".blobs")
    ]


def test_outbox_over_its_limit_refuses_more(tmp_path):
    box = Outbox(tmp_path / "outbox", limit_bytes=10)
    box.load()
    box.begin(attempt())
    box.keep("job.1", b"12345678")
    with pytest.raises(InfrastructureError, match="it would hold 11 of 10 bytes"):
        box.keep("job.1", b"abc")
    again = Outbox(tmp_path / "outbox", limit_bytes=10)
    again.load()
    with pytest.raises(InfrastructureError, match="it would hold 11 of 10 bytes"):
        again.keep("job.2", b"abc")
    again.remove("job.1")
    again.keep("job.2", b"abc")


def test_outbox_file_that_is_something_else_is_refused(outbox, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"something else")
    outbox.begin(attempt())
    with pytest.raises(InfrastructureError, match="something else"):
        outbox.keep_file("job.1", source, digest_of(BIG))
    assert tree(outbox.root) == ["job.1.blobs", "job.1.run"]


def test_outbox_damaged_record_and_blob_are_seen(outbox, tmp_path):
    keep_all(outbox, tmp_path, "job.1")
    keep_all(outbox, tmp_path, "job.2")
    record = outbox.root / "job.1.run"
    data = bytearray(record.read_bytes())
    data[-1] ^= 1
    record.write_bytes(data)
    blob = outbox.root / "job.2.blobs" / digest_of(BIG).sha256
    blob.write_bytes(bytes(len(BIG)))
    again = Outbox(outbox.root)
    assert again.load() == [finished("job.2")]
    assert again.blob("job.2", digest_of(BIG)) is None
    assert again.blob("job.2", digest_of(b"noise\n")) is not None
    assert not [name for name in tree(outbox.root) if name.startswith("job.1")]
