"""Reports of an agent that come after newer ones, on the same stream or on the next, change nothing."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from farm_tracker.state.model import LeaseState, Use

from farm.api.v1 import device_pb2
from farm.errors import InfrastructureError
from farm.rpc import error_from_rpc


class Told:
    """What an agent's process says, message by message, each with a number."""

    def __init__(self, farm, peer):
        self.farm = farm
        self.peer = peer
        self.call = None
        self.number = 0

    def dial(self):
        if self.call is not None:
            self.call.cancel()
        self.call = self.farm.client.agents.Synchronise()

    def message(self, **changes):
        self.number += 1
        message = self.peer.state()
        message.sequence = self.number
        message.version = f"0.1.{self.number}"
        for name, value in changes.items():
            setattr(message, name, value)
        return message

    async def say(self, *messages):
        """Send messages, the last of which is new; wait until the tracker has taken it in."""
        for message in messages:
            await self.call.write(message)
        async with asyncio.timeout(60):
            while self.version() != messages[-1].version:
                await asyncio.sleep(0.01)

    def version(self):
        agent = self.farm.server.tracker.state.agents.get("a")
        return agent.version if agent is not None else ""


def test_reports_of_the_past_end_nothing_on_this_stream_or_the_next(
    start_farm, make_peer, run_async
):
    async def body() -> None:
        async with start_farm() as farm:
            peer = make_peer(farm.client, "a", "p1", device_ids=("d",))
            told = Told(farm, peer)
            told.dial()
            idle = told.message()
            del (bare := told.message()).devices[:]  # as if the device were gone
            newest = told.message()
            await told.say(idle, newest)
            acquiring = asyncio.create_task(farm.client.acquire())
            state = farm.server.tracker.state
            async with asyncio.timeout(60):
                while not state.devices["d"].epoch:
                    await asyncio.sleep(0.01)
            peer.uses["d"] = (device_pb2.USE_LEASED, state.devices["d"].epoch)
            await told.say(told.message())
            lease = await acquiring

            def seen():
                return state.leases[lease.lease_id].state, state.devices["d"].use

            assert seen() == (LeaseState.ACTIVE, Use.LEASED)
            await told.say(bare, idle, newest, told.message())
            assert seen() == (LeaseState.ACTIVE, Use.LEASED)
            told.dial()
            await told.say(first := told.message())
            await told.say(bare, first, idle, newest, told.message())
            assert seen() == (LeaseState.ACTIVE, Use.LEASED)
            del (gone := told.message()).devices[:]
            await told.say(gone)
            assert seen()[0] is LeaseState.LOST

    run_async(body)


def test_stream_that_begins_with_the_past_is_refused_until_it_is_dialled_again(
    start_farm, make_peer, run_async
):
    async def body() -> None:
        async with start_farm() as farm:
            told = Told(farm, make_peer(farm.client, "a", "p1", device_ids=("d",)))
            told.dial()
            old = told.message()
            await told.say(old, told.message())
            told.dial()
            await told.call.write(old)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await told.call.read()
            error = error_from_rpc(caught.value)
            assert type(error) is InfrastructureError
            assert "dial again" in error.message
            told.dial()
            await told.say(told.message())

    run_async(body)


def test_process_that_is_new_begins_to_count_anew_and_one_that_does_not_count_is_heard(
    start_farm, make_peer, run_async
):
    async def body() -> None:
        async with start_farm() as farm:
            for instance_id, numbers in (("p1", (7, 9)), ("p2", (1, 2)), ("p3", (0, 0))):
                told = Told(farm, make_peer(farm.client, "a", instance_id))
                told.dial()
                for number in numbers:
                    message = told.message(sequence=number)
                    message.version = f"{instance_id}.{told.number}"
                    await told.say(message)

    run_async(body)
