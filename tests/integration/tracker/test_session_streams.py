"""Both ends of a session: their order, and who may speak."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import pytest
from tracker_ends.agent import echo
from tracker_ends.client import Attached, refusal, twice

from farm.api.v1 import agent_pb2, lease_pb2
from farm.errors import (
    DeviceBusy,
    Fenced,
    InvalidInput,
)


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
