"""Leases: who gets a device, for how long, and how that ends."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest
from tracker_ends.agent import echo
from tracker_ends.client import Attached, refusal, twice

from farm.api.v1 import device_pb2, lease_pb2, session_pb2
from farm.errors import (
    DeviceBusy,
    DeviceLost,
    Fenced,
    InvalidInput,
    InvalidSelector,
    NobodyCanServe,
)


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
            await farm.settled("dev0", "IDLE")
            assert (await farm.client.acquire()).epoch == 2

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
            await farm.settled("dev0", "IDLE")
            assert peer.uses == {"dev0": (device_pb2.USE_IDLE, lease.epoch)}
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
