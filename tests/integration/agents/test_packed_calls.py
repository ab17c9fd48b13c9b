"""Packed calls over real gRPC: order, crashes, limits, what follows what failed, and what comes with its module."""

from __future__ import annotations

import asyncio
import os
import signal

import numpy as np

from farm.api.v1 import session_pb2, tensor_pb2
from farm.core.limits import MAX_CALLS, MAX_FIRST_OUTPUT_BYTES
from farm.core.wire import digest_to_proto

FUNCTIONS = [
    session_pb2.PackedFunction(module_id=1, symbol=symbol, input_bytes=4, output_bytes=4)
    for symbol in ("increment", "segfault", "leave", "spin", "chatter")
]
INCREMENT, SEGFAULT, LEAVE, SPIN, CHATTER = range(5)


def pack(order, **options):
    """Return packed calls, each given its own number."""
    inputs = np.arange(len(order), dtype="<i4").tobytes()
    fields = {"functions": FUNCTIONS, "order": order, "inputs": inputs, "limit_s": 60} | options
    return session_pb2.PackedRequest(**fields)


async def ask(client, order, **options):
    await client.send(packed=pack(order, **options))
    return await client.receive()


def gave(reply):
    """Return how many calls were made, what they gave, and the code of the error."""
    return gave_all(reply.packed)


def gave_all(packed):
    """Return the same of the calls themselves."""
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
            (SEGFAULT, 60, "KERNEL_CRASHED"),
            (LEAVE, 60, "KERNEL_CRASHED"),
            (SPIN, 2.0, "TIME_LIMIT"),
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
        one = session_pb2.CallRequest(module_id=1, symbol="increment", limit_s=60)
        one.inputs.append(tensor_pb2.Tensor(dtype="int32", shape=[1], inline=bytes(4)))
        await client.send(batch=session_pb2.BatchRequest(calls=[one]))
        assert len((await client.receive()).batch.replies) == 1
        for pid in tree.workers():
            os.kill(pid, signal.SIGSTOP)
        one.limit_s = 0.1
        await client.send(batch=session_pb2.BatchRequest(calls=[one]))
        reply = (await client.receive()).batch
        assert (len(reply.replies), reply.error.code) == (0, "TIME_LIMIT")

    run_farm(story)


def test_calls_that_come_with_their_module_are_made_once_it_is_loaded_and_never_again(
    run_farm, hostile
):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        artifact = digest_to_proto(tracker.blobs.put(hostile.to_bytes()))
        unnamed = [
            session_pb2.PackedFunction(symbol=it.symbol, input_bytes=4, output_bytes=4)
            for it in FUNCTIONS
        ]

        async def load(calls, **options):
            packed = pack(calls, **{"functions": unnamed} | options)
            await client.send(load=session_pb2.LoadRequest(artifact=artifact, calls=packed))
            return await client.receive()

        assert (await load([INCREMENT, SEGFAULT])).error.code == "KERNEL_CRASHED"
        assert (await ask(client, [INCREMENT])).error.code == "NOT_FOUND"  # nothing is loaded
        for refused in (
            {"functions": FUNCTIONS},
            {"follows": 1},
            {"limit_s": -1.0},
            {"functions": [wide(unnamed[0])]},
        ):
            reply = await load([INCREMENT], **refused)
            assert reply.error.code == "INVALID_INPUT", refused
        reply = (await load([INCREMENT, CHATTER])).loaded
        assert reply.module_id == 1  # what failed took no number
        assert gave_all(reply.called)[::2] == (2, "")
        assert gave(await ask(client, [SEGFAULT])) == (0, [], "KERNEL_CRASHED")
        assert gave(await ask(client, [CHATTER]))[::2] == (1, "")  # loaded again by itself
        (log,) = (spec.work_dir / "sessions").glob("*/output.log")
        async with asyncio.timeout(60.0):
            while log.read_text().count("noise") < 2 * 2:
                await asyncio.sleep(0.01)
        assert log.read_text() == "noise\n" * 2 * 2  # twice a call; not once more with the loading
        unknown = [session_pb2.PackedFunction(symbol="none", input_bytes=4, output_bytes=4)]
        reply = (await load([0], functions=unknown)).loaded
        assert (reply.module_id, *gave_all(reply.called)) == (2, 0, [], "NOT_FOUND")

    run_farm(story)


def wide(function):
    """Return a function that says that it gives more than first calls may."""
    copy = session_pb2.PackedFunction()
    copy.CopyFrom(function)
    copy.output_bytes = MAX_FIRST_OUTPUT_BYTES + 1
    return copy
