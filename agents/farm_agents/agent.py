"""The agent: a shell around the pure core that does what its commands say.

Owns: timers, and starting what the core commands.
Does not own: decisions (`farm_agents.state`), the stream to the tracker, sessions, builds, runs and devices
(modules of those names).

Invariant: every change of state goes through `step`; the agent ends only when it is told to, or when a newer
process has taken its id: never because the tracker is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import shutil
from collections.abc import Callable, Coroutine
from typing import Any

from farm.api.v1 import agent_pb2, agent_pb2_grpc
from farm.core.clock import Clock, SystemClock
from farm.core.files import private_folder
from farm.core.ids import AttemptId, DeviceId, Epoch, IdSource, random_id
from farm.core.tasks import end_tasks
from farm.errors import (
    Cancelled,
    FarmError,
    Fenced,
    InfrastructureError,
    InvalidInput,
)
from farm.rpc.blobs import BlobStub
from farm_agents.builder import Builder
from farm_agents.cache import BlobCache
from farm_agents.connection import Connection
from farm_agents.crash_points import pass_phases
from farm_agents.credential import Credential
from farm_agents.device import LocalDevice
from farm_agents.failures import failed_from
from farm_agents.health import DeviceHealth
from farm_agents.outbox import Outbox
from farm_agents.runs import Runner
from farm_agents.sandbox.confinement import Confinement
from farm_agents.session import Identity, Session
from farm_agents.spec import AgentSpec
from farm_agents.state import State, initial_state, next_deadline, step
from farm_agents.state.messages import (
    BuildEnded,
    BuildMoved,
    Check,
    Clean,
    Cleaned,
    Command,
    Crashed,
    DropRun,
    Event,
    Fence,
    HealthSeen,
    KillBuild,
    KillRun,
    Prepare,
    Prepared,
    Report,
    RunsTold,
    SessionFailed,
    StartBuild,
    StartRun,
    Stop,
    Tick,
)
from farm_agents.state.model import BuildOrder, BuildPhase, Failed, Grant, Use
from farm_agents.state.run import RunPhase
from farm_agents.stream import ControlStream, Message
from farm_agents.toolchains import find_toolchains
from farm_agents.wire import desired_from_proto, state_to_proto

STOP_LIMIT_S = 20.0
DELIVER_FIRST_S = 3.0
"""How long results that wait for the store hold a new connection back: told with it, they still count."""

_LOG = logging.getLogger("farm_agents")


async def run_agent(
    spec: AgentSpec,
    stop: asyncio.Event,
    *,
    clock: Clock | None = None,
    new_id: IdSource = random_id,
    on_connected: Callable[[], None] = lambda: None,
    yields: bool = False,
) -> None:
    """Run one agent until `stop` is set; every process of it is gone when this returns.

    Parameters
    ----------
    on_connected
        Called each time that the tracker begins to answer.
    yields
        Wait while another process speaks for this agent, instead of replacing it.

    Raises
    ------
    Fenced
        A newer process has connected under the same agent id; do not start this one again.
    InvalidInput
        The specification names an unknown driver, a malformed address, or a family that no compiler here knows.
    """
    await Agent(spec, clock or SystemClock(), new_id, on_connected, yields).run(stop)


class Agent:
    """One agent process. `run_agent` makes one and runs it."""

    def __init__(
        self,
        spec: AgentSpec,
        clock: Clock,
        new_id: IdSource,
        on_connected: Callable[[], None],
        yields: bool = False,
    ) -> None:
        self._yields = yields
        self._spec = spec
        self._clock = clock
        self._identity = Identity(spec.agent_id, new_id("instance"))
        self._confinement = Confinement(spec.sandbox, spec.work_dir, new_id, clock)
        self._devices = {
            device.device_id: LocalDevice(spec, device, new_id, self._confinement)
            for device in spec.devices
        }
        self._state = initial_state(self._devices, spec.slots)
        self._credential = Credential(spec.tracker, spec.agent_id, spec.work_dir)
        channel = self._channel = self._credential.channel()
        self._stub: agent_pb2_grpc.AgentServiceAsyncStub = agent_pb2_grpc.AgentServiceStub(channel)
        self._cache = BlobCache(spec.work_dir / "cache", BlobStub(channel))
        canaries = spec.work_dir / "canaries"
        self._health = {
            name: DeviceHealth(
                *(device, self._cache, canaries / name, clock, spec.canary_every_s),
                functools.partial(self._is_idle, name),
            )
            for name, device in self._devices.items()
        }
        self._builder = Builder(
            *(spec.builds, self._cache, spec.work_dir, new_id, self._confinement, spec.slots)
        )
        outbox = Outbox(spec.work_dir / "outbox")
        self._runner = Runner(self._cache, outbox, clock, self._apply)
        self._toolchains: dict[str, str] = {}
        self._numbers = itertools.count(1)  # of what is told, over all streams
        self._sessions: dict[DeviceId, Session] = {}
        self._serving: dict[DeviceId, asyncio.Task[None]] = {}
        self._cleaning: set[tuple[DeviceId, Epoch]] = set()
        self._building: dict[AttemptId, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._connection = Connection(on_connected)
        self._stream = ControlStream(
            spec.tracker,
            self._stub,
            self._credential,
            self._connection,
            self._message,
            self._take_desired,
            functools.partial(self._runner.delivered, DELIVER_FIRST_S),
        )
        self._moved = asyncio.Event()
        self._ended: asyncio.Future[None] | None = None

    @property
    def state(self) -> State:
        """What the core knows now."""
        return self._state

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set or a newer process takes over."""
        self._ended = asyncio.get_running_loop().create_future()
        self._spawn(self._begin())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            waits: set[asyncio.Future[Any]] = {stopping, self._ended}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            await self._shut_down()
        if self._ended.done():
            self._ended.result()

    async def _begin(self) -> None:
        await asyncio.to_thread(_prepare_folders, self._spec)
        if self._yields:
            await self._stream.wait_for_turn()
        await self._resume_runs()
        self._spawn(self._keep_time())
        self._spawn(self._warm_builder())
        self._spawn(self._confinement.keep_testing())
        self._spawn(self._name_toolchains())
        for health in self._health.values():
            self._spawn(self._keep_checking(health))
        self._spawn(self._keep_connected())

    # The core

    def _apply(self, event: Event) -> None:
        before = self._state.runs
        self._state, commands = step(self._state, event, self._clock.now())
        pass_phases(before, self._state.runs)
        self._moved.set()
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Prepare(grant):
                self._serve(grant)
            case Clean(device_id, epoch):
                if (device_id, epoch) not in self._cleaning:
                    self._cleaning.add((device_id, epoch))
                    self._spawn(self._clean(device_id, epoch))
            case Check(device_id):
                self._spawn(self._check(self._health[device_id]))
            case StartBuild(order):
                task = self._building[order.attempt_id] = self._spawn(self._build(order))
                task.add_done_callback(functools.partial(self._build_done, order))
            case KillBuild(attempt_id):
                self._kill_build(attempt_id)
            case StartRun() | KillRun() | DropRun():
                self._carry_out_run(command)
            case Fence():
                _LOG.warning(
                    "lease %s of %s: epoch %d refused, %d was served already",
                    command.lease_id,
                    command.device_id,
                    command.epoch,
                    command.last_epoch,
                )
            case Report():
                self._stream.send_soon()

    def _kill_build(self, attempt_id: AttemptId) -> None:
        building = self._building.get(attempt_id)
        if building is not None:
            building.cancel()

    def _carry_out_run(self, command: StartRun | KillRun | DropRun) -> None:
        match command:
            case StartRun(order):
                work = self._runner.run(order, self._sessions[order.device_id])
                self._runner.started(order.attempt_id, self._spawn(work))
            case KillRun(attempt_id):
                self._runner.kill(attempt_id)
            case DropRun(attempt_id):
                self._spawn(self._runner.drop(attempt_id))

    async def _keep_time(self) -> None:
        while True:
            self._moved.clear()
            deadline = next_deadline(self._state)
            wait_s = None if deadline is None else max(0.0, deadline - self._clock.now())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._moved.wait()
                continue
            self._apply(Tick())

    # Devices and sessions

    async def _keep_checking(self, health: DeviceHealth) -> None:
        while True:
            if self._is_idle(health.device.device_id):
                await self._check(health)
            await asyncio.sleep(health.recheck_s())

    def _is_idle(self, device_id: DeviceId) -> bool:
        return self._state.devices[device_id].use is Use.IDLE

    async def _check(self, health: DeviceHealth) -> None:
        device_id = health.device.device_id
        found = await health.check()
        before = self._state.devices[device_id]
        if found is not None and (before.health, before.health_cause) != (
            found.health,
            found.cause,
        ):
            _LOG.info("device %s: %s %s", device_id, found.health.value, found.cause)
            self._apply(HealthSeen(device_id, found.health, found.cause))

    def _serve(self, grant: Grant) -> None:
        folder = self._spec.work_dir / "sessions" / f"{grant.lease_id}.{grant.epoch}"
        session = Session(grant, self._devices[grant.device_id], self._cache, folder)
        self._sessions[grant.device_id] = session
        self._serving[grant.device_id] = self._spawn(self._run_session(session))

    async def _run_session(self, session: Session) -> None:
        grant = session.grant
        try:
            await self._health[grant.device_id].stand_aside()
            await session.prepare()
            self._apply(Prepared(grant.device_id, grant.epoch))
            if not self._state.is_for_run(grant):  # else nobody talks to it but this agent
                await session.serve(self._stub, self._identity, self._connection)
        except (FarmError, OSError) as error:  # such as a full disk
            _LOG.warning("lease %s: %s", grant.lease_id, error)
            self._apply(SessionFailed(grant.device_id, grant.epoch, str(error)))

    async def _clean(self, device_id: DeviceId, epoch: Epoch) -> None:
        try:
            serving = self._serving.pop(device_id)
            session = self._sessions.pop(device_id)
            await end_tasks([serving])
            await session.end()
        finally:
            self._cleaning.discard((device_id, epoch))
        if session.crashed:
            self._health[device_id].suspect()
            self._apply(Crashed(device_id, epoch))
        self._apply(Cleaned(device_id, epoch))

    # Builds

    async def _warm_builder(self) -> None:
        if self._spec.builds and self._spec.slots:
            try:
                await self._builder.zygote()
            except InfrastructureError as error:
                _LOG.warning("%s", error.message)

    async def _name_toolchains(self) -> None:
        try:
            self._toolchains = await find_toolchains(self._spec.builds)
            self._stream.send_soon()
        except InvalidInput as error:  # waiting mends nothing: whoever started it has to know
            self._end(error)
        except (InfrastructureError, OSError) as error:
            _LOG.warning("%s", error)

    async def _build(self, order: BuildOrder) -> None:
        attempt_id = order.attempt_id

        def moved(phase: BuildPhase) -> None:
            self._apply(BuildMoved(attempt_id, phase))

        seconds = 0.0
        try:
            outcome, seconds = await self._builder.build(order, moved)
        except FarmError as error:
            outcome = failed_from(error)
        except asyncio.CancelledError:
            outcome = _unwanted(order)
        except OSError as error:
            outcome = failed_from(
                InfrastructureError(f"build {order.symbol}: {error}; look at the agent's disk")
            )
        del self._building[attempt_id]
        self._apply(BuildEnded(attempt_id, outcome, seconds))

    def _build_done(self, order: BuildOrder, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before its first step: it could not answer itself
            del self._building[order.attempt_id]
            self._apply(BuildEnded(order.attempt_id, _unwanted(order), 0.0))

    # Runs

    async def _resume_runs(self) -> None:
        runs, unstored = await asyncio.to_thread(self._runner.load, self._clock.now())
        self._state = initial_state(self._devices, self._spec.slots, runs)
        for attempt in unstored:
            task = self._spawn(self._runner.deliver(attempt))
            self._runner.started(AttemptId(attempt.attempt_id), task)

    # The control stream

    async def _keep_connected(self) -> None:
        try:
            await self._stream.keep_up()
        except Fenced as error:
            self._end(error)

    def _take_desired(self, message: agent_pb2.DesiredState) -> None:
        desired, refused = desired_from_proto(message, self._clock.now())
        for error in refused:
            _LOG.warning("desired state %d: %s", message.revision, error.message)
        self._apply(desired)

    def _message(self) -> Message:
        message = state_to_proto(
            self._state, self._spec, self._identity, self._devices, self._toolchains
        )
        message.sequence = next(self._numbers)
        ended = frozenset(
            attempt_id
            for attempt_id, run in self._state.runs.items()
            if run.phase is RunPhase.FINISHED and not run.is_told
        )
        return message, lambda: self._apply(RunsTold(ended)) if ended else None

    # Tasks and the end

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a defect: better a restart than an agent that half works
            self._end(error)

    def _end(self, error: BaseException) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    async def _shut_down(self) -> None:
        self._apply(Stop())
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                while not self._state.at_rest:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            _LOG.error("agent %s: work did not end in %g s", self._spec.agent_id, STOP_LIMIT_S)
        await end_tasks(self._tasks)
        await asyncio.gather(
            self._builder.close(), *(device.close() for device in self._devices.values())
        )
        self._confinement.close()
        await self._channel.close()


def _unwanted(order: BuildOrder) -> Failed:
    return failed_from(Cancelled(f"build {order.symbol}: no longer wanted; build again"))


def _prepare_folders(spec: AgentSpec) -> None:
    for name in ("sessions", "builds", "canaries"):  # what an earlier process left is nobody's
        shutil.rmtree(spec.work_dir / name, ignore_errors=True)
    for name in ("cache", "logs", "sessions", "builds"):
        private_folder(spec.work_dir / name)
