"""One process of an agent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from farm.api.v1 import (
    agent_pb2,
    build_pb2,
    device_pb2,
    error_pb2,
    job_pb2,
    session_pb2,
    tensor_pb2,
)
from farm.errors import FarmError, Fenced
from farm.rpc import digest_to_proto, error_from_rpc
from farm.target import Target
from tracker_ends.client import SIGNATURE, X86, Client

Answer = Callable[[session_pb2.SessionRequest], session_pb2.SessionReply]


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
                self.uses[device_id] = (device_pb2.USE_IDLE, epoch)
                self._changed.set()
            if grant is not None and grant.epoch != epoch and self.prepares:
                self.uses[device_id] = (device_pb2.USE_LEASED, grant.epoch)
                self._start(grant.lease_id, self._serve(grant))
                self._changed.set()
        self.grants = grants
        for it in desired.ended:
            use, epoch = self.uses.get(it.device_id, (device_pb2.USE_IDLE, 0))
            if use == device_pb2.USE_IDLE and epoch < it.epoch:
                self.uses[it.device_id] = (use, it.epoch)
                self._changed.set()

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
