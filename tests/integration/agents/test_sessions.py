"""Sessions of an agent over real gRPC: calls, crashes, limits, and what is left afterwards."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from farm_agents.child import Child
from farm_agents.device import SPARES
from farm_agents.worker.processes import cpu_time_s

from farm.api.v1 import agent_pb2, device_pb2, session_pb2, tensor_pb2
from farm.core.digest import digest_of
from farm.core.limits import MAX_INLINE_ARTIFACT_BYTES
from farm.core.wire import digest_to_proto


def number(value):
    return tensor_pb2.Tensor(dtype="int32", shape=[1], inline=np.array([value], "<i4").tobytes())


def value_of(reply):
    (output,) = reply.called.outputs
    assert (output.dtype, list(output.shape)) == ("int32", [1])
    return int(np.frombuffer(output.inline, "<i4")[0])


def test_session_load_and_call_gives_outputs_and_samples(run_farm, hostile):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        loaded = (await client.load(hostile)).loaded
        assert loaded.module_id == 1
        assert [f.symbol for f in loaded.functions] == sorted(hostile.symbols)
        assert {f.target for f in loaded.functions} == {s.target for s in hostile.sections}
        assert (
            loaded.functions[0].signature == hostile.symbols[loaded.functions[0].symbol].to_json()
        )
        reply = await client.call("increment", number(41), repeat=3)
        assert value_of(reply) == 42
        assert len(reply.called.samples_ns) == 3

    run_farm(story)


def test_session_kernel_that_dies_is_an_error_and_the_next_call_works(run_farm, hostile):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        for symbol, facts in (
            ("segfault", {"signal": "SIGSEGV"}),
            ("trap", {"signal": "SIGILL"}),
            ("leave", {"exit_code": "3"}),
        ):
            error = (await client.call(symbol, number(1))).error
            assert (error.code, dict(error.details)) == ("KERNEL_CRASHED", facts)
            assert value_of(await client.call("increment", number(1))) == 2

    run_farm(story)


def test_artifact_that_came_with_the_request_needs_no_store_also_after_a_crash(run_farm, hostile):
    data = hostile.to_bytes()
    load = session_pb2.LoadRequest(artifact=digest_to_proto(digest_of(data)), inline=data)

    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.send(load=load)
        assert (await client.receive()).loaded.module_id == 1
        assert value_of(await client.call("increment", number(1))) == 2
        assert (await client.call("segfault", number(1))).error.code == "KERNEL_CRASHED"
        assert value_of(await client.call("increment", number(1))) == 2
        assert tracker.blobs.reads == []

    run_farm(story)


def test_artifact_that_is_not_what_the_request_says_is_refused_and_the_session_goes_on(
    run_farm, hostile
):
    large = bytes(MAX_INLINE_ARTIFACT_BYTES + 1)

    async def story(tracker, spec):
        client = await tracker.lease(1)
        for named, inline in ((hostile.to_bytes(), bytes(5)), (large, large)):
            artifact = digest_to_proto(digest_of(named))
            await client.send(load=session_pb2.LoadRequest(artifact=artifact, inline=inline))
            error = (await client.receive()).error
            assert error.code == "INVALID_INPUT"
            assert f"inline artifact of {len(inline)} bytes" in error.message
        assert (await client.load(hostile)).loaded.module_id == 1

    run_farm(story)


def test_session_kernel_that_hangs_is_killed_at_its_limit_and_the_next_call_works(
    run_farm, hostile, tree
):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        start = asyncio.get_running_loop().time()
        error = (await client.call("spin", number(1), limit_s=0.3)).error
        assert asyncio.get_running_loop().time() - start >= 0.3
        assert (error.code, dict(error.details)) == ("TIME_LIMIT", {"limit_s": "0.3"})
        assert tree.workers() == []
        assert value_of(await client.call("increment", number(1))) == 2

    run_farm(story)


def test_session_kernel_that_prints_does_not_disturb_the_channel(run_farm, hostile):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        assert value_of(await client.call("chatter", number(6))) == 7
        (log,) = (spec.work_dir / "sessions").glob("*/output.log")
        assert log.read_text() == "noise\nnoise\n"

    run_farm(story)


def test_session_kernel_that_writes_into_the_channel_is_killed(run_farm, hostile):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        error = (await client.call("forge", number(6), limit_s=60)).error
        assert error.code == "KERNEL_CRASHED"
        assert "channel" in error.message
        assert value_of(await client.call("increment", number(1))) == 2

    run_farm(story)


def test_lease_end_leaves_no_process_and_no_file(run_farm, hostile, tree):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        assert value_of(await client.call("orphan", number(1))) == 2
        # The session's child, its dead child, the orphan.
        await tracker.until(lambda: len(tree.workers()) == 3)
        await tracker.want(leases=[])
        await tracker.device_is("IDLE", 1)
        assert tree.workers() == []
        assert list((spec.work_dir / "sessions").iterdir()) == []

    run_farm(story)


def test_lease_end_during_a_call_kills_it(run_farm, hostile, tree):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        request = session_pb2.CallRequest(module_id=1, symbol="spin", inputs=[number(1)])
        (worker,) = tree.workers()
        before = cpu_time_s(worker)
        await client.send(call=request)
        await tracker.until(lambda: cpu_time_s(worker) > before + 0.1)
        await tracker.want(leases=[])
        await tracker.device_is("IDLE", 1)
        assert tree.workers() == []
        again = await tracker.lease(2)
        await again.load(hostile)
        assert value_of(await again.call("increment", number(1))) == 2

    run_farm(story)


def test_lease_ends_by_the_agents_own_clock(run_farm, hostile, tree):
    async def story(tracker, spec):
        device = await tracker.device_is_good()
        grant = agent_pb2.LeaseGrant(
            lease_id="lease-1",
            device_id=device.description.device_id,
            epoch=1,
            remaining_s=2.0,
        )
        await tracker.want(leases=[grant])
        await tracker.until(lambda: any(epoch == 1 for _, epoch in tracker.uses))
        data = hostile.to_bytes()
        load = session_pb2.LoadRequest(artifact=digest_to_proto(digest_of(data)), inline=data)
        await tracker.client("lease-1").send(load=load)  # there may be no time left for an answer
        await tracker.device_is("IDLE", 1)  # nobody withdrew it
        assert tree.workers() == []

    run_farm(story)


def test_lease_with_an_epoch_that_is_over_is_refused(run_farm, hostile):
    async def story(tracker, spec):
        await tracker.lease(5)
        await tracker.until(lambda: tracker.opened)
        await tracker.want(leases=[])
        await tracker.device_is("IDLE", 5)
        device_id = tracker.device().description.device_id
        for epoch in (4, 5):
            grant = agent_pb2.LeaseGrant(
                lease_id="late", device_id=device_id, epoch=epoch, remaining_s=60
            )
            await tracker.want(leases=[grant])
            await tracker.hears(3)
            assert tracker.device().use == device_pb2.USE_IDLE
        await tracker.lease(6)
        await tracker.until(lambda: len(tracker.opened) > 1)
        assert tracker.opened == [("lease-5", 5), ("lease-6", 6)]

    run_farm(story)


def test_lease_of_a_higher_epoch_replaces_the_one_that_is_served(run_farm, hostile):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        await client.send(
            call=session_pb2.CallRequest(module_id=1, symbol="spin", inputs=[number(1)])
        )
        again = await tracker.lease(2)
        assert (await again.load(hostile)).loaded.module_id == 1
        assert value_of(await again.call("increment", number(8))) == 9

    run_farm(story)


def test_session_refused_by_the_tracker_frees_the_device(run_farm):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        client.queue(tracker.requests).put_nowait(None)
        await tracker.device_is("IDLE", 1)

    run_farm(story)


def test_session_attach_of_another_epoch_is_fenced(run_farm):
    async def story(tracker, spec):
        client = await tracker.lease(3)
        await client.send(attach=session_pb2.AttachRequest(lease_id="lease-3", epoch=3))
        assert (await client.receive()).attached.device_id == "a1-cpu"
        await client.send(attach=session_pb2.AttachRequest(lease_id="lease-3", epoch=2))
        assert (await client.receive()).error.code == "FENCED"

    run_farm(story)


def test_session_bad_requests_are_errors_and_the_session_goes_on(run_farm, hostile):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        assert (await client.call("increment", number(1))).error.code == "NOT_FOUND"
        await client.load(hostile)
        wrong = tensor_pb2.Tensor(dtype="int32", shape=[2], inline=bytes(4))
        for code, reply in [
            ("NOT_FOUND", await client.call("nothing", number(1))),
            ("NOT_FOUND", await client.call("increment", number(1), module_id=2)),
            ("INVALID_ARGUMENTS", await client.call("increment")),
            ("INVALID_ARGUMENTS", await client.call("increment", wrong)),
            ("INVALID_INPUT", await client.call("increment", number(1), repeat=10_001)),
            ("INVALID_INPUT", await client.call("increment", number(1), repeat=-1)),
            ("INVALID_INPUT", await client.call("increment", number(1), limit_s=601)),
            ("INVALID_INPUT", await client.call("increment", number(1), limit_s=float("nan"))),
        ]:
            assert reply.error.code == code
        await client.send()
        assert (await client.receive()).error.code == "INVALID_INPUT"
        assert value_of(await client.call("increment", number(1))) == 2

    run_farm(story)


def test_session_corrupt_and_absent_artifacts_are_errors(run_farm, hostile):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        data = bytearray(hostile.to_bytes())
        data[-1] ^= 1
        digest = tracker.blobs.put(bytes(data))
        load = session_pb2.LoadRequest()
        load.artifact.sha256, load.artifact.size_bytes = digest.sha256, digest.size_bytes
        await client.send(load=load)
        assert (await client.receive()).error.code == "ARTIFACT_CORRUPT"
        load.artifact.sha256 = "0" * 64
        await client.send(load=load)
        assert (await client.receive()).error.code == "NOT_FOUND"
        load.artifact.sha256 = "../../etc/passwd"
        await client.send(load=load)
        assert (await client.receive()).error.code == "INVALID_INPUT"

    run_farm(story)


def test_cache_file_that_was_damaged_is_fetched_again(run_farm, hostile):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        (path,) = (spec.work_dir / "cache").glob("??/*")
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        assert (await client.load(hostile)).loaded.module_id == 2
        assert len(tracker.blobs.reads) == 2

    run_farm(story)


def test_cache_file_that_was_damaged_before_a_crash_is_fetched_again(run_farm, hostile):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        (path,) = (spec.work_dir / "cache").glob("??/*")
        path.write_bytes(bytes(path.stat().st_size))
        assert (await client.call("trap", number(1))).error.code == "KERNEL_CRASHED"
        assert value_of(await client.call("increment", number(1))) == 2

    run_farm(story)


def test_session_that_cannot_load_again_after_a_crash_keeps_the_numbers_of_modules(
    run_farm, hostile
):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        for module_id in (1, 2):
            assert (await client.load(hostile)).loaded.module_id == module_id
        assert (await client.call("trap", number(1))).error.code == "KERNEL_CRASHED"
        (path,) = (spec.work_dir / "cache").glob("??/*")
        path.unlink()
        tracker.blobs.data.clear()
        assert (await client.call("increment", number(1))).error.code == "NOT_FOUND"
        assert (await client.load(hostile)).loaded.module_id == 3
        assert value_of(await client.call("increment", number(1), module_id=2)) == 2

    run_farm(story)


INCREMENT = session_pb2.PackedFunction(
    module_id=1, symbol="increment", input_bytes=4, output_bytes=4
)
CALL = session_pb2.CallRequest(module_id=1, symbol="increment", inputs=[number(1)])
REQUESTS = {
    "call": {"call": CALL},
    "batch": {"batch": session_pb2.BatchRequest(calls=[CALL])},
    "packed": {
        "packed": session_pb2.PackedRequest(
            functions=[INCREMENT], order=[0], inputs=np.array([1], "<i4").tobytes()
        )
    },
}


async def ask(client, kind):
    await client.send(**REQUESTS[kind])
    return await client.receive()


def error_of(reply, kind):
    if kind == "call" or reply.HasField("error"):
        return reply.error
    return getattr(reply, kind).error


def has_ended(pid):
    """Whether a process is gone, or is one that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


@pytest.fixture
def sent(monkeypatch):
    """Set each time that the agent has sent something to a worker."""
    event, send = asyncio.Event(), Child.send

    async def noted(child, data):
        await send(child, data)
        event.set()

    monkeypatch.setattr(Child, "send", noted)
    return event


def test_call_whose_worker_is_killed_before_it_begins_is_the_farm_s_fault(
    run_farm, hostile, tree, sent
):
    """Either the worker, stopped so that it reads nothing, dies with the request unread, or it dies unnoticed first."""

    async def ask_in_vain(tracker, client, kind, victim, sent_first):
        (worker,), (zygote,) = tree.workers(), tree.zygotes()
        dies = worker if victim == "worker" else zygote
        os.kill(zygote, signal.SIGSTOP)  # so that nobody tells the agent
        os.kill(worker, signal.SIGSTOP)
        if not sent_first:
            os.kill(dies, signal.SIGKILL)
            await tracker.until(lambda: has_ended(worker))
        sent.clear()
        await client.send(**REQUESTS[kind])
        if sent_first or victim == "worker":  # to the end of a zygote the agent may be first
            await sent.wait()
        if sent_first:
            os.kill(dies, signal.SIGKILL)
        if victim == "worker":
            os.kill(zygote, signal.SIGCONT)
        return await client.receive()

    async def check(tracker, client, kind, victim, sent_first):
        right = await ask(client, kind)
        assert error_of(right, kind).code == ""
        reply = await ask_in_vain(tracker, client, kind, victim, sent_first)
        # The agent may see the end of a zygote before the request comes, and replace all of it at once.
        if sent_first or victim == "worker" or error_of(reply, kind).code:
            error = error_of(reply, kind)
            assert (error.code, "call again" in error.message) == ("INFRASTRUCTURE", True), error
            # Nothing of the request before is taken for this one's.
            assert (reply.packed.done, reply.packed.outputs, len(reply.batch.replies)) == (
                0,
                b"",
                0,
            )
            reply = await ask(client, kind)
        reply.seq = right.seq
        assert reply == right

    async def story(tracker, spec):
        client = await tracker.lease(1)
        await client.load(hostile)
        for order in itertools.product(REQUESTS, ("worker", "zygote"), (True, False)):
            await check(tracker, client, *order)

    run_farm(story)


def test_lease_end_while_its_worker_is_forked_keeps_the_zygote(run_farm, tree):
    async def story(tracker, spec):
        device = await tracker.device_is_good()
        (zygote,) = tree.zygotes()
        for epoch in range(1, 9):
            grant = agent_pb2.LeaseGrant(
                lease_id=f"lease-{epoch}",
                device_id=device.description.device_id,
                epoch=epoch,
                remaining_s=60,
            )
            await tracker.want(leases=[grant])
            await tracker.until(lambda: tracker.device().use != device_pb2.USE_IDLE)
            await tracker.want(leases=[])
            await tracker.device_is("IDLE", epoch)
        assert tree.zygotes() == [zygote]
        assert tree.workers() == []

    run_farm(story)


def test_worker_that_was_asked_nothing_serves_the_next_lease_and_one_that_was_asked_never(
    run_farm, hostile, tree
):
    async def story(tracker, spec):
        device = await tracker.device_is_good()
        if device.description.labels["sandbox"] == "none":
            pytest.skip("needs a sandbox: bubblewrap")
        async with asyncio.timeout(60.0):
            while len(tree.spares()) < SPARES:
                await asyncio.sleep(0.01)
        waiting = tree.spares()
        await tracker.lease(1)
        await tracker.want(leases=[])
        await tracker.device_is("IDLE", 1)
        assert tree.spares() == waiting

        client = await tracker.lease(2)
        await client.load(hostile)
        (first,) = tree.workers()
        assert first in waiting
        await tracker.want(leases=[])
        await tracker.device_is("IDLE", 2)
        assert not Path(f"/proc/{first}").exists()

        client = await tracker.lease(3)
        await client.load(hostile)
        assert value_of(await client.call("increment", number(1))) == 2
        assert first not in tree.workers()

    run_farm(story)
