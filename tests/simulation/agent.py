"""An agent's process: the real core with a thin shell.

Owns: doing what the core commands, in the order of the real shell; freezing, crashing, stopping.
Does not own: decisions (`farm_agents.state`, the real code), processes (`host`), messages on their way (`network`).

Each part stands for real code: `apply` and `_carry_out` for those of `farm_agents.agent.Agent`, `_keep_checking` and
`_check` for its loop and `LocalDevice.check`, `_serve` to `_opened` for `_run_session` and `Session.prepare/serve`,
`_clean` for `_clean` and `Session.end`, the `_build_*` steps for `_build` and `Builder.build`, `_connect` to `_broken`
for `_keep_connected`, `_synchronise` and `_keep_sending`, `stop` for `_shut_down`.

Invariant: a frozen process does nothing, a dead one never does anything again; what its children do goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farm_agents.agent import DELIVER_FIRST_S, STOP_LIMIT_S
from farm_agents.backoff import Backoff
from farm_agents.failures import failed_from
from farm_agents.health import RECHECK_SICK_S, RECHECK_WELL_S
from farm_agents.state import core, initial_state, next_deadline
from farm_agents.state.messages import (
    BuildEnded,
    BuildMoved,
    Check,
    Clean,
    Cleaned,
    Crashed,
    DropRun,
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
from farm_agents.state.model import BuildPhase, Built, Health, Use
from farm_agents.stream import HEARTBEAT_MARGIN, SILENCE_S

from farm.core.digest import digest_of
from farm.errors import BuildFailed, Cancelled, FarmError, Fenced, InfrastructureError
from simulation.network import DOWN, UP, Stream
from simulation.runs import Runner
from simulation.wire import Sent, report_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from farm_agents.state.messages import Command, Event
    from farm_agents.state.model import BuildOrder, Grant, Outcome
    from farm_tracker.state.model import Description

    from farm.core.ids import AgentId, DeviceId, Epoch
    from simulation.farm import Farm
    from simulation.host import Host, Process, Rig
    from simulation.network import Path
    from simulation.world import Timer

BAD_CAUSE = "locked by another process"


@dataclass(frozen=True, slots=True)
class Site:
    """What an agent is, whichever process speaks for it."""

    agent_id: AgentId
    host: Host
    path: Path
    described: dict[DeviceId, Description]
    builds: tuple[str, ...]
    slots: int


@dataclass(eq=False, slots=True)
class Served:
    """One lease being served."""

    grant: Grant
    rig: Rig
    process: Process | None = None
    ended: bool = False
    is_open: bool = False
    was_opened: bool = False
    crashed: bool = False
    agent: Agent | None = None


@dataclass(eq=False, slots=True)
class Building:
    """One build attempt being carried out."""

    order: BuildOrder
    timer: Timer | None = None
    killed: bool = False


class Agent:
    """One process of an agent, from its start to its end."""

    def __init__(self, farm: Farm, site: Site, instance_id: str) -> None:
        self.farm = farm
        self.world = farm.world
        self.site = site
        self.instance_id = instance_id
        self.is_alive = True
        self.is_frozen = False
        self.was_fenced = False
        self.clock_offset = farm.world.between(0.0, 1000.0)
        self.runner = Runner(self)
        self.state = initial_state(site.described, site.slots, self.runner.load())
        self.link: Stream | None = None
        self.connected = 0
        self.serving: dict[DeviceId, Served] = {}
        self.heartbeat_s = 1.0
        self._backlog: list[tuple[Timer | None, Callable[..., None], tuple[Any, ...]]] = []
        self._cleaning: set[tuple[DeviceId, Epoch]] = set()
        self._building: dict[str, Building] = {}
        self._timer: Timer | None = None
        self._beat: Timer | None = None
        self._silence: Timer | None = None
        self._send_wanted = False
        self._backoff = Backoff(source=farm.world.random)
        for device_id in site.described:
            self.later(farm.world.between(0.0, 0.3), self._keep_checking, device_id)
        self._connect()

    def now(self) -> float:
        """Return the time on this host's steady clock."""
        return self.world.now + self.clock_offset

    def later(self, delay_s: float, call: Callable[..., None], *args: object) -> Timer:
        """Let this process do something later; frozen it does it when it thaws, dead never."""
        timer = self.world.later(delay_s, self._due, call, args)
        timer.args = (timer, call, args)
        return timer

    def _due(self, timer: Timer, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.is_frozen:
            self._backlog.append((timer, call, args))
        elif self.is_alive and not timer.cancelled:
            call(*args)

    def act(self, call: Callable[..., None], *args: object) -> None:
        """Do something now, unless this process cannot."""
        if self.is_frozen:
            self._backlog.append((None, call, args))
        elif self.is_alive:
            call(*args)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.is_frozen = True
        self.world.tell(self.instance_id, "frozen")

    def thaw(self) -> None:
        """SIGCONT: everything that came meanwhile happens now."""
        if not self.is_frozen or not self.is_alive:
            return
        self.world.tell(self.instance_id, "thawed, %d things to do", len(self._backlog))
        self.is_frozen = False
        backlog, self._backlog = self._backlog, []
        if self._timer is not None and self.world.chance(0.5):
            self._tick()  # the loop may look at its timers first
        for timer, call, args in backlog:
            if timer is None or not timer.cancelled:
                self.act(call, *args)

    def crash(self) -> None:
        """SIGKILL: the kernel closes its streams; its children notice and end, if they can."""
        if not self.is_alive:
            return
        self.world.tell(self.instance_id, "killed")
        self._die(linger_s=self.world.between(0.0, 1.5))

    def _die(self, linger_s: float) -> None:
        self.is_alive = False
        self.is_frozen = False
        if self.link is not None:
            self.link.close(DOWN)
        for device_id in self.site.described:
            rig = self.site.host.rigs[device_id]
            for process in rig.of(self.instance_id):
                self.world.later(linger_s, rig.kill, process)
            rig.unlock(self)
        self.farm.agent_died(self)

    # The core

    def apply(self, event: Event) -> None:
        """Let the core take an event and do what it says."""
        self.state, commands = core.step(self.state, event, self.now())
        self.farm.checks.agent_stepped(self)
        for command in commands:
            self._carry_out(command)
        self._arm()

    def _carry_out(self, command: Command) -> None:  # noqa: C901 - one case each
        match command:
            case Prepare(grant):
                self._serve(grant)
            case Clean(device_id, epoch):
                if (device_id, epoch) not in self._cleaning:
                    self._cleaning.add((device_id, epoch))
                    self._clean(device_id, epoch)
            case Check(device_id):
                self._check(device_id)
            case StartBuild(order):
                self._building[order.attempt_id] = building = Building(order)
                building.timer = self.later(0.0, self._build_fetch, building)
            case KillBuild(attempt_id):
                self._build_kill(attempt_id)
            case StartRun(order):
                self.runner.start(order, self.serving.get(order.device_id))
            case KillRun(attempt_id):
                self.runner.kill(attempt_id)
            case DropRun(attempt_id):
                self.runner.drop(attempt_id)
            case Fence():
                self.world.tell(self.instance_id, "refused epoch %d", command.epoch)
            case Report():
                self._wake()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = next_deadline(self.state)
        if at is not None:
            self._timer = self.later(max(0.0, at - self.now()), self._tick)

    def _tick(self) -> None:
        at = next_deadline(self.state)
        if at is not None and at <= self.now() + 1e-9:
            self.apply(Tick())
        else:
            self._arm()

    # Devices and sessions

    def _keep_checking(self, device_id: DeviceId) -> None:
        if self.state.devices[device_id].use is Use.IDLE:
            self._check(device_id)
        well = self.state.devices[device_id].health is Health.GOOD
        self.later(RECHECK_WELL_S if well else RECHECK_SICK_S, self._keep_checking, device_id)

    def _check(self, device_id: DeviceId) -> None:
        self.later(self.world.between(0.01, 0.2), self._checked, device_id)

    def _checked(self, device_id: DeviceId) -> None:
        rig = self.site.host.rigs[device_id]
        if not rig.lock(self):
            health, cause = Health.BAD, BAD_CAUSE
        elif rig.is_sick or self.site.host.disk_full:
            health, cause = Health.BAD, "the probe failed"
        else:
            health, cause = Health.GOOD, ""
        before = self.state.devices[device_id]
        if (before.health, before.health_cause) != (health, cause):
            self.apply(HealthSeen(device_id, health, cause))

    def _serve(self, grant: Grant) -> None:
        served = Served(grant, self.site.host.rigs[grant.device_id])
        self.serving[grant.device_id] = served
        slow = self.farm.plan.is_flaky and self.world.chance(0.03)
        wait_s = self.world.between(5.0, 60.0) if slow else self.world.between(0.005, 0.3)
        self.later(wait_s, self._prepared, served)

    def _prepared(self, served: Served) -> None:
        if served.ended:
            return
        grant = served.grant
        if self.site.host.disk_full or (self.farm.plan.is_flaky and self.world.chance(0.02)):
            self._session_failed(served, "the worker does not start")
            return
        served.process = served.rig.start(self, grant.epoch, self.farm.kill_s())
        if self.state.is_for_run(grant):  # what runs needs no stream
            self.apply(Prepared(grant.device_id, grant.epoch))
        else:
            self._open(served)

    def _open(self, served: Served) -> None:
        """Open the session's stream once the control stream is up: `Session.serve`."""
        if served.ended:
            return
        if not self.is_connected:
            self.later(0.2, self._open, served)
            return
        count = self.connected
        if not served.was_opened:
            served.was_opened = True
            self.apply(Prepared(served.grant.device_id, served.grant.epoch))
        self.farm.open_session(self, served, lambda error: self._opened(served, count, error))

    def _opened(self, served: Served, count: int, error: FarmError | None) -> None:
        served.is_open = error is None
        if served.ended or error is None:
            return
        if isinstance(error, Fenced) and self.connected == count:
            self._session_failed(served, error.message)
        else:
            self.later(self.world.between(0.05, 2.0), self._open, served)

    def session_ended(self, served: Served, error: FarmError) -> None:
        """Take the end of a session that the tracker ended with an error: `Session.serve` raises it."""
        if served.ended or not served.is_open:
            return
        if isinstance(error, Fenced):
            self._session_failed(served, error.message)
        else:
            self.session_broke(served)

    def session_broke(self, served: Served) -> None:
        """Open the session's stream anew, as `Session.serve` does when it breaks."""
        served.is_open = False
        self.later(self.world.between(0.05, 0.2), self._open, served)

    def _session_failed(self, served: Served, cause: str) -> None:
        served.is_open = False
        self.apply(SessionFailed(served.grant.device_id, served.grant.epoch, cause))

    def _clean(self, device_id: DeviceId, epoch: Epoch) -> None:
        served = self.serving.pop(device_id)
        served.ended = True
        for process in served.rig.of(self.instance_id):
            served.rig.kill(process)
        self.later(self.world.between(0.001, 0.05), self._cleaned, served, epoch)

    def _cleaned(self, served: Served, epoch: Epoch) -> None:
        """The proof: `Session.end` returns when nothing of the tree is left."""
        if served.rig.of(self.instance_id):
            self.later(0.25, self._cleaned, served, epoch)
            return
        served.rig.cleaned_epoch = max(served.rig.cleaned_epoch, epoch)
        self._cleaning.discard((served.grant.device_id, epoch))
        if served.crashed:
            self.apply(Crashed(served.grant.device_id, epoch))
        self.apply(Cleaned(served.grant.device_id, epoch))

    # Builds

    def _build_fetch(self, building: Building) -> None:
        if not self.reaches_tracker:  # blobs come from the tracker: tried until it is there
            building.timer = self.later(0.3, self._build_fetch, building)
            return
        if self.site.host.disk_full:
            self._build_end(building, failed_from(InfrastructureError("disk: full; free it")))
            return
        self.apply(BuildMoved(building.order.attempt_id, BuildPhase.COMPILING))
        took_s = self.farm.compile_s(building.order.symbol)
        building.timer = self.later(took_s, self._build_compiled, building, took_s)

    def _build_compiled(self, building: Building, took_s: float) -> None:
        symbol = building.order.symbol
        self.farm.checks.compiled(building.order.attempt_id)
        self.apply(BuildMoved(building.order.attempt_id, BuildPhase.STORING))
        if symbol.startswith("wrong"):
            self._build_end(building, failed_from(BuildFailed(f"{symbol}: wrong; fix it")), took_s)
        else:
            building.timer = self.later(0.01, self._build_store, building, took_s)

    def _build_store(self, building: Building, took_s: float) -> None:
        if not self.reaches_tracker:
            building.timer = self.later(0.3, self._build_store, building, took_s)
            return
        order = building.order
        made = digest_of(f"{order.target} {order.symbol}".encode())
        self._build_end(building, Built(made, "elf-object", 1, (), "test 1", b"{}"), took_s)

    def _build_kill(self, attempt_id: str) -> None:
        building = self._building.get(attempt_id)
        if building is None or building.killed:
            return
        building.killed = True
        if building.timer is not None:
            building.timer.cancel()
        outcome = failed_from(Cancelled(f"build {attempt_id}: no longer wanted"))
        wait_s = min(self.farm.kill_s(), 20.0)
        self.later(wait_s, self._build_end, building, outcome)

    def _build_end(self, building: Building, outcome: Outcome, took_s: float = 0.0) -> None:
        attempt_id = building.order.attempt_id
        del self._building[attempt_id]
        self.apply(BuildEnded(attempt_id, outcome, took_s))

    # The control stream

    @property
    def is_connected(self) -> bool:
        """Whether the tracker has answered on the control stream (`Connection`)."""
        return self.connected % 2 == 1

    @property
    def reaches_tracker(self) -> bool:
        """Whether a call to the tracker, such as for a blob, would be answered."""
        return self.farm.tracker is not None and not any(self.site.path.cut)

    def _connect(self, waited_s: float = 0.0) -> None:
        """Dial; results that wait for the store hold it back for a while, so that they are told with it."""
        if self.runner.is_delivering and waited_s < DELIVER_FIRST_S:
            self.later(0.1, self._connect, waited_s + 0.1)
        else:
            self.later(self.site.path.latency_s(), self._dial)

    def _dial(self) -> None:
        if not self.reaches_tracker:
            self.later(self._backoff.next_s(), self._connect)
            return
        self.link = self.farm.open_link(self)
        self._arm_silence(self.link)
        self._send_state(connected=True)

    def report(self, *, connected: bool) -> Any:
        """Return the state as a message."""
        site = self.site
        return report_of(
            self.state,
            site.agent_id,
            self.instance_id,
            site.builds,
            site.described,
            connected=connected,
        )

    def _send_state(self, *, connected: bool = False) -> None:
        if self.link is None:
            return
        self._send_wanted = False
        if self._beat is not None:
            self._beat.cancel()
        self.farm.checks.agent_reports(self)
        told = frozenset(
            it.order.attempt_id
            for it in self.state.runs.values()
            if it.outcome is not None and not it.is_told
        )
        self.link.send(UP, self.report(connected=connected))
        if told:
            self.apply(RunsTold(told))
        self._beat = self.later(self.heartbeat_s * HEARTBEAT_MARGIN, self._send_state)

    def _wake(self) -> None:
        if not self._send_wanted and self.link is not None:
            self._send_wanted = True
            self.later(0.0, self._send_state)

    def _arm_silence(self, link: Stream) -> None:
        if self._silence is not None:
            self._silence.cancel()
        self._silence = self.later(SILENCE_S, self._hears_nothing, link)

    def _hears_nothing(self, link: Stream) -> None:
        """Dial again: a tracker that is there says something every now and then."""
        if link is self.link:
            link.close(DOWN)
            self.broken(link, InfrastructureError("tracker: silent"))

    def take(self, link: Stream, message: Sent) -> None:
        """Take a desired state that came on a stream."""
        if link is not self.link:
            return
        self._arm_silence(link)
        self._backoff.reset()
        if not self.is_connected:
            self.connected += 1
        self.heartbeat_s = message.heartbeat_s
        self.apply(message.received(self.now()))

    def broken(self, link: Stream, error: FarmError | None) -> None:
        """Notice that the control stream ended."""
        if link is not self.link:
            return
        self.world.tell(self.instance_id, "control stream ended: %s", error or "broken")
        self.link = None
        if self.is_connected:
            self.connected += 1
        if isinstance(error, Fenced):
            self.was_fenced = True
            self.stop()
        elif not self.state.stopping:
            self.later(self._backoff.next_s(), self._connect)

    # The end

    def stop(self) -> None:
        """End in order: give up everything, wait until it is gone or the limit has passed."""
        self.apply(Stop())
        self._wait_for_rest(self.now() + STOP_LIMIT_S)

    def _wait_for_rest(self, until: float) -> None:
        if self.state.at_rest or self.now() >= until:
            self.world.tell(self.instance_id, "ends")
            self._die(linger_s=0.0)
        else:
            self.later(0.1, self._wait_for_rest, until)
