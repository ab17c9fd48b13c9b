"""Short calls give what the long way gives; replies of a batch survive in their file."""

from __future__ import annotations

import os

import numpy as np
import pytest
from farm_agents.worker import processes
from farm_agents.worker.blobs import blob_path
from farm_agents.worker.replies import MAX_BYTES, NAME, Replies, read_replies
from farm_agents.worker.session import Session
from hypothesis import given
from hypothesis import strategies as st

from farm import te
from farm.api.v1 import session_pb2, tensor_pb2
from farm.artifact import assemble
from farm.codegen import compile_function
from farm.core.digest import digest_of
from farm.core.wire import digest_to_proto
from farm.ir import serialise
from farm.runtime.local import local_capabilities
from farm.runtime.native import native_loader
from farm.target import Target


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """A worker's session with ``add(x, y: int32[2, 3]) -> x + y`` and ``scale(x: float32[4]) -> 2 x``."""
    x, y = (te.placeholder((2, 3), "int32", name=name) for name in "xy")
    z = te.placeholder((4,), "float32", name="z")
    functions = [
        te.function("add", [x, y, te.compute((2, 3), lambda i, j: x[i, j] + y[i, j], name="s")]),
        te.function("scale", [z, te.compute((4,), lambda i: z[i] * 2.0, name="t")]),
    ]
    target, here = Target.parse("llvm"), local_capabilities()
    modules = [compile_function(serialise(one), "device", target) for one in functions]
    module = native_loader(here.targets, here.provides).load(assemble(target, modules))
    folder = tmp_path_factory.mktemp("worker")
    return Session(None, folder, folder, processes.limit_own_cpu, Replies(folder), [module])


def tensor(array):
    return tensor_pb2.Tensor(
        dtype=array.dtype.name, shape=array.shape, inline=np.ascontiguousarray(array).tobytes()
    )


def stored(session, array):
    digest = digest_of(array.tobytes())
    path = blob_path(session.cache, digest)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(array.tobytes())
    message = tensor_pb2.Tensor(dtype=array.dtype.name, shape=array.shape)
    message.blob.CopyFrom(digest_to_proto(digest))
    return message


def add(x, y, **options):
    return session_pb2.CallRequest(module_id=1, symbol="add", inputs=[x, y], **options)


def batched(session, calls):
    """Return what a batch gives: its replies, and its error."""
    request = session_pb2.SessionRequest(seq=1, batch=session_pb2.BatchRequest(calls=calls))
    error = session.answer(request).batch.error
    with (session.out / NAME).open("rb") as file:
        data = read_replies(file.fileno())
    return list(session_pb2.BatchReply.FromString(data).replies), error


MATRICES = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=6, max_size=6).map(
    lambda values: np.array(values, np.int32).reshape(2, 3)
)
CALLS = st.lists(
    st.tuples(MATRICES, MATRICES, st.sampled_from(["short", "limit", "blob", "scale"])),
    min_size=1,
    max_size=6,
)


@given(CALLS)
def test_batch_of_any_calls_gives_what_each_gives_the_long_way(session, plan):
    calls = []
    for x, y, how in plan:
        match how:
            case "short":
                calls.append(add(tensor(x), tensor(y)))
            case "limit":
                calls.append(add(tensor(x), tensor(y), limit_s=3))
            case "blob":
                calls.append(add(stored(session, x), tensor(y)))
            case _:
                z = tensor(x.reshape(-1)[:4].astype(np.float32))
                calls.append(session_pb2.CallRequest(module_id=1, symbol="scale", inputs=[z]))
    replies, error = batched(session, calls)
    assert error.code == ""
    assert replies == [session._call_long(call) for call in calls]
    assert [session_pb2.CallReply.FromString(session._call(call)[0]) for call in calls] == replies


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (add(tensor(np.zeros((2, 3), np.int32)), tensor(np.zeros((3, 2), np.int32))), 1),
        (add(tensor(np.zeros((2, 3), np.int32)), tensor(np.zeros((2, 3), np.float32))), 1),
        (session_pb2.CallRequest(module_id=1, symbol="add"), 1),
        (session_pb2.CallRequest(module_id=1, symbol="none"), 2),
        (session_pb2.CallRequest(module_id=7, symbol="add"), 2),
    ],
)
def test_batch_with_a_wrong_call_ends_there_with_the_long_ways_error(session, wrong, code):
    ones = tensor(np.ones((2, 3), np.int32))
    replies, error = batched(session, [add(ones, ones), wrong, add(ones, ones)])
    assert [reply.outputs[0].inline for reply in replies] == [np.full(6, 2, "<i4").tobytes()]
    assert error.code == {1: "INVALID_ARGUMENTS", 2: "NOT_FOUND"}[code]


def test_batch_with_timed_calls_has_their_samples(session):
    ones = tensor(np.ones((2, 3), np.int32))
    replies, _ = batched(session, [add(ones, ones), add(ones, ones, repeat=2), add(ones, ones)])
    assert [len(reply.samples_ns) for reply in replies] == [0, 2, 0]


def test_short_call_does_not_see_what_an_earlier_one_left(session):
    short = session.modules[0].short_call("add")
    first = short([bytes(24), bytes(24)])
    assert first == [bytes(24)]
    assert short([b"\1" * 24, bytes(24)]) == [b"\1" * 24]
    assert first == [bytes(24)]  # it is no view of the buffers


def test_replies_that_are_too_large_are_refused_and_a_new_batch_begins_empty(tmp_path):
    replies = Replies(tmp_path)
    half = bytes(MAX_BYTES // 2)
    assert [replies.add(half), replies.add(half), replies.add(b"x")] == [True, True, False]
    fd = os.open(tmp_path / NAME, os.O_RDONLY)
    try:
        assert len(read_replies(fd)) == MAX_BYTES
        replies.clear()
        assert read_replies(fd) == b""
        replies.add(b"abc")
        assert read_replies(fd) == b"abc"
        with (tmp_path / NAME).open("r+b") as file:  # a hostile worker says anything
            file.write(b"\xff" * 8)
        assert len(read_replies(fd)) == MAX_BYTES
        os.truncate(tmp_path / NAME, 3)
        assert read_replies(fd) == b""
    finally:
        os.close(fd)
