"""Packed calls give what the long way gives; replies survive in their file."""

from __future__ import annotations

import os

import numpy as np
import pytest
from farm_agents.requests import check_follows, check_packed
from farm_agents.worker import processes
from farm_agents.worker.blobs import blob_path
from farm_agents.worker.replies import (
    MAX_BYTES,
    NAME,
    Replies,
    read_made,
    read_outputs,
    read_replies,
)
from farm_agents.worker.session import Session
from hypothesis import given
from hypothesis import strategies as st

from farm import te
from farm.api.v1 import session_pb2, tensor_pb2
from farm.artifact import assemble
from farm.codegen import compile_function
from farm.core.digest import digest_of
from farm.core.limits import MAX_CALLS, MAX_FOLLOWS, MAX_PACKED_BYTES
from farm.core.wire import digest_to_proto
from farm.errors import DeviceFault, InvalidInput
from farm.ir import serialise
from farm.runtime.interface import ShortCall
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


ADD = session_pb2.PackedFunction(module_id=1, symbol="add", input_bytes=48, output_bytes=24)
SCALE = session_pb2.PackedFunction(module_id=1, symbol="scale", input_bytes=16, output_bytes=16)
MATRICES = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=6, max_size=6).map(
    lambda values: np.array(values, np.int32).reshape(2, 3)
)
CALLS = st.lists(st.tuples(MATRICES, MATRICES, st.booleans()), min_size=1, max_size=6)


def packed(session, functions, order, inputs):
    """Return the reply to packed calls, and what is in the file."""
    request = session_pb2.SessionRequest(seq=1)
    request.packed.functions.extend(functions)
    request.packed.order.extend(order)
    request.packed.inputs = inputs
    reply = session.answer(request).packed
    with (session.out / NAME).open("rb") as file:
        made = read_made(file.fileno())
        sizes = [functions[index].output_bytes for index in order[:made]]
        return reply, made, read_outputs(file.fileno(), sum(sizes))


@given(CALLS)
def test_packed_calls_give_what_each_gives_the_long_way(session, plan):
    calls, order, inputs = [], [], []
    for x, y, adds in plan:
        if adds:
            calls.append(add(tensor(x), stored(session, y)))
            inputs += [x.tobytes(), y.tobytes()]
        else:
            z = tensor(x.reshape(-1)[:4].astype(np.float32))
            calls.append(session_pb2.CallRequest(module_id=1, symbol="scale", inputs=[z]))
            inputs.append(z.inline)
        order.append(0 if adds else 1)
    reply, made, outputs = packed(session, [ADD, SCALE], order, b"".join(inputs))
    long = [session._call(call).outputs[0].inline for call in calls]
    assert (reply.done, made, reply.HasField("error")) == (len(calls), len(calls), False)
    assert reply.outputs == outputs == b"".join(long)


@pytest.mark.parametrize("calls", [2000, 3000])
def test_packed_outputs_that_are_many_are_left_in_the_file(session, calls):
    inputs = np.arange(12 * calls, dtype=np.int32).reshape(calls, 2, 6)
    reply, made, outputs = packed(session, [ADD], [0] * calls, inputs.tobytes())
    assert (reply.done, made) == (calls, calls)
    assert outputs == inputs.sum(axis=1, dtype=np.int32).tobytes()
    assert reply.outputs == (outputs if calls == 2000 else b"")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"symbol": "none"}, "NOT_FOUND"),
        ({"module_id": 7}, "NOT_FOUND"),
        ({"input_bytes": 47}, "INVALID_ARGUMENTS"),
        ({"output_bytes": 25}, "INVALID_ARGUMENTS"),
    ],
)
def test_packed_calls_of_what_is_not_so_are_not_made(session, change, code):
    wrong = session_pb2.PackedFunction()
    wrong.CopyFrom(ADD)
    for name, value in change.items():
        setattr(wrong, name, value)
    reply, made, _ = packed(session, [ADD, wrong], [0, 1], bytes(96))
    assert (reply.error.code, reply.done, made, reply.outputs) == (code, 0, 0, b"")


@pytest.mark.parametrize(
    "options",
    [
        {"order": []},
        {"order": [0] * (MAX_CALLS + 1)},
        {"order": [0, 2]},
        {"functions": []},
        {"functions": [ADD] * 1025},
        {"inputs": bytes(63)},
        {"inputs": bytes(65)},
        {"limit_s": 601},
        {"limit_s": float("nan")},
        {"limit_s": -1},
        {"follows": MAX_FOLLOWS + 1},
        {
            "functions": [session_pb2.PackedFunction(output_bytes=MAX_PACKED_BYTES // 2 + 1)],
            "order": [0, 0],
            "inputs": b"",
        },
    ],
    ids=lambda options: "-".join(options),
)
def test_packed_calls_outside_the_limits_are_refused(options):
    fields = {"functions": [ADD, SCALE], "order": [0, 1], "inputs": bytes(64), **options}
    request = session_pb2.PackedRequest(**fields)
    with pytest.raises(InvalidInput):
        check_follows(request.follows) or check_packed(request)


class Refusing(ShortCall):
    """Refuses every third call."""

    def __init__(self, inner):
        self.inner, self.count = inner, 0
        self.input_bytes, self.output_bytes = inner.input_bytes, inner.output_bytes

    def __call__(self, *place):
        self.count += 1
        if self.count % 3 == 0:
            raise DeviceFault("add: refused; call again")
        self.inner(*place)


def test_packed_calls_stop_at_one_that_fails_with_what_came_before_it(session):
    key, inner = (1, "add"), session.modules[0].short_call("add")
    session._shorts[key] = Refusing(inner)
    try:
        reply, made, outputs = packed(session, [ADD], [0] * 5, b"\1" * 48 * 5)
    finally:
        session._shorts[key] = inner
    assert (reply.error.code, reply.done, made) == ("DEVICE_FAULT", 2, 2)
    assert reply.outputs == outputs == b"\2" * 48


@given(MATRICES, MATRICES)
def test_short_call_of_any_module_gives_what_the_fast_one_gives(session, x, y):
    module = session.modules[0]
    plain = ShortCall(module, module.function("add"))
    fast = module.short_call("add")
    assert type(fast) is not ShortCall
    inputs = memoryview(b"abc" + x.tobytes() + y.tobytes() + b"abc")
    results = []
    for call in (plain, fast):
        outputs = bytearray(32)
        call(inputs, 3, memoryview(outputs), 4)
        results.append(bytes(outputs))
    assert results == [bytes(4) + (x + y).tobytes() + bytes(4)] * 2


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
        replies.made[0] = 5
        assert (read_replies(fd), read_made(fd)) == (b"abc", 5)
        replies.clear()
        assert (read_replies(fd), read_made(fd)) == (b"", 0)
        with (tmp_path / NAME).open("r+b") as file:  # a hostile worker says anything
            file.write(b"\xff" * 8)
        assert len(read_replies(fd)) == MAX_BYTES
        os.truncate(tmp_path / NAME, 3)
        assert (read_replies(fd), read_made(fd), read_outputs(fd, 9)) == (b"", 0, b"")
    finally:
        os.close(fd)
