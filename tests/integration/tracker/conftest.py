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

from farm.api.v1 import (
    admin_pb2_grpc,
    agent_pb2,
    agent_pb2_grpc,
    blob_pb2,
    blob_pb2_grpc,
    build_pb2,
    build_pb2_grpc,
    device_pb2,
    device_pb2_grpc,
    error_pb2,
    ir_pb2,
    job_pb2,
    job_pb2_grpc,
    lease_pb2,
    lease_pb2_grpc,
    run_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
    tensor_pb2,
)
from farm.artifact import BuiltModule, ParamSpec, Signature, assemble
from farm.core.clock import SystemClock
from farm.core.digest import Digest
from farm.errors import FarmError, Fenced
from farm.rpc import aio_channel, digest_to_proto, error_from_rpc
from farm.rpc.blobs import BlobStub, upload
from farm.target import Target

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
X86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=generic"
ARM = "llvm -mtriple=aarch64-linux-gnu -mcpu=generic"
SIGNATURE = Signature((ParamSpec("a", "int32", (4,), "input", 4),))

Answer = Callable[[session_pb2.SessionRequest], session_pb2.SessionReply]


@dataclass
class Client:
    """Stubs of every service, over one channel."""

    channel: grpc.aio.Channel
    blobs: Any = field(init=False)
    build: Any = field(init=False)
    devices: Any = field(init=False)
    leases: Any = field(init=False)
    sessions: Any = field(init=False)
    runs: Any = field(init=False)
    agents: Any = field(init=False)
    jobs: Any = field(init=False)
    admin: Any = field(init=False)

    def __post_init__(self) -> None:
        self.blobs = blob_pb2_grpc.BlobServiceStub(self.channel)
        self.build = build_pb2_grpc.BuildServiceStub(self.channel)
        self.devices = device_pb2_grpc.DeviceServiceStub(self.channel)
        self.leases = lease_pb2_grpc.LeaseServiceStub(self.channel)
        self.sessions = session_pb2_grpc.SessionServiceStub(self.channel)
        self.runs = run_pb2_grpc.RunServiceStub(self.channel)
        self.agents = agent_pb2_grpc.AgentServiceStub(self.channel)
        self.jobs = job_pb2_grpc.JobServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)

    async def put(self, data: bytes) -> Digest:
        """Store a blob."""
        return await upload(BlobStub(self.channel), data)

    async def get(self, digest: Digest) -> bytes:
        """Return a blob."""
        request = blob_pb2.ReadRequest(digest=digest_to_proto(digest))
        return b"".join([response.data async for response in self.blobs.Read(request)])

    async def submit(self, selector: str = "", *, values: bytes = b"\1\2", **options: Any) -> Any:
        """Submit a job that doubles some bytes."""
        artifact = digest_to_proto(await self.artifact("twice"))
        tensor = tensor_pb2.Tensor(dtype="uint8", shape=[len(values)], inline=values)
        run = job_pb2.RunSpec(selector=selector, artifact=artifact, symbol="twice", inputs=[tensor])
        run.limit_s = options.pop("limit_s", 5.0)
        request = job_pb2.SubmitRequest(run=run, **options)
        return await self.jobs.Submit(request, timeout=60)

    async def job(self, job_id: str) -> job_pb2.Job:
        """Return a job."""
        return await self.jobs.GetJob(job_pb2.GetJobRequest(job_id=job_id), timeout=60)

    async def wait(self, job_id: str) -> list[job_pb2.Job]:
        """Return everything that waiting for a job shows."""
        stream = self.jobs.Wait(job_pb2.WaitRequest(job_id=job_id), timeout=60)
        return [job async for job in stream]

    async def artifact(self, *symbols: str, target: str = X86) -> Digest:
        """Store an artifact with these functions for a target."""
        modules = [
            BuiltModule(
                kind="device",
                symbol=symbol,
                target=target,
                format="elf-object",
                format_version=1,
                requires=(),
                toolchain="test 1",
                signature=SIGNATURE,
                data=b"code",
            )
            for symbol in symbols
        ]
        return await self.put(assemble(X86, modules).to_bytes())

    async def function(self, name: str, *, private: bool = False) -> Digest:
        """Store the blob of a function of this name."""
        data = ir_pb2.Function(name=name, private=private).SerializeToString()
        return await self.put(data)

    async def items(self, *wanted: tuple[str, str]) -> list[build_pb2.BuildItem]:
        """Return items for (target, symbol) pairs."""
        return [
            build_pb2.BuildItem(
                kind=build_pb2.ITEM_KIND_DEVICE,
                target=target,
                symbol=symbol,
                function=digest_to_proto(await self.function(symbol)),
            )
            for target, symbol in wanted
        ]

    async def build_all(
        self, items: list[build_pb2.BuildItem], **options: Any
    ) -> tuple[build_pb2.BuildResult, list[build_pb2.ItemEvent]]:
        """Build to the end; return the result and the item events."""
        request = build_pb2.BuildRequest(
            request_key="test", target_host=X86, items=items, **options
        )
        events = [event async for event in self.build.Build(request, timeout=60)]
        assert events[-1].WhichOneof("event") == "result"
        return events[-1].result, [event.item for event in events[:-1]]

    async def acquire(self, selector: str = "", **options: Any) -> lease_pb2.Lease:
        """Acquire a device."""
        request = lease_pb2.AcquireRequest(selector=selector, holder="test", **options)
        return (await self.leases.Acquire(request, timeout=60)).lease


@dataclass
class Peer:
    """One process of an agent, as far as the tracker can tell."""

    client: Client
    agent_id: str
    instance_id: str
    builds: tuple[str, ...] = ()
    slots: int = 2
    device_ids: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    compile: Callable[[agent_pb2.BuildTask], Awaitable[build_pb2.Module | FarmError]] | None = None
    answer: Answer | None = None
    prepares: bool = True
    held: dict[str, int] = field(default_factory=dict)
    perform: Callable[[agent_pb2.RunTask], Awaitable[job_pb2.JobResult | FarmError]] | None = None
    returns: bool = False
    runs: dict[str, agent_pb2.RunAttempt] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.performed: list[str] = []
        self.uses = dict.fromkeys(self.device_ids, (device_pb2.USE_IDLE, 0))
        for device_id, epoch in self.held.items():
            self.uses[device_id] = (device_pb2.USE_LEASED, epoch)
        self.attempts: dict[str, agent_pb2.BuildAttempt] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.compiled: list[str] = []
        self.grants: dict[str, agent_pb2.LeaseGrant] = {}
        self.desired = asyncio.Event()
        self.ended: asyncio.Future[FarmError | None] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()

    def state(self) -> agent_pb2.AgentState:
        return agent_pb2.AgentState(
            agent_id=self.agent_id,
            instance_id=self.instance_id,
            version="0.1.0",
            builds=self.builds,
            build_slots=self.slots,
            hosted_by="test",
            host="here",
            devices=[
                agent_pb2.DeviceState(
                    description=device_pb2.DeviceDescription(
                        device_id=device_id,
                        targets=[X86],
                        labels=self.labels,
                        timing_class=device_pb2.TIMING_CLASS_NATIVE,
                    ),
                    use=use,
                    epoch=epoch,
                    health=device_pb2.HEALTH_GOOD,
                )
                for device_id, (use, epoch) in self.uses.items()
            ],
            attempts=self.attempts.values(),
            runs=self.runs.values(),
            toolchains=dict.fromkeys(self.builds, "test 1"),
        )

    async def run(self) -> None:
        """Speak the control protocol until cancelled or ended by the tracker; again if it `returns`."""
        while True:
            await self._speak()
            if not self.returns or isinstance(self.ended.result(), Fenced):
                return
            self.ended = asyncio.get_running_loop().create_future()
            await asyncio.sleep(0.05)

    async def _speak(self) -> None:
        call = self.client.agents.Synchronise()
        sender = asyncio.create_task(self._send(call))
        try:
            async for desired in call:
                self._want(desired)
                self.desired.set()
            self.ended.set_result(None)
        except grpc.aio.AioRpcError as error:
            self.ended.set_result(error_from_rpc(error))
        finally:
            sender.cancel()
            call.cancel()
            works = [] if self.returns else list(self.tasks.values())
            for task in works:
                task.cancel()
            await asyncio.gather(sender, *works, return_exceptions=True)

    async def _send(self, call: Any) -> None:
        while True:
            await call.write(self.state())
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.1)

    def _want(self, desired: agent_pb2.DesiredState) -> None:
        wanted = {task.attempt_id for task in desired.builds}
        for attempt_id in set(self.attempts) - wanted:
            del self.attempts[attempt_id]
        for task in desired.builds:
            if task.attempt_id not in self.attempts:
                self.attempts[task.attempt_id] = agent_pb2.BuildAttempt(
                    attempt_id=task.attempt_id, running=True
                )
                self._start(task.attempt_id, self._compile(task))
        self._want_runs(desired)
        grants = {grant.device_id: grant for grant in desired.leases}
        for device_id, (use, epoch) in self.uses.items():
            grant = grants.get(device_id)
            if use != device_pb2.USE_IDLE and (grant is None or grant.epoch != epoch):
                self.uses[device_id] = (device_pb2.USE_IDLE, 0)
                self._changed.set()
            if grant is not None and grant.epoch != epoch and self.prepares:
                self.uses[device_id] = (device_pb2.USE_LEASED, grant.epoch)
                self._start(grant.lease_id, self._serve(grant))
                self._changed.set()
        self.grants = grants

    def _want_runs(self, desired: agent_pb2.DesiredState) -> None:
        wanted = {task.attempt_id for task in desired.runs}
        for attempt_id in set(self.runs) - wanted:
            del self.runs[attempt_id]
            if attempt_id in self.tasks:
                self.tasks[attempt_id].cancel()
        for run in desired.runs:
            if run.attempt_id not in self.runs:
                self.runs[run.attempt_id] = agent_pb2.RunAttempt(
                    attempt_id=run.attempt_id, epoch=run.epoch, running=True
                )
                self._start(run.attempt_id, self._perform(run))

    def _start(self, name: str, work: Any) -> None:
        self.tasks[name] = asyncio.create_task(work)

    async def _compile(self, task: agent_pb2.BuildTask) -> None:
        assert self.compile is not None
        self.compiled.append(task.item.symbol)
        outcome = await self.compile(task)
        attempt = agent_pb2.BuildAttempt(attempt_id=task.attempt_id, seconds=0.25)
        if isinstance(outcome, FarmError):
            attempt.error.CopyFrom(error_pb2.Error(code=outcome.code, message=outcome.message))
        else:
            attempt.module.CopyFrom(outcome)
        if task.attempt_id in self.attempts:
            self.attempts[task.attempt_id] = attempt
            self._changed.set()

    async def _perform(self, task: agent_pb2.RunTask) -> None:
        assert self.perform is not None
        self.performed.append(task.attempt_id)
        outcome = await self.perform(task)
        attempt = self.runs.get(task.attempt_id)
        if attempt is None:
            return
        if isinstance(outcome, FarmError):
            attempt.error.CopyFrom(error_pb2.Error(code=outcome.code, message=outcome.message))
        else:
            attempt.result.CopyFrom(outcome)
        self._changed.set()

    async def log(self, attempt_id: str, *texts: bytes) -> None:
        """Store chunks of an attempt's log and report them."""
        for text in texts:
            digest = await self.client.put(text)
            self.runs[attempt_id].log_chunks.append(digest_to_proto(digest))
        self._changed.set()

    async def _serve(self, grant: agent_pb2.LeaseGrant) -> None:
        call = self.client.agents.Serve()
        opened = agent_pb2.ServeOpen(
            agent_id=self.agent_id,
            instance_id=self.instance_id,
            lease_id=grant.lease_id,
            epoch=grant.epoch,
        )
        with contextlib.suppress(grant_ended):
            await call.write(agent_pb2.ServeFrame(open=opened))
            async for request in call:
                assert self.answer is not None
                await call.write(agent_pb2.ServeFrame(reply=self.answer(request)))


grant_ended = (grpc.aio.AioRpcError, asyncio.InvalidStateError)


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

    async def peer(self, agent_id: str, instance_id: str = "p1", **options: Any) -> Peer:
        """Connect an agent and wait until the tracker has answered."""
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
        return peer


def stopper(task: asyncio.Task[None]) -> Callable[[], Awaitable[None]]:
    async def stop() -> None:
        task.cancel()
        await asyncio.wait({task})

    return stop


async def double(task: agent_pb2.RunTask) -> job_pb2.JobResult:
    (tensor,) = task.run.inputs
    output = tensor_pb2.Tensor(
        dtype="uint8", shape=tensor.shape, inline=bytes(2 * it for it in tensor.inline)
    )
    return job_pb2.JobResult(outputs=[output], samples_ns=[5] * task.run.repeat, target=X86)


def compiler(client: Client) -> Any:
    async def compile_(task: agent_pb2.BuildTask) -> build_pb2.Module:
        content = f"{task.item.kind} {task.item.target} {task.item.function.sha256}".encode()
        return build_pb2.Module(
            object=digest_to_proto(await client.put(content)),
            format="elf-object",
            format_version=1,
            requires=Target.parse(task.item.target).requires,
            toolchain="test 1",
            signature=SIGNATURE.to_json(),
        )

    return compile_


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
