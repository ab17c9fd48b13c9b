"""Packed calls over real gRPC: order, crashes and limits in the middle, and what follows what failed."""

from __future__ import annotations

import os
import signal

import numpy as np

from farm.api.v1 import session_pb2, tensor_pb2
from farm.core.limits import MAX_CALLS

FUNCTIONS = [
    session_pb2.PackedFunction(module_id=1, symbol=symbol, input_bytes=4, output_bytes=4)
    for symbol in ("increment", "segfault", "leave", "spin")
]
INCREMENT, SEGFAULT, LEAVE, SPIN = range(4)


def pack(order, **options):
    """Return packed calls, each given its own number."""
    inputs = np.arange(len(order), dtype="<i4").tobytes()
    fields = {"functions": FUNCTIONS, "order": order, "inputs": inputs, "limit_s": 20} | options
    return session_pb2.PackedRequest(**fields)


async def ask(client, order, **options):
    await client.send(packed=pack(order, **options))
    return await client.receive()


def gave(reply):
    """Return how many calls were made, what they gave, and the code of the error."""
    packed = reply.packed
    return packed.done, np.frombuffer(packed.outputs, "<i4").tolist(), packed.error.code


def test_packed_calls_of_any_number_give_all_outputs_in_order(run_farm, hostile):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        assert (await ask(client, [INCREMENT])).error.code == "NOT_FOUND"  # nothing is loaded
        await client.load(hostile)
        for count in (1, MAX_CALLS, 3):  # later ones use the buffers of those before
            reply = await ask(client, [INCREMENT] * count)
            assert gave(reply) == (count, list(range(1, count + 1)), "")

    run_farm(story)


def test_packed_calls_with_a_crash_in_the_middle_keep_what_came_before_and_end_what_follows(
    run_farm, hostile
):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        for bad, limit_s, code in (
            (SEGFAULT, 20, "KERNEL_CRASHED"),
            (LEAVE, 20, "KERNEL_CRASHED"),
            (SPIN, 0.3, "TIME_LIMIT"),
        ):
            # All are sent before the first is answered, as a client does that does not wait.
            await client.send(packed=pack([INCREMENT] * 5 + [bad] + [INCREMENT], limit_s=limit_s))
            await client.send(packed=pack([INCREMENT], follows=1))
            await client.send(packed=pack([INCREMENT], follows=1))
            await client.send(packed=pack([INCREMENT, INCREMENT]))
            await client.send(packed=pack([INCREMENT], follows=1))
            assert gave(await client.receive()) == (5, [1, 2, 3, 4, 5], code)
            assert (await client.receive()).error.code == "CANCELLED"
            assert (await client.receive()).error.code == "CANCELLED"
            assert gave(await client.receive()) == (2, [1, 2], "")
            assert gave(await client.receive()) == (1, [1], "")

    run_farm(story)


def test_calls_that_a_worker_never_began_give_nothing_of_the_calls_before_them(
    run_farm, hostile, tree
):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        assert gave(await ask(client, [INCREMENT] * 3)) == (3, [1, 2, 3], "")
        for pid in tree.workers():
            os.kill(pid, signal.SIGSTOP)
        assert gave(await ask(client, [INCREMENT] * 3, limit_s=0.1)) == (0, [], "TIME_LIMIT")
        one = session_pb2.CallRequest(module_id=1, symbol="increment", limit_s=0.5)
        one.inputs.append(tensor_pb2.Tensor(dtype="int32", shape=[1], inline=bytes(4)))
        await client.send(batch=session_pb2.BatchRequest(calls=[one]))
        assert len((await client.receive()).batch.replies) == 1
        for pid in tree.workers():
            os.kill(pid, signal.SIGSTOP)
        await client.send(batch=session_pb2.BatchRequest(calls=[one]))
        reply = (await client.receive()).batch
        assert (len(reply.replies), reply.error.code) == (0, "TIME_LIMIT")

    run_farm(story)
