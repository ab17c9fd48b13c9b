"""Agents whose devices do nothing, many in one process: they load a tracker as real ones do.

Owns: what such an agent says and when. The stream, its heartbeats and its dialling are the real agent's
(`farm_agents.stream`); of a run it says at once what a real one does: LEASED with the result, IDLE. Does not
own: who starts the processes and reads their figures.

Invariant: a run counts as finished only when the tracker no longer wants it, which it says after it has committed the
result.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe

from farm_agents.connection import Connection
from farm_agents.stream import ControlStream

from farm.api.v1 import agent_pb2, agent_pb2_grpc, device_pb2, identity_pb2, identity_pb2_grpc
from farm.core.clock import SystemClock
from farm.rpc import Credentials, aio_channel, credentials

MODELS = 20
"""Kinds of boards: agent N has one of kind N % MODELS."""
PREPARE_S = 0.001
CLEAN_S = 0.005
RUN_S = 0.005
"""What a real agent takes for these with a warm worker and a kernel that returns at once."""
ENROL_AT_ONCE = 16


@dataclass(slots=True)
class Figures:
    """What the agents of one process saw since the last time."""

    finished: list[str] = field(default_factory=list)
    """Jobs whose result the tracker has committed."""
    grant_s: list[float] = field(default_factory=list)
    """From telling that a device is idle to hearing of its next lease, for each grant."""
    online: int = 0


class SimulatedAgent:
    """One agent with one device."""

    def __init__(self, number: int, address: str, given: Credentials, token: str) -> None:
        self.figures = Figures()
        self.run_s = RUN_S
        self._random = random.Random(number)
        self._address = address
        self._given = given
        self._token = token
        name = f"load-{number:04d}"
        self._device = agent_pb2.DeviceState(
            description=device_pb2.DeviceDescription(
                device_id=f"{name}-cpu",
                targets=["llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3"],
                labels={
                    **{"kind": "cpu", "arch": "x86_64", "os": "linux", "sandbox": "bwrap"},
                    "model": f"m{number % MODELS}",
                },
                timing_class=device_pb2.TIMING_CLASS_NATIVE,
                provides=["cpu-feature:avx2", "cpu-feature:fma"],
            ),
            use=device_pb2.USE_IDLE,
            health=device_pb2.HEALTH_UNCHECKED,
        )
        self._state = agent_pb2.AgentState(
            agent_id=name,
            instance_id=f"{name}-1",
            version="bench",
            hosted_by="process",
            host="bench",
        )
        self._run: agent_pb2.RunAttempt | None = None
        self._job = ""
        self._wanted: set[str] = set()
        self._dropped = asyncio.Event()
        self._idle_since: float | None = None
        self._last_epoch = 0
        self._work: asyncio.Task[None] | None = None
        self._stream: ControlStream | None = None

    async def run(self) -> None:
        """Speak with the tracker until cancelled."""
        connection = Connection(lambda: None)
        async with aio_channel(
            self._address, credentials=self._given, token=lambda: self._token
        ) as channel:
            self._stream = ControlStream(
                self._address,
                agent_pb2_grpc.AgentServiceStub(channel),
                self,  # type: ignore[arg-type] - it only enrols, which was done
                connection,
                self._message,
                self._take,
                _nothing,
            )
            await self._stream.keep_up()

    async def enrol(self) -> bool:
        """Refuse: it has a credential, and another would not help."""
        return False

    def heal(self) -> None:
        """Have the device checked, so that it can be granted."""
        self._device.health = device_pb2.HEALTH_GOOD
        self._tell()

    def _message(self) -> tuple[agent_pb2.AgentState, object]:
        message = agent_pb2.AgentState()
        message.CopyFrom(self._state)
        message.devices.append(self._device)
        if self._run is not None:
            message.runs.append(self._run)
        return message, lambda: None

    def _tell(self) -> None:
        assert self._stream is not None
        self._stream.send_soon()

    def _take(self, desired: agent_pb2.DesiredState) -> None:
        self.figures.online = 1
        self._wanted = {it.attempt_id for it in desired.runs}
        for it in desired.ended:
            if it.epoch > self._device.epoch and self._device.use == device_pb2.USE_IDLE:
                self._last_epoch = self._device.epoch = it.epoch
                self._tell()
        if self._run is not None and self._run.attempt_id not in self._wanted:
            self._dropped.set()
        if self._work is None or self._work.done():
            for lease in desired.leases:
                if lease.epoch > self._last_epoch and desired.runs:
                    self._last_epoch = lease.epoch
                    if self._idle_since is not None:
                        self.figures.grant_s.append(time.perf_counter() - self._idle_since)
                        self._idle_since = None
                    self._work = asyncio.create_task(self._serve(desired.runs[0]))

    async def _serve(self, task: agent_pb2.RunTask) -> None:
        self._run = agent_pb2.RunAttempt(
            attempt_id=task.attempt_id,
            epoch=task.epoch,
            running=True,
            started_at=SystemClock().wall(),
        )
        self._dropped.clear()
        self._device.epoch = task.epoch
        self._device.use = device_pb2.USE_PREPARING
        await asyncio.sleep(PREPARE_S)
        self._device.use = device_pb2.USE_LEASED
        await asyncio.sleep(self.run_s * self._random.uniform(0.5, 1.5))
        self._run.result.samples_ns.extend(range(1000, 1010))
        self._run.result.target = self._device.description.targets[0]
        self._run.ended_at = SystemClock().wall()
        self._tell()
        await self._dropped.wait()
        self.figures.finished.append(task.job_id)
        self._run = None
        self._device.use = device_pb2.USE_CLEANING
        await asyncio.sleep(CLEAN_S)
        self._device.use = device_pb2.USE_IDLE
        self._idle_since = time.perf_counter()
        self._tell()


class LoadProcesses:
    """Processes that each run some of the agents; a context manager.

    Parameters
    ----------
    address
        The tracker, whose credentials of this user can enrol agents.
    """

    def __init__(self, address: str, agents: int, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        given = credentials.find(address)
        self._pipes: list[Pipe] = []
        self._processes = []
        for part in range(processes):
            ours, theirs = context.Pipe()
            numbers = range(part, agents, processes)
            process = context.Process(
                target=_run, args=(address, given, numbers, theirs), daemon=True
            )
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> LoadProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def heal(self) -> None:
        """Let every device be granted."""
        self._ask("heal")

    def run_for(self, seconds: float) -> None:
        """Let every run from now on take so long."""
        self._ask(seconds)

    def figures(self) -> Figures:
        """Return what all agents saw since the last time."""
        total = Figures()
        for it in self._ask("figures"):
            assert isinstance(it, Figures)
            total.finished += it.finished
            total.grant_s += it.grant_s
            total.online += it.online
        return total

    def _ask(self, what: object) -> Iterator[object]:
        for pipe in self._pipes:
            pipe.send(what)
        return iter([pipe.recv() for pipe in self._pipes])


async def _nothing() -> None:
    """Hold nothing back before dialling."""


def _run(address: str, given: Credentials, numbers: range, pipe: Pipe) -> None:
    asyncio.run(_run_all(address, given, numbers, pipe))


async def _run_all(address: str, given: Credentials, numbers: range, pipe: Pipe) -> None:
    tokens = await _enrol(address, given, numbers)
    agents = [
        SimulatedAgent(number, address, given, token)
        for number, token in zip(numbers, tokens, strict=True)
    ]
    tasks = [asyncio.create_task(it.run()) for it in agents]
    while True:
        match await asyncio.to_thread(pipe.recv):
            case "heal":
                for agent in agents:
                    agent.heal()
                pipe.send(None)
            case "figures":
                total = Figures()
                for agent in agents:
                    total.finished += agent.figures.finished
                    total.grant_s += agent.figures.grant_s
                    total.online += agent.figures.online
                    agent.figures = Figures(online=agent.figures.online)
                for task in tasks:
                    if task.done():
                        task.result()
                pipe.send(total)
            case float(seconds):
                for agent in agents:
                    agent.run_s = seconds
                pipe.send(None)


async def _enrol(address: str, given: Credentials, numbers: range) -> list[str]:
    gate = asyncio.Semaphore(ENROL_AT_ONCE)
    async with aio_channel(address, credentials=given) as channel:
        stub = identity_pb2_grpc.IdentityServiceStub(channel)

        async def one(number: int) -> str:
            async with gate:
                request = identity_pb2.EnrolRequest(agent_id=f"load-{number:04d}")
                return (await stub.Enrol(request)).token

        return list(await asyncio.gather(*map(one, numbers)))
