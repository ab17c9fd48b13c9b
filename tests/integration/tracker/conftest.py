"""A real tracker on a free port, and a peer that speaks the agent's protocol."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from farm_tracker.server import TrackerServer, serve
from farm_tracker.state.events import Tick
from farm_tracker.state.model import Limits
from tracker_ends.agent import Peer, compiler, double
from tracker_ends.client import X86, Client

from farm.core.clock import SystemClock
from farm.rpc import aio_channel

PATIENT = Limits(
    heartbeat_s=0.1,
    suspect_s=60.0,
    offline_s=120.0,
    prepare_s=60.0,
    clean_s=60.0,
    attempt_s=60.0,
    backoff_s=0.05,
)
"""A test whose machine stands still for some seconds sees the same; one that waits for a limit sets a short one."""
ARM = "llvm -mtriple=aarch64-linux-gnu -mcpu=generic"


class JumpingClock(SystemClock):
    """The machine's clock and some seconds more."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s

    def now(self) -> float:
        return super().now() + self.ahead_s

    def wall(self) -> float:
        return super().wall() + self.ahead_s


@dataclass
class Farm:
    """A tracker and whoever connects to it."""

    server: TrackerServer
    client: Client
    clock: JumpingClock
    running: list[asyncio.Task[None]] = field(default_factory=list)

    async def pass_time(self, seconds: float) -> None:
        """Let so much time pass at once for the tracker."""
        self.clock.ahead_s += seconds
        await self.server.tracker.post(Tick())

    async def settled(self, device_id: str, use: str) -> None:
        """Wait until the tracker shows a device in this use."""
        async with asyncio.timeout(60):
            while self.server.tracker.state.devices[device_id].use != use:
                await asyncio.sleep(0.005)

    async def peer(self, agent_id: str, instance_id: str = "p1", **options: Any) -> Peer:
        """Connect an agent; wait until the tracker has answered, and takes its idle devices for clean."""
        peer = Peer(self.client, agent_id, instance_id, **options)
        if peer.compile is None:
            peer.compile = compiler(self.client)
        if peer.perform is None:
            peer.perform = double
        task = asyncio.create_task(peer.run())
        self.running.append(task)
        peer.stop = stopper(task)  # type: ignore[attr-defined]
        async with asyncio.timeout(60):
            await peer.desired.wait()
            devices = self.server.tracker.state.devices
            while not all(
                devices[it].use == "IDLE" or devices[it].lease_id is not None or it in peer.held
                for it in peer.device_ids
                if it in devices
            ):
                await asyncio.sleep(0.01)
        return peer


def stopper(task: asyncio.Task[None]) -> Callable[[], Awaitable[None]]:
    async def stop() -> None:
        task.cancel()
        await asyncio.wait({task})

    return stop


@pytest.fixture
def make_peer() -> type[Peer]:
    """Return the class of an agent's process, for what no agent does of its own accord."""
    return Peer


@contextlib.asynccontextmanager
async def farm_at(
    folder: Path, address: str = "127.0.0.1:0", *, ahead_s: float = 0.0, **options: Any
) -> AsyncIterator[Farm]:
    limits = replace(PATIENT, **options.pop("limits", {}))
    clock = JumpingClock(ahead_s)
    server = await serve(folder, address, limits=limits, clock=clock, **options)
    channel = aio_channel(server.address)
    farm = Farm(server, Client(channel), clock)
    try:
        yield farm
    finally:
        for task in farm.running:
            task.cancel()
        await asyncio.gather(*farm.running, return_exceptions=True)
        await channel.close()
        await server.stop()


@pytest.fixture
def start_farm(tmp_path: Path) -> Callable[..., Any]:
    """Return a context that runs a tracker on the test's folder."""

    def start(name: str = "data", address: str = "127.0.0.1:0", **options: Any) -> Any:
        return farm_at(tmp_path / name, address, **options)

    return start


@pytest.fixture
def run_async() -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Return a function that runs an async test body in a loop of its own."""

    def run(body: Callable[[], Awaitable[None]]) -> None:
        async def limited() -> None:
            async with asyncio.timeout(250):
                await body()

        asyncio.run(limited())

    return run


@pytest.fixture
def forgetful() -> dict[str, float]:
    """Limits of a tracker that counts an agent as offline after some seconds of silence."""
    return {"suspect_s": 1.5, "offline_s": 4.0}


@pytest.fixture
def targets() -> dict[str, str]:
    """Canonical targets that tests build for."""
    return {"x86": X86, "arm": ARM}


@pytest.fixture
def connect() -> Callable[..., Any]:
    """Return a function that joins an agent over a channel: its client, the peer, and its task."""

    async def join(channel: grpc.aio.Channel, **options: Any) -> Any:
        client = Client(channel)
        peer = Peer(client, "agent", "p1", **{"perform": double, **options})
        speaking = asyncio.create_task(peer.run())
        async with asyncio.timeout(60):
            await peer.desired.wait()
        return client, peer, speaking

    return join
