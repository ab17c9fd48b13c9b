"""One simulated farm: its processes, its network, its faults, and whether it comes to rest.

Owns: putting a plan together, carrying its faults out, mending everything at the end, supervision (a process that
died is started again, as Ray, systemd or a person would). Does not own: any rule of the farm.

Invariant: after `FAULTS_END_S` nothing new goes wrong, so that the farm must come to rest.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from farm_tracker.state.account import NO_LIMITS
from farm_tracker.state.events import AdminSet
from farm_tracker.state.model import (
    Admin,
    Description,
    Health,
    LeaseState,
    Observed,
    TimingClass,
    Use,
)

from farm.core.ids import AgentId, DeviceId
from farm.errors import FarmError, InfrastructureError
from simulation.accounts import Accountant
from simulation.agent import Agent, Served, Site
from simulation.checks import Checks, fail
from simulation.clients import BuildClient, JobClient, LeaseClient, selector_of
from simulation.disk import Disk
from simulation.host import NEVER, Host, Rig
from simulation.network import Path, Stream
from simulation.plan import FAULTS_END_S, RUNS
from simulation.tracker import Link, Tracker
from simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from farm_tracker.state.model import Device
    from farm_tracker.state.state import State

    from simulation.plan import AgentPlan, Fault, Plan

REST_LIMIT_S = 240.0
"""How long after the last fault everything must be done: the longest lease, limits of builds, retries."""


class Farm:
    """A farm that lives through a plan."""

    def __init__(self, plan: Plan, *, trace: bool = False) -> None:
        self.plan = plan
        self.world = World(plan.seed, trace=trace)
        self.disk = Disk()
        self.checks = Checks(self)
        self.wall_offset = 0.0
        self.tracker: Tracker | None = None
        self.boots = 0
        self.rigs: dict[str, Rig] = {}
        self.hosts: dict[str, Host] = {}
        self.paths: dict[str, Path] = {}
        self.sites: dict[str, Site] = {}
        self.agents: dict[str, list[Agent]] = {}
        self.duplicating: set[str] = set()
        self.is_mended = False
        self.accountant = Accountant(self)
        for agent in plan.agents:
            self._add(agent)
        self.client_path = Path(self.world, "clients")
        self.boot()
        for agent in plan.agents:
            self.world.later(self.world.between(0.0, 1.0), self.start_agent, agent.agent_id)
        self.clients: list[LeaseClient | BuildClient | JobClient] = [
            *(LeaseClient(self, it) for it in plan.leases),
            *(BuildClient(self, it) for it in plan.builds),
            *(JobClient(self, it) for it in plan.jobs),
        ]
        for fault in plan.faults:
            self.world.later(fault.at, self._strike, fault)

    def run(self) -> None:
        """Live through the plan, then until everything is at rest.

        Raises
        ------
        Violation
            An invariant does not hold, or the farm does not come to rest.
        """
        self.world.run(FAULTS_END_S)
        self._mend()
        until = FAULTS_END_S + REST_LIMIT_S
        reason = "it never looked"
        while self.world.now < until:
            self.world.run(self.world.now + 2.0)
            reason = self.unrest()
            if not reason:
                assert self.tracker is not None
                self.checks.at_end(self.tracker)
                return
        fail("converge", "%s", reason)

    @property
    def is_calm(self) -> bool:
        """Whether nothing but the tracker's process ever failed: then whatever runs is adopted, never run again."""
        killed = {it.kind for it in self.plan.faults} <= {"kill tracker", "kill tracker at"}
        return killed and not self.plan.is_flaky and not self.plan.nasty_kills

    def unrest(self) -> str:
        """Return what is still going on, or an empty text."""
        tracker = self.tracker
        if tracker is None:
            return "the tracker is down"
        unrest = itertools.chain(
            self._device_unrest(tracker.state), self._work_unrest(tracker.state)
        )
        return next(unrest, "")

    def _device_unrest(self, state: State) -> Iterator[str]:
        if set(state.devices) != set(self.rigs):
            yield f"devices {sorted(self.rigs)} but the tracker knows {sorted(state.devices)}"
        for device_id, device in state.devices.items():
            healthy = device.health is Health.GOOD or self._is_elsewhere(device)
            if device.admin is not Admin.ENABLED:
                yield f"device {device_id} is {device.admin}"
            if device.use is not Use.IDLE or device.observed is not Observed.ONLINE or not healthy:
                yield f"device {device_id} is {device.situation}"
            if self.rigs[device_id].processes:
                yield f"device {device_id} has a process left"

    def _work_unrest(self, state: State) -> Iterator[str]:  # noqa: C901 - one case each
        for lease_id, lease in state.leases.items():
            if lease.is_live or lease.state is LeaseState.QUEUED:
                yield f"lease {lease_id} is {lease.state}"
        for job_id, job in state.jobs.items():
            if job.is_open:
                yield f"build {job_id} is {job.state}"
        for name, account in state.accounts.items():
            if account.limits != NO_LIMITS:
                yield f"account {name} has limits: {account.limits}"
        if state.open_units:
            yield f"units {sorted(state.open_units.values())} are open"
        for client in self.clients:
            if not isinstance(client, LeaseClient) and not client.is_done:
                yield f"client {client.plan.name} still waits"
        for name, job in state.run_jobs.items():
            if job.is_open:
                yield f"job {name} is {job.state}: {'; '.join(job.story[-3:])}"
        for agent_id, processes in self.agents.items():
            if any(it.is_alive and it.state.runs for it in processes):
                yield f"agent {agent_id} still keeps runs"

    def _is_elsewhere(self, device: Device) -> bool:
        """Tell whether another agent of the host, to which the tracker does not listen, has the device."""
        holder = self.rigs[device.device_id].holder
        return holder is not None and holder.site.agent_id != device.agent_id

    # What the plan says of the work

    def kill_s(self) -> float:
        """Return how long a process outlives SIGKILL: mostly milliseconds, at times long, or for ever."""
        world = self.world
        if world.chance(self.plan.nasty_kills):
            return NEVER if world.chance(0.3) else world.between(1.0, 16.0)
        return world.between(0.001, 0.05)

    def compile_s(self, symbol: str) -> float:
        """Return how long the compiler takes for a function of that name."""
        if symbol.startswith("hang"):
            return 1e6
        if symbol.startswith("slow"):
            return self.world.between(2.0, 7.0)
        return self.world.between(0.05, 1.0)

    # Processes

    def _add(self, plan: AgentPlan) -> None:
        host = self.hosts.setdefault(plan.host, Host(plan.host, {}))
        described = {}
        for name in plan.devices:
            if name not in self.rigs:
                self.rigs[name] = Rig(name, self.world, self.checks)
            host.rigs[name] = self.rigs[name]
            described[DeviceId(name)] = Description(
                DeviceId(name), RUNS[name], {"kind": "sim"}, TimingClass.SIMULATED, ()
            )
        path = self.paths[plan.agent_id] = Path(self.world, plan.agent_id)
        agent_id = AgentId(plan.agent_id)
        self.sites[plan.agent_id] = Site(agent_id, host, path, described, plan.builds, plan.slots)
        self.agents[plan.agent_id] = []

    def boot(self) -> None:
        """Start the tracker; if its disk is full, try again soon."""
        if self.tracker is not None:
            return
        self.boots += 1
        tracker = Tracker(self, self.boots)
        self.world.tell("tracker", "starts, boot %d", self.boots)
        self.tracker = tracker
        try:
            tracker.start()
        except OSError as error:
            tracker.die(f"cannot start: {error}")

    def tracker_died(self, tracker: Tracker) -> None:
        """Have it started again."""
        if self.tracker is tracker:
            self.tracker = None
            self.world.later(self.world.between(0.1, 2.0), self.boot)

    def start_agent(self, agent_id: str) -> None:
        """Start a process of an agent."""
        processes = self.agents[agent_id]
        instance_id = f"{agent_id}#{len(processes) + 1}"
        self.world.tell(instance_id, "starts")
        processes.append(Agent(self, self.sites[agent_id], instance_id))

    def agent_died(self, agent: Agent) -> None:
        """Have one started again if none is left: what was fenced made way for another."""
        self.world.later(self.world.between(0.3, 4.0), self._restart_agent, agent.site.agent_id)

    def _restart_agent(self, agent_id: str) -> None:
        if not any(it.is_alive for it in self.agents[agent_id]):
            self.start_agent(agent_id)

    # The network

    def open_link(self, agent: Agent) -> Stream:
        """Open a control stream from an agent's process to the tracker that runs now."""
        tracker = self.tracker
        assert tracker is not None
        stream: Stream

        def up(report: object) -> None:
            tracker.act(tracker.hear, link, report)
            if agent.site.agent_id in self.duplicating and link.is_known:
                tracker.act(tracker.hear, link, report)

        def down(message: object) -> None:
            if isinstance(message, FarmError):
                agent.act(agent.broken, stream, message)
            else:
                agent.act(agent.take, stream, message)
                if agent.site.agent_id in self.duplicating:
                    agent.act(agent.take, stream, message)

        stream = Stream(
            agent.site.path,
            (up, down),
            (
                lambda: tracker.act(tracker.disconnect, link),
                lambda: agent.act(agent.broken, stream, None),
            ),
        )
        link = Link(agent, stream)
        tracker.streams.append(stream)
        return stream

    def call(self, request: Callable[[Tracker], None], failed: Callable[[object], None]) -> None:
        """Send a client's request to the tracker; what goes wrong before an answer goes to `failed`."""

        def arrive() -> None:
            tracker = self.tracker
            if tracker is None:
                failed(InfrastructureError("tracker: cannot be reached; try again"))
                return
            try:
                request(tracker)
            except FarmError as error:
                self.world.later(0.001, failed, error)

        self.world.later(self.client_path.latency_s(), arrive)

    # Sessions

    def open_session(
        self, agent: Agent, served: Served, answer: Callable[[FarmError | None], None]
    ) -> None:
        """Open an agent's stream of a session."""

        def arrive() -> None:
            tracker = self.tracker
            if tracker is None or any(agent.site.path.cut):
                error: FarmError | None = InfrastructureError("tracker: cannot be reached")
            else:
                error = tracker.serve(agent, served)
            self.world.later(agent.site.path.latency_s(), agent.act, answer, error)

        served.agent = agent
        self.world.later(agent.site.path.latency_s(), arrive)

    def session_ended(self, served: Served, error: FarmError) -> None:
        """The tracker ends a session with an error: the agent's stream ends with it."""
        agent = served.agent
        if agent is not None:
            self.world.later(
                agent.site.path.latency_s(), agent.act, agent.session_ended, served, error
            )

    def session_lost(self, served: Served) -> None:
        """The tracker died: the agent's stream of the session breaks."""
        agent = served.agent
        if agent is not None:
            self.world.later(agent.site.path.latency_s(), agent.act, agent.session_broke, served)

    # Faults

    def _strike(self, fault: Fault) -> None:
        self.world.tell("FAULT", "%s", fault)
        name = fault.kind.replace(" ", "_")
        getattr(self, f"_do_{name}")(fault)

    def _newest(self, agent_id: str) -> Agent | None:
        living = [it for it in self.agents[agent_id] if it.is_alive]
        return living[-1] if living else None

    def _do_kill_tracker(self, fault: Fault) -> None:
        if self.tracker is not None:
            self.tracker.die("killed")

    def _do_kill_tracker_at(self, fault: Fault) -> None:
        if self.tracker is not None:
            self.tracker.crash_in = (fault.detail, int(fault.target))

    def _do_kill_agent(self, fault: Fault) -> None:
        agent = self._newest(fault.target)
        if agent is not None:
            agent.crash()

    def _do_stop_agent(self, fault: Fault) -> None:
        agent = self._newest(fault.target)
        if agent is not None and not agent.state.stopping:
            agent.act(agent.stop)

    def _do_freeze_agent(self, fault: Fault) -> None:
        agent = self._newest(fault.target)
        if agent is not None:
            agent.freeze()
            self.world.later(fault.for_s, agent.thaw)
            if fault.detail == "second":
                self.world.later(fault.for_s / 2, self.start_agent, fault.target)

    def _do_suspend_host(self, fault: Fault) -> None:
        """Freeze an agent and stop its steady clock, as when a machine sleeps."""
        agent = self._newest(fault.target)
        if agent is not None:
            agent.freeze()
            self.world.later(fault.for_s, self._resume, agent, fault.for_s)

    def _resume(self, agent: Agent, for_s: float) -> None:
        agent.clock_offset -= for_s
        agent.thaw()

    def _do_cut(self, fault: Fault) -> None:
        path = self.paths[fault.target]
        path.set_cut(fault.detail in ("up", "both"), fault.detail in ("down", "both"))
        self.world.later(fault.for_s, path.set_cut, False, False)

    def _do_break_stream(self, fault: Fault) -> None:
        for stream in list(self.paths[fault.target].streams):
            stream.snap(lose=bool(fault.detail))

    def _do_slow_network(self, fault: Fault) -> None:
        self.paths[fault.target].delay_s = 0.4
        self.world.later(fault.for_s, setattr, self.paths[fault.target], "delay_s", 0.0)

    def _do_duplicate(self, fault: Fault) -> None:
        self.duplicating.add(fault.target)
        self.world.later(fault.for_s, self.duplicating.discard, fault.target)

    def _do_agent_disk_full(self, fault: Fault) -> None:
        self.hosts[fault.target].disk_full = True
        self.world.later(fault.for_s, setattr, self.hosts[fault.target], "disk_full", False)

    def _do_tracker_disk_full(self, fault: Fault) -> None:
        self.disk.is_full = True
        self.world.later(fault.for_s, self.disk.mend)

    def _do_clock_jump(self, fault: Fault) -> None:
        self.wall_offset += float(fault.detail)

    def _do_wish(self, fault: Fault) -> None:
        """People take a device out of service, for a while or until they say else."""
        for_s = fault.for_s if fault.for_s > 3.0 else 0.0
        admin = Admin(fault.detail)
        event = AdminSet(selector_of(f"device_id={fault.target}"), admin, "to look at it", for_s)
        self.call(lambda tracker: tracker.set_admin(event, lambda _: None), lambda _: None)
        if not for_s:
            self.world.later(fault.for_s, self._enable)

    def _enable(self, tries: int = 0) -> None:
        """People take every device into service again, until they are told that it is done."""
        event = AdminSet(selector_of(""), Admin.ENABLED)

        def answered(answer: object) -> None:
            if isinstance(answer, InfrastructureError) and tries < 20:
                self.world.later(1.0, self._enable, tries + 1)

        self.call(lambda tracker: tracker.set_admin(event, answered), answered)

    def _do_limit_account(self, fault: Fault) -> None:
        self.accountant.limit(fault.target, fault.detail, fault.for_s)

    def _do_sick_device(self, fault: Fault) -> None:
        self.rigs[fault.target].is_sick = True
        self.world.later(fault.for_s, setattr, self.rigs[fault.target], "is_sick", False)

    def _mend(self) -> None:
        """End every fault, as time and people would."""
        self.world.tell("FAULT", "everything is mended")
        self.is_mended = True
        self.disk.mend()
        self._enable()
        self.world.later(5.0, self._enable)  # what was wished before may still have been on its way
        self.accountant.lift()
        self.duplicating.clear()
        for host in self.hosts.values():
            host.disk_full = False
        for path in self.paths.values():
            path.delay_s = 0.0
            path.set_cut(False, False)
        for processes in self.agents.values():
            for agent in processes:
                agent.thaw()
        for rig in self.rigs.values():
            rig.is_sick = False
            rig.reboot()
            self.world.later(25.0, rig.reboot)  # and once more for what was killed since
            self.world.later(60.0, rig.reboot)
        if self.tracker is not None:
            self.tracker.crash_in = None
