"""The tracker's process: the real core with a thin shell, and its crash points.

Owns: commit before command, links, sessions, waiting clients; dying at any of the crash points.
Does not own: decisions (`farm_tracker.state`, the real code), what is durable (`commits.durable_part`, real), rows and
tables (`disk`, over the real store).

`post` stands for `farm_tracker.tracker.Tracker.post`, `carry_out` for the tracker's, `connect`, `hear` and `disconnect`
for `service.agent` with `links`, `start` for `Tracker.start`, `acquire`, `renew` and `release` for `service.lease`,
`submit_build` for `builds.Builds`. The order of commits is in `commits`.

Invariant: no command is carried out before its step and all before it are on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm_tracker import adopting
from farm_tracker import commits as real_commits
from farm_tracker.service.agent import TELL_EVERY_S
from farm_tracker.state import State
from farm_tracker.state import step as real_step
from farm_tracker.state.commands import (
    EndSession,
    FenceAgent,
    GrantLease,
    JobAccepted,
    JobChanged,
    JobEnded,
    PushDesired,
    RefuseLease,
    UnitChanged,
    Warn,
)
from farm_tracker.state.events import (
    AgentDisconnected,
    BuildCancelled,
    BuildMerged,
    BuildSubmitted,
    JobWatched,
    LeaseReleased,
    LeaseRenewed,
    LeaseRequested,
    Tick,
)
from farm_tracker.state.work import JobState

from farm.core.digest import digest_of
from farm.errors import FarmError, Fenced, InfrastructureError, NotFound
from simulation.commits import Commits, Entry
from simulation.network import DOWN, UP, Stream
from simulation.wire import Sent

if TYPE_CHECKING:
    from collections.abc import Callable

    from farm_tracker.state.commands import Command
    from farm_tracker.state.events import (
        AccountLimited,
        AdminSet,
        AgentReported,
        Event,
        JobCancelled,
        JobSubmitted,
    )
    from farm_tracker.store import StoredChanges

    from farm.core.ids import JobId, LeaseId
    from simulation.agent import Agent, Served
    from simulation.farm import Farm
    from simulation.world import Timer

    Reply = Callable[[object], None]


@dataclass(slots=True)
class Link:
    """The tracker's end of one control stream (`farm_tracker.links.Link` and `service.agent`)."""

    agent: Agent
    stream: Stream
    newest: PushDesired | None = None
    again: Timer | None = None
    sending: bool = False
    is_known: bool = False
    ended: bool = False


class Tracker:
    """One process of the tracker, from its start to its crash."""

    def __init__(self, farm: Farm, boot: int) -> None:
        self.farm = farm
        self.world = farm.world
        self.boot = boot
        self.is_alive = True
        self.clock_offset = farm.world.between(0.0, 1000.0)
        self.state = State(farm.plan.limits)
        self.sessions: dict[LeaseId, tuple[object, Served | None]] = {}
        self.links: dict[tuple[str, str], Link] = {}
        self.streams: list[Stream] = []
        self.commits: Commits = Commits(self)
        self.crash_in: tuple[str, int] | None = None
        self._waiting: dict[LeaseId, Reply] = {}
        self._holders: dict[LeaseId, Reply] = {}
        self._news: dict[JobId, Reply] = {}
        self._accepting: dict[JobId, Reply] = {}
        self._watchers: dict[JobId, list[Reply]] = {}
        self._calls: list[Reply] = []
        self._timer: Timer | None = None

    def now(self) -> float:
        """Return the time on this process's steady clock."""
        return self.world.now + self.clock_offset

    def wall(self) -> float:
        """Return the wall clock, which people may set."""
        return 1e9 + self.world.now + self.farm.wall_offset

    def later(self, delay_s: float, call: Callable[..., None], *args: object) -> Timer:
        """Let this process do something later, if it lives then."""
        return self.world.later(delay_s, self.act, call, *args)

    def act(self, call: Callable[..., None], *args: object) -> None:
        """Do something now, if this process lives."""
        if self.is_alive:
            call(*args)

    def start(self) -> None:
        """Take over what a former run left. Raises OSError if the disk is full."""
        now = self.now()
        loaded = self.farm.disk.load(now, self.wall())
        changes = adopting.changes_of(loaded, now, self.state.limits)
        self.sessions.update((it.lease_id, (it, None)) for it in loaded.leases)
        self.state.apply(changes)
        self.farm.checks.loaded(self)
        self.post(Tick())

    def post(self, event: Event, done: Callable[[FarmError | None], None] | None = None) -> None:
        """Let an event happen now. Raises FarmError if it is refused."""
        if not self.is_alive:
            raise InfrastructureError("tracker: it has stopped; try again when it is back")
        result = real_step(self.state, event, self.now())
        stored = real_commits.durable_part(self.state, result.changes)
        self.state.apply(result.changes)
        self.farm.checks.tracker_stepped(self, event, result)
        self._arm()
        self.commits.add(Entry(stored, result.commands, done))

    def write(self, stored: StoredChanges) -> None:
        """Put a batch on disk."""
        self.farm.disk.write(stored, self.now(), self.wall())
        self.farm.checks.committed(self, stored.changes)

    def crashes_at(self, point: str) -> bool:
        """Die here if the plan says so; whether it did."""
        if self.crash_in is None or self.crash_in[0] != point:
            return not self.is_alive
        count = self.crash_in[1] - 1
        self.crash_in = (point, count)
        if count > 0:
            return False
        self.die(f"killed {point}")
        return True

    def fail(self, cause: str) -> None:
        """End as the real tracker does when its store fails or a defect was found."""
        self.die(cause)

    def die(self, cause: str) -> None:
        """SIGKILL: connections end, nothing in memory is left."""
        if not self.is_alive:
            return
        self.world.tell("tracker", "dies: %s", cause)
        self.is_alive = False
        for stream in self.streams:
            stream.close(UP)
        error = InfrastructureError("tracker: connection lost; try again")
        for reply in [*self._calls, *self._waiting.values(), *self._news.values()]:
            self.world.later(self.world.between(0.0, 0.05), reply, error)
        watching = [it for watchers in self._watchers.values() for it in watchers]
        for reply in [*self._holders.values(), *self._accepting.values(), *watching]:
            self.world.later(self.world.between(0.0, 0.05), reply, error)
        for _, served in self.sessions.values():
            if served is not None:
                self.farm.session_lost(served)
        self.farm.tracker_died(self)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self.state.next_deadline()
        self.farm.checks.armed(self, at)
        if at is not None:
            self._timer = self.later(max(0.0, at - self.now()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.post(Tick())

    def carry_out(self, command: Command) -> None:  # noqa: C901 - one case each
        """Do what a committed step says."""
        self.farm.checks.performed(self, command)
        match command:
            case GrantLease(lease, device):
                self.world.tell(
                    "tracker",
                    "grants %s epoch %d to %s",
                    device.device_id,
                    lease.epoch,
                    lease.lease_id,
                )
                self.sessions[lease.lease_id] = (lease, None)
                self._answer(self._waiting.pop(lease.lease_id, None), command)
            case RefuseLease(lease_id, error):
                self._answer(self._waiting.pop(lease_id, None), error)
            case EndSession(lease_id, error):
                self.world.tell("tracker", "%s", error)
                _, served = self.sessions.pop(lease_id, (None, None))
                if served is not None:
                    self.farm.session_ended(served, error)
                self._answer(self._holders.pop(lease_id, None), error)
            case PushDesired():
                self._push(command)
            case FenceAgent(agent_id, instance_id):
                link = self.links.get((agent_id, instance_id))
                if link is not None:
                    self.end_link(link, Fenced(f"agent {agent_id}: a newer process has connected"))
            case UnitChanged() | JobEnded():
                self._tell(command)
            case JobAccepted(asked, _, _):
                self._answer(self._accepting.pop(asked, None), command)
            case JobChanged(job_id):
                for watcher in self._watchers.get(job_id, ()):
                    self.world.later(0.001, self.act, self._show, job_id, watcher)
            case Warn(message):
                self.world.tell("tracker", "warning: %s", message)

    # Agents

    def connect(self, link: Link, report: AgentReported) -> None:
        """Let an agent's process connect."""
        agent = link.agent
        key = (agent.site.agent_id, agent.instance_id)
        older = self.links.get(key)
        if older is not None:  # its handler ends a moment later
            self.later(self.world.between(0.0, 0.005), self._left, older)
        self.links[key] = link
        link.is_known = True
        try:
            self.post(report)
        except Fenced as error:
            del self.links[key]
            self.end_link(link, error)

    def hear(self, link: Link, report: AgentReported) -> None:
        """Take an agent's state that came on a stream."""
        if link.ended:
            return
        try:
            if not link.is_known:
                self.connect(link, report)
            else:
                self.post(report)
        except Fenced as error:
            self.disconnect(link, error)

    def disconnect(self, link: Link, error: FarmError | None = None) -> None:
        """Note that a control stream ended."""
        if self.is_alive and not link.ended:
            self.end_link(link, error)

    def end_link(self, link: Link, error: FarmError | None) -> None:
        """End a stream from this side."""
        if link.ended:
            return
        link.ended = True
        if error is not None:
            link.stream.send(DOWN, error)
        link.stream.close(UP)
        key = (link.agent.site.agent_id, link.agent.instance_id)
        if self.links.get(key) is link:
            del self.links[key]
            self.post(AgentDisconnected(*key))

    def _left(self, link: Link) -> None:
        if not link.ended:
            link.ended = True
            link.stream.close(UP)

    def _push(self, desired: PushDesired) -> None:
        link = self.links.get((desired.agent_id, desired.instance_id))
        if link is None:
            return
        link.newest = desired
        if not link.sending:
            link.sending = True
            self.later(self.world.between(0.0, 0.002), self._send, link)

    def _send(self, link: Link) -> None:
        link.sending = False
        desired, link.newest = link.newest, None
        if desired is not None:
            self._send_again(link, desired)

    def _send_again(self, link: Link, desired: PushDesired) -> None:
        """Send it now, and the same after a while unless something newer comes."""
        if link.again is not None:
            link.again.cancel()
        if not link.ended:
            heartbeat_s = self.state.limits.heartbeat_s
            link.stream.send(DOWN, Sent(desired, heartbeat_s, self.now()))
            link.again = self.later(TELL_EVERY_S, self._send_again, link, desired)

    def serve(self, agent: Agent, served: Served) -> FarmError | None:
        """Take an agent's stream of a session, or say why not (`AgentService._session`)."""
        known = self.state.agents.get(agent.site.agent_id)
        grant = served.grant
        if known is None or known.instance_id != agent.instance_id:
            return Fenced(f"agent {agent.site.agent_id}: this process does not speak for it")
        lease, _ = self.sessions.get(grant.lease_id, (None, None))
        if lease is None or lease.epoch != grant.epoch:  # type: ignore[attr-defined]
            return Fenced(f"lease {grant.lease_id}: not live; acquire again")
        self.sessions[grant.lease_id] = (lease, served)
        return None

    # Clients

    def _answer(self, reply: Reply | None, value: object) -> None:
        if reply is not None:
            self.world.later(self.world.between(0.0003, 0.02), reply, value)

    def acquire(self, event: LeaseRequested, reply: Reply) -> None:
        """Answer with GrantLease or an error when it is known."""
        self._waiting[event.lease_id] = reply
        try:
            self.post(event)
        except Exception:
            self._waiting.pop(event.lease_id, None)
            raise

    def hold(self, lease_id: LeaseId, reply: Reply) -> None:
        """Tell `reply` when the session of a lease ends."""
        if lease_id in self.sessions:
            self._holders[lease_id] = reply
        else:
            self._answer(reply, Fenced(f"lease {lease_id}: not live; acquire again"))

    def renew(self, event: LeaseRenewed, reply: Reply) -> None:
        """Answer when the renewal is stored."""
        self._call(event, reply)

    def release(self, event: LeaseReleased, reply: Reply) -> None:
        """Answer when the release is stored."""
        self._call(event, reply)

    def abandon(self, lease_id: LeaseId) -> None:
        """Note that the client that waits for a lease went away."""
        self._waiting.pop(lease_id, None)
        self.post(LeaseReleased(lease_id, None))

    def _call(self, event: Event, reply: Reply) -> None:
        self._calls.append(reply)

        def done(error: FarmError | None) -> None:
            self._calls.remove(reply)
            self._answer(reply, error)

        try:
            self.post(event, done)
        except Exception:
            self._calls.remove(reply)
            raise

    def submit_job(self, event: JobSubmitted, reply: Reply) -> None:
        """Answer with JobAccepted once it is stored."""
        self.farm.disk.check_room()
        self._accepting[event.job_id] = reply
        try:
            self.post(event)
        except Exception:
            del self._accepting[event.job_id]
            raise

    def cancel_job(self, event: JobCancelled, reply: Reply) -> None:
        """Answer when the wish is stored."""
        self._call(event, reply)

    def watch_job(self, job_id: JobId, reply: Reply) -> None:
        """Show a job as it is and after each change, until it is terminal or the client leaves."""
        self._watchers.setdefault(job_id, []).append(reply)
        self.post(JobWatched(job_id, True))
        self._show(job_id, reply)

    def unwatch_job(self, job_id: JobId, reply: Reply) -> None:
        """Note that a client that waited for a job left."""
        if reply in self._watchers.get(job_id, ()):
            self._watchers[job_id].remove(reply)
            self.post(JobWatched(job_id, False))

    def _show(self, job_id: JobId, reply: Reply) -> None:
        """Show a job once everything that it shows is stored (`Tracker.settled`)."""
        job = self.state.run_jobs.get(job_id)
        if job is not None and reply in self._watchers.get(job_id, ()):
            self.commits.add(Entry(None, (), lambda _: self._answer(reply, job)))

    def set_admin(self, event: AdminSet, reply: Reply) -> None:
        """Answer when people's wish is stored."""
        self._call(event, reply)

    def set_limits(self, event: AccountLimited, reply: Reply) -> None:
        """Answer when an account's limits are stored."""
        number = self.farm.checks.accounts.wished(event)

        def told(answer: object) -> None:
            if not isinstance(answer, FarmError):
                self.farm.checks.accounts.told(event, number)
            reply(answer)

        self._call(event, told)

    def submit_build(self, event: BuildSubmitted, reply: Reply) -> None:
        """Submit units; `reply` gets every news."""
        self._news[event.job_id] = reply
        try:
            self.post(event)
        except Exception:
            del self._news[event.job_id]
            raise

    def leave_build(self, job_id: JobId) -> None:
        """Note that the client of a build went away."""
        if self._news.pop(job_id, None) is not None:
            self.post(BuildCancelled(job_id))

    def _tell(self, news: UnitChanged | JobEnded) -> None:
        for job_id in news.job_ids if isinstance(news, UnitChanged) else (news.job_id,):
            reply = self._news.get(job_id)
            if reply is not None:  # a stream: in order
                self.world.later(0.001, reply, news)
        if isinstance(news, JobEnded):
            if news.state is JobState.BUILDING:
                self.later(self.world.between(0.01, 0.2), self._merge, news.job_id)
            else:
                self._news.pop(news.job_id, None)

    def _merge(self, job_id: JobId) -> None:
        reply = self._news.get(job_id)
        if reply is None:
            return

        def merged(error: FarmError | None) -> None:
            if self._news.pop(job_id, None) is not None:
                self._answer(reply, self.state.jobs.get(job_id))

        if self.world.chance(0.05):
            lost = NotFound(f"build {job_id}: the store lost an object")
            self.post(BuildMerged(job_id, None, str(lost)), merged)
        else:
            self.post(BuildMerged(job_id, digest_of(str(job_id).encode())), merged)
