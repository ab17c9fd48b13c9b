from __future__ import annotations

import asyncio
import contextlib
import time

import grpc
import pytest
from farm_tracker import runs

from farm.api.v1 import agent_pb2, device_pb2, lease_pb2, run_pb2, session_pb2, tensor_pb2
from farm.errors import (
    DeviceBusy,
    DeviceLost,
    Fenced,
    InvalidInput,
    InvalidSelector,
    NobodyCanServe,
    NotFound,
)
from farm.rpc import digest_to_proto, error_from_rpc


def refusal(caught):
    return error_from_rpc(caught.value)


def echo(request: session_pb2.SessionRequest) -> session_pb2.SessionReply:
    """Answer as a device would that has one function, `twice`."""
    reply = session_pb2.SessionReply(seq=request.seq)
    if request.WhichOneof("request") == "load":
        reply.loaded.module_id = 7
        reply.loaded.functions.add(symbol="twice", target="llvm", signature=b"{}")
    elif request.call.symbol != "twice":
        reply.error.code, reply.error.message = "NOT_FOUND", f"{request.call.symbol}: unknown"
    else:
        (tensor,) = request.call.inputs
        doubled = bytes(2 * value for value in tensor.inline)
        reply.called.outputs.add(dtype="uint8", shape=tensor.shape, inline=doubled)
        reply.called.samples_ns.extend([5] * request.call.repeat)
    return reply


class Attached:
    """A client's stream."""

    def __init__(self, farm, lease, *, epoch=None, seq=1):
        self.call = farm.client.sessions.Attach()
        self.seq = seq - 1
        self.attach = session_pb2.AttachRequest(
            lease_id=lease.lease_id,
            epoch=lease.epoch if epoch is None else epoch,
            lease_token=lease.lease_token,
        )

    async def open(self):
        return await self.ask(attach=self.attach)

    async def ask(self, **request):
        await self.send(**request)
        return await self.reply()

    async def send(self, **request):
        self.seq += 1
        await self.call.write(session_pb2.SessionRequest(seq=self.seq, **request))

    async def reply(self):
        return await self.call.read()


def twice(*values: int, symbol: str = "twice", repeat: int = 0) -> session_pb2.CallRequest:
    tensor = tensor_pb2.Tensor(dtype="uint8", shape=[len(values)], inline=bytes(values))
    return session_pb2.CallRequest(module_id=7, symbol=symbol, inputs=[tensor], repeat=repeat)


async def settled(farm, device_id: str, use: str) -> None:
    async with asyncio.timeout(60):
        while farm.server.tracker.state.devices[device_id].use != use:
            await asyncio.sleep(0.005)


def test_lease_attach_call_and_release_reach_the_device(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",), labels={"arch": "x86"}, answer=echo)
            lease = await farm.client.acquire("arch=x86", ttl_s=30)
            assert lease.epoch == 1
            assert lease.device.description.device_id == "dev0"
            assert 29 < lease.remaining_s <= 30
            stream = Attached(farm, lease)
            assert (await stream.open()).attached.device_id == "dev0"
            loaded = await stream.ask(load=session_pb2.LoadRequest())
            assert (loaded.seq, loaded.loaded.module_id) == (2, 7)
            called = await stream.ask(call=twice(1, 2, 3, repeat=2))
            assert (called.seq, called.called.outputs[0].inline) == (3, bytes([2, 4, 6]))
            assert list(called.called.samples_ns) == [5, 5]
            failed = await stream.ask(call=twice(1, symbol="other"))
            assert (failed.seq, failed.error.code) == (4, "NOT_FOUND")
            assert (await stream.ask(call=twice(9))).called.outputs[0].inline == bytes([18])
            await stream.call.done_writing()
            assert await stream.reply() is grpc.aio.EOF
            assert await stream.call.code() is grpc.StatusCode.OK
            release = lease_pb2.ReleaseRequest(lease_id=lease.lease_id, epoch=lease.epoch)
            await farm.client.leases.Release(release)
            await farm.client.leases.Release(release)
            await settled(farm, "dev0", "IDLE")
            assert (await farm.client.acquire()).epoch == 2

    run_async(body)


def test_session_requests_before_the_agent_is_there_are_answered_in_order(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            peer = await farm.peer("agent", device_ids=("dev0",), answer=echo, prepares=False)
            stream = Attached(farm, await farm.client.acquire())
            await stream.open()
            for value in range(20):
                await stream.send(call=twice(value))
            peer.prepares = True
            peer._want(agent_pb2.DesiredState(leases=peer.grants.values()))
            replies = [await stream.reply() for _ in range(20)]
            assert [it.seq for it in replies] == list(range(2, 22))
            assert [it.called.outputs[0].inline[0] for it in replies] == list(range(0, 40, 2))

    run_async(body)


def test_session_second_client_of_a_lease_waits_its_turn_and_gets_no_old_replies(
    start_farm, run_async
):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",), answer=echo)
            lease = await farm.client.acquire()
            first = Attached(farm, lease)
            await first.open()
            await first.ask(call=twice(1))
            second = Attached(farm, lease)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await second.open()
            assert isinstance(refusal(caught), DeviceBusy)
            await first.send(call=twice(2))
            first.call.cancel()
            async with asyncio.timeout(60):
                while True:
                    third = Attached(farm, lease)
                    with contextlib.suppress(
                        grpc.aio.AioRpcError
                    ):  # until the first is noticed to be gone
                        await third.open()
                        break
                    await asyncio.sleep(0.01)
            answer = await third.ask(call=twice(50))
            assert (answer.seq, answer.called.outputs[0].inline) == (2, bytes([100]))

    run_async(body)


def test_lease_that_expires_fences_client_and_agent(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            peer = await farm.peer("agent", device_ids=("dev0",), answer=echo)
            lease = await farm.client.acquire(ttl_s=60)
            stream = Attached(farm, lease)
            await stream.open()
            await stream.ask(call=twice(1))
            renew = lease_pb2.RenewRequest(lease_id=lease.lease_id, epoch=lease.epoch, ttl_s=1)
            await farm.client.leases.Renew(renew)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.reply()
            assert isinstance(refusal(caught), Fenced)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await farm.client.leases.Renew(renew)
            assert isinstance(refusal(caught), Fenced)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await Attached(farm, lease).open()
            assert isinstance(refusal(caught), Fenced)
            await settled(farm, "dev0", "IDLE")
            assert peer.uses == {"dev0": (device_pb2.USE_IDLE, 0)}
            assert (await farm.client.acquire()).epoch == lease.epoch + 1

    run_async(body)


def test_lease_that_is_renewed_outlives_its_first_term(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",))
            lease = await farm.client.acquire(ttl_s=30)
            for _ in range(4):
                await farm.pass_time(15.0)
                renewed = await farm.client.leases.Renew(
                    lease_pb2.RenewRequest(lease_id=lease.lease_id, epoch=lease.epoch, ttl_s=30)
                )
                assert renewed.remaining_s == 30
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await farm.client.leases.Renew(
                    lease_pb2.RenewRequest(lease_id=lease.lease_id, epoch=lease.epoch + 1)
                )
            assert isinstance(refusal(caught), Fenced)

    run_async(body)


def test_acquire_that_nobody_can_serve_names_the_nearest(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await farm.client.acquire("arch=arm", wait_s=60)
            assert "no device" in refusal(caught).message
            await farm.peer("agent", device_ids=("dev0",), labels={"arch": "x86", "fast": "yes"})
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await farm.client.acquire("arch=arm,fast", wait_s=60)
            error = refusal(caught)
            assert isinstance(error, NobodyCanServe)
            assert "dev0 fails arch=arm (it has arch=x86)" in error.message
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    run_async(body)


def test_acquire_of_a_busy_device_is_refused_at_once_or_after_its_wait(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",))
            await farm.client.acquire()
            for wait_s, least in ((0.0, 0.0), (0.3, 0.3)):
                started = time.monotonic()
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await farm.client.acquire(wait_s=wait_s)
                assert time.monotonic() - started >= least
                assert isinstance(refusal(caught), DeviceBusy)
                assert "dev0" in refusal(caught).message

    run_async(body)


def test_acquire_waits_in_order_and_leaves_the_queue_when_cancelled(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",))
            held = await farm.client.acquire()
            state = farm.server.tracker.state

            async def queue(holder):
                before = len(state.queued_leases)
                task = asyncio.create_task(farm.client.acquire(wait_s=60))
                async with asyncio.timeout(60):
                    while len(state.queued_leases) == before:
                        await asyncio.sleep(0.005)
                return task

            gone, first, second = [await queue(name) for name in ("gone", "first", "second")]
            gone.cancel()
            async with asyncio.timeout(60):
                while len(state.queued_leases) == 3:
                    await asyncio.sleep(0.005)
            for lease, waiter in ((held, first), (None, second)):
                lease = lease or await first
                await farm.client.leases.Release(
                    lease_pb2.ReleaseRequest(lease_id=lease.lease_id, epoch=lease.epoch)
                )
                assert (await waiter).epoch == lease.epoch + 1

    run_async(body)


def test_lease_whose_agent_dies_is_lost_and_its_device_is_not_granted(
    start_farm, forgetful, run_async
):
    async def body() -> None:
        async with start_farm(limits=forgetful) as farm:
            peer = await farm.peer("agent", device_ids=("dev0",), answer=echo)
            stream = Attached(farm, await farm.client.acquire())
            await stream.open()
            await stream.ask(call=twice(1))
            await peer.stop()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.reply()
            assert isinstance(refusal(caught), DeviceLost)
            async with asyncio.timeout(60):
                while farm.server.tracker.state.devices["dev0"].observed != "OFFLINE":
                    await asyncio.sleep(0.02)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await farm.client.acquire()
            assert "OFFLINE" in refusal(caught).message
            await farm.peer("agent", "p2", device_ids=("dev0",))
            assert (await farm.client.acquire()).epoch == 2

    run_async(body)


def test_agent_process_that_was_replaced_is_fenced_for_good(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            old = await farm.peer("agent", "p1", device_ids=("dev0",), answer=echo)
            lease = await farm.client.acquire()
            await farm.peer("agent", "p2", device_ids=("dev0",), answer=echo)
            assert isinstance(await old.ended, Fenced)
            renew = lease_pb2.RenewRequest(lease_id=lease.lease_id, epoch=lease.epoch)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await farm.client.leases.Renew(renew)
            assert isinstance(refusal(caught), Fenced)
            back = farm.client.agents.Synchronise()
            await back.write(old.state())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await back.read()
            assert isinstance(refusal(caught), Fenced)
            serve = farm.client.agents.Serve()
            opened = agent_pb2.ServeOpen(
                agent_id="agent", instance_id="p1", lease_id=lease.lease_id, epoch=lease.epoch
            )
            await serve.write(agent_pb2.ServeFrame(open=opened))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await serve.read()
            assert isinstance(refusal(caught), Fenced)

    run_async(body)


def test_serve_with_an_older_epoch_is_fenced(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",), answer=echo)
            old = await farm.client.acquire()
            await farm.client.leases.Release(
                lease_pb2.ReleaseRequest(lease_id=old.lease_id, epoch=old.epoch)
            )
            new = await farm.client.acquire(wait_s=60)
            for lease_id, epoch in ((old.lease_id, old.epoch), (new.lease_id, old.epoch)):
                serve = farm.client.agents.Serve()
                opened = agent_pb2.ServeOpen(
                    agent_id="agent", instance_id="p1", lease_id=lease_id, epoch=epoch
                )
                await serve.write(agent_pb2.ServeFrame(open=opened))
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await serve.read()
                assert isinstance(refusal(caught), Fenced)

    run_async(body)


def test_run_leases_calls_and_always_gives_the_device_back(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",), answer=echo)
            artifact = digest_to_proto(await farm.client.artifact("twice", "other"))
            inputs = [tensor_pb2.Tensor(dtype="uint8", shape=[1], inline=b"\x04")]
            outcomes = []
            for symbol in ("twice", "other"):
                request = run_pb2.RunRequest(
                    artifact=artifact, symbol=symbol, inputs=inputs, repeat=1, wait_s=60
                )
                events = [event async for event in farm.client.runs.Run(request, timeout=60)]
                assert [event.WhichOneof("event") for event in events] == ["leased", "result"]
                assert events[0].leased.description.device_id == "dev0"
                outcomes.append(events[1].result)
            good, bad = outcomes
            assert (good.outputs[0].inline, list(good.samples_ns), good.target) == (
                b"\x08",
                [5],
                "llvm",
            )
            assert (bad.error.code, list(bad.outputs)) == ("NOT_FOUND", [])
            await settled(farm, "dev0", "IDLE")
            assert farm.server.tracker.state.devices["dev0"].epoch == 2

    run_async(body)


async def leased(farm, peer):
    """Let the agent say that it has prepared the device of the one lease; return the lease."""
    (lease,) = farm.server.tracker.state.leases.values()
    peer.uses["dev0"] = (device_pb2.USE_LEASED, lease.epoch)
    peer._changed.set()
    return lease


async def serve_slowly(farm, lease, answered: asyncio.Event) -> None:
    """Serve a session as its agent would, whose kernel ends when the event is set."""
    serve = farm.client.agents.Serve()
    opened = agent_pb2.ServeOpen(
        agent_id="agent", instance_id="p1", lease_id=lease.lease_id, epoch=lease.epoch
    )
    await serve.write(agent_pb2.ServeFrame(open=opened))
    async for request in serve:
        if request.WhichOneof("request") == "call":
            await answered.wait()
        await serve.write(agent_pb2.ServeFrame(reply=echo(request)))


def test_run_that_takes_longer_than_its_lease_ends_at_its_own_limit(
    start_farm, run_async, monkeypatch
):
    monkeypatch.setattr(runs, "TTL_S", 6.0)

    async def body() -> None:
        async with start_farm() as farm:
            peer = await farm.peer("agent", device_ids=("dev0",), prepares=False)
            artifact = digest_to_proto(await farm.client.artifact("twice"))
            inputs = [tensor_pb2.Tensor(dtype="uint8", shape=[1], inline=b"\x04")]
            request = run_pb2.RunRequest(
                artifact=artifact, symbol="twice", inputs=inputs, limit_s=600
            )
            call = farm.client.runs.Run(request)
            assert (await call.read()).WhichOneof("event") == "leased"
            lease = await leased(farm, peer)
            answered = asyncio.Event()
            serving = asyncio.create_task(serve_slowly(farm, lease, answered))
            async with asyncio.timeout(60):
                while (
                    farm.server.tracker.state.leases[lease.lease_id].expires_at == lease.expires_at
                ):
                    await asyncio.sleep(0.01)
            answered.set()
            assert (await call.read()).result.outputs[0].inline == b"\x08"
            await settled(farm, "dev0", "IDLE")
            (ended,) = await asyncio.gather(serving, return_exceptions=True)
            assert isinstance(ended, grpc.aio.AioRpcError)  # the lease was released

    run_async(body)


def test_run_whose_agent_never_answers_is_the_farms_fault(start_farm, run_async, monkeypatch):
    # The run's own limit, far below what its agent has to get ready in (60 s).
    monkeypatch.setattr(runs, "LOAD_LIMIT_S", -59.0)
    monkeypatch.setattr(runs, "JOB_END_S", 0.1)

    async def body() -> None:
        async with start_farm() as farm:
            peer = await farm.peer("agent", device_ids=("dev0",), prepares=False)
            artifact = digest_to_proto(await farm.client.artifact("twice"))
            request = run_pb2.RunRequest(artifact=artifact, symbol="twice", limit_s=0.1)
            call = farm.client.runs.Run(request)
            assert (await call.read()).WhichOneof("event") == "leased"
            await leased(farm, peer)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            error = refusal(caught)
            assert (error.code, error.message) == (
                "INFRASTRUCTURE",
                "run: agent agent did not answer within 1.2 s; run it again",
            )
            await settled(farm, "dev0", "IDLE")

    run_async(body)


def test_run_that_is_cancelled_frees_the_device(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            peer = await farm.peer("agent", device_ids=("dev0",), answer=echo, prepares=False)
            artifact = digest_to_proto(await farm.client.artifact("twice"))
            request = run_pb2.RunRequest(artifact=artifact, symbol="twice")
            call = farm.client.runs.Run(request)
            assert (await call.read()).WhichOneof("event") == "leased"
            call.cancel()
            await settled(farm, "dev0", "IDLE")
            assert peer.uses == {"dev0": (device_pb2.USE_IDLE, 0)}

    run_async(body)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"selector": "=="}, InvalidSelector),
        ({"ttl_s": 0.5}, InvalidInput),
        ({"ttl_s": 601}, InvalidInput),
        ({"wait_s": -1}, InvalidInput),
        ({"wait_s": float("nan")}, InvalidInput),
    ],
)
def test_acquire_that_is_malformed_is_refused(start_farm, run_async, options, error):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await farm.client.acquire(**options)
            assert type(refusal(caught)) is error
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run_async(body)


def test_session_requests_out_of_number_end_the_stream(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",), answer=echo)
            lease = await farm.client.acquire()
            early = Attached(farm, lease, seq=2)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await early.open()
            assert isinstance(refusal(caught), InvalidInput)
            skipping = Attached(farm, lease)
            await skipping.open()
            skipping.seq = 6
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await skipping.ask(call=twice(1))
            assert isinstance(refusal(caught), InvalidInput)
            assert "request 7 after 1" in refusal(caught).message

    run_async(body)


def test_run_of_an_absent_artifact_is_refused_before_a_lease(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            await farm.peer("agent", device_ids=("dev0",))
            digest = await farm.client.function("any")
            farm.server.blobs.path(digest).unlink()
            request = run_pb2.RunRequest(artifact=digest_to_proto(digest), symbol="f")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await farm.client.runs.Run(request).read()
            assert isinstance(refusal(caught), NotFound)
            assert farm.server.tracker.state.devices["dev0"].epoch == 0

    run_async(body)


def test_agent_report_that_is_malformed_is_refused(start_farm, run_async):
    async def body() -> None:
        async with start_farm() as farm:
            good = await farm.peer("agent", device_ids=("dev0",))
            for change in (
                lambda it: setattr(it, "agent_id", "Bad Name"),
                lambda it: setattr(it, "instance_id", ""),
                lambda it: setattr(it.devices[0], "use", 0),
                lambda it: setattr(it.devices[0], "use", 99),
                lambda it: setattr(it.devices[0], "epoch", -1),
                lambda it: it.devices.append(it.devices[0]),
                lambda it: it.devices[0].description.labels.update({"Bad Key": "x"}),
                lambda it: setattr(it, "build_slots", -1),
                lambda it: it.builds.append("bad family"),
            ):
                state = good.state()
                state.agent_id = "second"
                change(state)
                call = farm.client.agents.Synchronise()
                await call.write(state)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call.read()
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert list(farm.server.tracker.state.agents) == ["agent"]

    run_async(body)
