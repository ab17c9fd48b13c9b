"""Runs: a device is taken, a function called, and the device given back, whatever happens."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from farm_tracker import runs
from tracker_ends.agent import echo
from tracker_ends.client import refusal

from farm.api.v1 import agent_pb2, device_pb2, run_pb2, tensor_pb2
from farm.errors import (
    NotFound,
)
from farm.rpc import digest_to_proto


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
            await farm.settled("dev0", "IDLE")
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
            await farm.settled("dev0", "IDLE")
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
            await farm.settled("dev0", "IDLE")

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
            await farm.settled("dev0", "IDLE")
            assert peer.uses == {"dev0": (device_pb2.USE_IDLE, 1)}

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
