"""Batches of calls over real gRPC: order, failures in the middle, crashes, limits."""

from __future__ import annotations

import numpy as np
import pytest

from farm.api.v1 import session_pb2, tensor_pb2
from farm.core.wire import digest_from_proto, digest_to_proto

COUNT = 10_000


def number(value):
    return tensor_pb2.Tensor(dtype="int32", shape=[1], inline=np.array([value], "<i4").tobytes())


def call(symbol="increment", value=0, limit_s=5.0, **options):
    return session_pb2.CallRequest(
        module_id=1, symbol=symbol, inputs=[number(value)], limit_s=limit_s, **options
    )


def values_of(batch):
    return [int(np.frombuffer(reply.outputs[0].inline, "<i4")[0]) for reply in batch.replies]


async def ask(client, calls):
    await client.send(batch=session_pb2.BatchRequest(calls=calls))
    return await client.receive()


def test_batch_with_a_crash_in_the_middle_keeps_what_came_before_it(run_farm, hostile):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        for symbol in ("segfault", "leave"):
            calls = [call(value=value) for value in range(9)]
            calls.insert(5, call(symbol))
            batch = (await ask(client, calls)).batch
            assert (values_of(batch), batch.error.code) == ([1, 2, 3, 4, 5], "KERNEL_CRASHED")
            again = (await ask(client, [call(value=1)])).batch
            assert (values_of(again), again.HasField("error")) == ([2], False)

    run_farm(story)


def test_batch_with_a_call_that_hangs_ends_at_the_limit_of_all(run_farm, hostile):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        calls = [call(value=1, limit_s=1.0), call("spin", limit_s=0.2), call(value=2, limit_s=1.0)]
        batch = (await ask(client, calls)).batch
        assert (values_of(batch), batch.error.code) == ([2], "TIME_LIMIT")
        assert values_of((await ask(client, [call(value=5)])).batch) == [6]

    run_farm(story)


def test_batch_stops_at_a_call_that_is_refused_and_the_worker_lives(run_farm, hostile):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        wrong = session_pb2.CallRequest(module_id=1, symbol="increment", limit_s=5)
        for bad, code in [
            (wrong, "INVALID_ARGUMENTS"),
            (call("nothing"), "NOT_FOUND"),
            (session_pb2.CallRequest(module_id=2, symbol="increment", limit_s=5), "NOT_FOUND"),
        ]:
            batch = (await ask(client, [call(value=1), bad, call(value=2)])).batch
            assert (values_of(batch), batch.error.code) == ([2], code)
            await client.send(batch=session_pb2.BatchRequest(calls=[call(value=1)], follows=1))
            assert (await client.receive()).error.code == "CANCELLED"

    run_farm(story)


def test_batch_mixes_short_calls_timed_ones_and_blobs(run_farm, hostile):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        digest = digest_to_proto(tracker.blobs.put(np.array([7], "<i4").tobytes()))
        from_store = session_pb2.CallRequest(module_id=1, symbol="increment", limit_s=5)
        from_store.inputs.add(dtype="int32", shape=[1], blob=digest)
        batch = (await ask(client, [call(value=1), call(value=2, repeat=3), from_store])).batch
        assert values_of(batch) == [2, 3, 8]
        assert [len(reply.samples_ns) for reply in batch.replies] == [0, 3, 0]

    run_farm(story)


def test_batch_outside_the_limits_is_refused_and_the_session_goes_on(run_farm, hostile):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        assert (await ask(client, [call()])).error.code == "NOT_FOUND"  # nothing is loaded
        await client.load(hostile)
        for calls in (
            [],
            [call(limit_s=0.05)] * (COUNT + 1),
            [call(limit_s=400), call(limit_s=201)],
            [call(limit_s=float("nan"))],
            [call(repeat=-1)],
        ):
            assert (await ask(client, calls)).error.code == "INVALID_INPUT"
        assert values_of((await ask(client, [call(value=3)])).batch) == [4]

    run_farm(story)


def test_batch_with_large_outputs_has_them_in_the_store(run_farm, large):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(large)
        data = np.arange(100_000, dtype="<i4")
        digest = digest_to_proto(tracker.blobs.put(data.tobytes()))
        one = session_pb2.CallRequest(module_id=1, symbol="f", limit_s=10)
        one.inputs.add(dtype="int32", shape=[100_000], blob=digest)
        batch = (await ask(client, [one, one])).batch
        assert not batch.HasField("error")
        for reply in batch.replies:
            stored = tracker.blobs.data[digest_from_proto(reply.outputs[0].blob)]
            assert stored == (data + 1).tobytes()

    run_farm(story)


@pytest.fixture(scope="session")
def large():
    """An artifact with ``f(x: int32[100000]) -> x + 1``."""
    from farm import te
    from farm.artifact import assemble
    from farm.codegen import compile_function
    from farm.ir import serialise
    from farm.target import Target

    x = te.placeholder((100_000,), "int32", name="x")
    built = te.function("f", [x, te.compute((100_000,), lambda i: x[i] + 1, name="y")])
    target = Target.parse("llvm")
    return assemble(target, [compile_function(serialise(built), "device", target)])
