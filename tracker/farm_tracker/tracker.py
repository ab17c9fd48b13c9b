"""The shell around the pure core: one event loop owns the state.

Owns: the order of events, the timer, carrying out commands. Does not own: decisions (`state`), storage (`store`),
the wire (`service`).

Invariant: the state changes only in `post`; the timer is armed for the next deadline after every step.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, assert_never

from farm.core.ids import JobId, LeaseId
from farm.errors import FarmError, Fenced, InfrastructureError
from farm_tracker import adopting
from farm_tracker.commits import Commits, durable_part
from farm_tracker.crash_points import POINTS
from farm_tracker.links import Link, Links
from farm_tracker.sessions import Sessions
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
    AgentReported,
    JobSubmitted,
    LeaseReleased,
    LeaseRequested,
    Tick,
)
from farm_tracker.state.model import DEFAULT_ACCOUNT
from farm_tracker.state.state import State
from farm_tracker.state.step import step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from farm.core.clock import Clock
    from farm.core.ids import IdSource
    from farm.target import Selector
    from farm_tracker.state.commands import Command
    from farm_tracker.state.demand import Variant
    from farm_tracker.state.events import Event
    from farm_tracker.state.model import Lease, Limits
    from farm_tracker.state.work import CacheEntry, UnitSpec
    from farm_tracker.store import Store, StoredChanges

    JobNews = asyncio.Queue[UnitChanged | JobEnded]

log = logging.getLogger(__name__)


class Tracker:
    """The farm's truth, while it runs. Make, `start`, use from the same event loop, `stop`."""

    def __init__(self, store: Store, limits: Limits, clock: Clock, ids: IdSource) -> None:
        self.state = State(limits)
        self.sessions = Sessions()
        self.links = Links()
        self.clock = clock
        # Read once, so that one point in time is shown alike each time.
        self.epoch_s = clock.wall() - clock.now()
        self.ids = ids
        self._store = store
        self._commits = Commits(self._write, self._carry_out)
        self._waiting: dict[LeaseId, asyncio.Future[GrantLease]] = {}
        self._news: dict[JobId, JobNews] = {}
        self._accepting: dict[JobId, asyncio.Future[JobAccepted]] = {}
        self._changed: dict[JobId, set[asyncio.Event]] = {}
        self._followers: set[asyncio.Event] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._stopping = False
        # Done when the tracker stops or fails: whoever waits for news gets its error.
        self.ending: asyncio.Future[InfrastructureError] = (
            asyncio.get_running_loop().create_future()
        )
        self.failed.add_done_callback(lambda _: self.end_streams())

    @property
    def failed(self) -> asyncio.Future[InfrastructureError]:
        """Done when the store could not be written, or a defect was found: the tracker must end."""
        return self._commits.failed

    async def start(self) -> None:
        """Take over what a former run left: live leases go on, agents have their silence limit."""
        now, wall = self.clock.now(), self.clock.wall()
        loaded = await self._commits.in_thread(self._store.load, now, wall)
        changes = adopting.changes_of(loaded, now, self.state.limits)
        self.state.apply(changes)
        for lease in changes.leases.values():
            if lease is not None and lease.job_id is None:
                self.sessions.open(lease)
        log.info(
            "loaded agents=%d devices=%d leases=%d jobs=%d queued=%d ended_builds=%d",
            len(loaded.agents),
            len(loaded.devices),
            len(loaded.leases),
            len(loaded.run_jobs),
            len(self.state.queue),
            loaded.ended_jobs,
        )
        POINTS.passed("start.loaded")
        await self.post(Tick())

    def end_streams(self) -> None:
        """Begin to stop: end what clients and agents wait for. Leases stay: the next run adopts them.

        All of them learn why: what failed, or that somebody wanted it.
        """
        self._stopping = True
        error = InfrastructureError("tracker: it is being stopped; try again when it is back")
        if self.failed.done():
            error = self.failed.result()
        self.links.close_all()
        self.sessions.end_all(error)
        waiters: list[asyncio.Future[Any]] = [*self._waiting.values(), *self._accepting.values()]
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)
        if not self.ending.done():
            self.ending.set_result(error)

    async def stop(self) -> None:
        """Store what is pending and stop for good."""
        self.end_streams()
        if self._timer is not None:
            self._timer.cancel()
        await self._commits.close()

    def post(self, event: Event) -> asyncio.Future[None]:
        """Let an event happen now; the future is done when it is stored and carried out.

        Raises
        ------
        FarmError
            The event is refused; nothing changed.
        """
        self._commits.check_open()
        result = step(self.state, event, self.clock.now())
        stored = durable_part(self.state, result.changes)
        self.state.apply(result.changes)
        self._arm()
        done = self._commits.add(stored, result)
        if result.changes.notes and self._followers:
            done.add_done_callback(lambda _: self._wake_followers())
        return done

    def settled(self) -> asyncio.Future[None]:
        """Return a future that is done when everything that the state shows now is stored."""
        return self._commits.settled()

    def check_room(self) -> None:
        """Raise StoreFull if nothing new should be promised."""
        self._store.check_room()

    async def submit(self, event: JobSubmitted) -> JobAccepted:
        """Submit a job; return once it is stored.

        Raises
        ------
        NobodyCanServe, QuotaExceeded, InvalidInput
            It is refused; nothing changed.
        """
        waiter: asyncio.Future[JobAccepted] = asyncio.get_running_loop().create_future()
        self._accepting[event.job_id] = waiter
        try:
            await self.post(event)
            return await waiter
        finally:
            del self._accepting[event.job_id]
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # it may have failed beside the post

    async def acquire(
        self,
        selector: Selector,
        *,
        ttl_s: float,
        wait_s: float,
        holder: str,
        account: str = DEFAULT_ACCOUNT,
        variants: tuple[Variant, ...] = (),
    ) -> GrantLease:
        """Wait for a device and take it.

        Raises
        ------
        NobodyCanServe
            No known device could ever match.
        NoVariant
            None that matches runs one of the variants, if there are any.
        DeviceBusy
            None became free in time.
        QuotaExceeded
            It would have to wait, and the account has as much waiting as it may.
        """
        lease_id = LeaseId(self.ids("lease"))
        waiter: asyncio.Future[GrantLease] = asyncio.get_running_loop().create_future()
        self._waiting[lease_id] = waiter
        try:
            event = LeaseRequested(
                lease_id, selector, ttl_s, wait_s, holder, account, variants=variants
            )
            await self.post(event)
            return await waiter
        except asyncio.CancelledError:
            self.abandon(lease_id)
            raise
        finally:
            del self._waiting[lease_id]
            waiter.cancel()
            if not waiter.cancelled():
                waiter.exception()  # it may have failed beside the post

    def abandon(self, lease_id: LeaseId) -> None:
        """End a lease whose client went away, queued or granted."""
        self.post_last(LeaseReleased(lease_id, None))

    def post_last(self, event: Event) -> None:
        """Let an event happen that ends something; one that comes after the tracker's own end is lost."""
        try:
            self.post(event)
        except InfrastructureError as error:
            log.info("not recorded: %s (%s)", event, error.message)

    def connect(self, report: AgentReported) -> Link:
        """Let an agent's process connect; its desired state comes through the link.

        Raises
        ------
        Fenced
            A newer process has replaced it.
        """
        link = Link(report.agent_id, report.instance_id)
        self.links.open(link)
        try:
            self.post(report)
        except FarmError:
            self.links.close(link)
            raise
        log.info("agent connected agent_id=%s instance_id=%s", link.agent_id, link.instance_id)
        return link

    def disconnect(self, link: Link) -> None:
        """Note that a control stream ended."""
        if self.links.close(link) and not self._stopping:
            log.info("agent disconnected agent_id=%s", link.agent_id)
            self.post_last(AgentDisconnected(link.agent_id, link.instance_id))

    def watch(self, job_id: JobId) -> JobNews:
        """Return a queue that gets the news of a job, until `unwatch`."""
        news: JobNews = asyncio.Queue()
        self._news[job_id] = news
        return news

    def unwatch(self, job_id: JobId) -> None:
        """Stop collecting the news of a job."""
        self._news.pop(job_id, None)

    def watch_job(self, job_id: JobId) -> asyncio.Event:
        """Return an event that is set after each change of a run job, until `unwatch_job`."""
        changed = asyncio.Event()
        self._changed.setdefault(job_id, set()).add(changed)
        return changed

    def unwatch_job(self, job_id: JobId, changed: asyncio.Event) -> None:
        """Set that event no more."""
        self._changed[job_id].discard(changed)
        if not self._changed[job_id]:
            del self._changed[job_id]

    def follow_notes(self) -> asyncio.Event:
        """Return an event that is set after each new note, until `unfollow_notes`."""
        changed = asyncio.Event()
        self._followers.add(changed)
        return changed

    def unfollow_notes(self, changed: asyncio.Event) -> None:
        """Set that event no more."""
        self._followers.discard(changed)

    async def lookup(self, specs: Sequence[UnitSpec]) -> list[CacheEntry]:
        """Return what the build cache has for these units."""
        return await self._commits.in_thread(self._store.lookup, specs, self.clock.wall())

    async def prune(self, records_s: float) -> int:
        """Delete some of the records that are older than that; return how many, 0 if all are gone."""
        return await self._commits.in_thread(self._store.prune, self.clock.wall(), records_s)

    def _arm(self) -> None:
        at = self.state.next_deadline()
        if self._timer is not None:
            if at is not None and self._timer_at <= at:
                return  # a tick that comes too early changes nothing, and arms again
            self._timer.cancel()
            self._timer = None
        if at is not None and not self.failed.done():
            delay_s = max(0.0, at - self.clock.now())
            self._timer_at = at
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self.post(Tick())
        except Exception as error:  # a defect: nothing would ever expire again
            log.critical("defect while deadlines passed", exc_info=error)
            self._commits.fail(error)

    def _write(self, stored: StoredChanges) -> None:
        self._store.write(stored, self.clock.now(), self.clock.wall())

    def _carry_out(self, command: Command) -> None:
        match command:
            case GrantLease():
                POINTS.passed("lease.granted")
                self._grant(command)
            case RefuseLease():
                waiter = self._waiting.get(command.lease_id)
                if waiter is not None and not waiter.done():
                    waiter.set_exception(command.error)
            case EndSession():
                if self.sessions.end(command.lease_id, command.error):
                    log.info("lease ended lease_id=%s: %s", command.lease_id, command.error.message)
            case PushDesired():
                POINTS.passed("agent.pushed")
                self.links.push(command)
            case FenceAgent():
                error = Fenced(
                    f"agent {command.agent_id}: a newer process has connected; end this one"
                )
                self.links.fence(command.agent_id, command.instance_id, error)
            case Warn():
                log.warning("%s", command.message)
            case UnitChanged() | JobEnded() | JobAccepted() | JobChanged():
                self._tell_of_job(command)
            case _:
                assert_never(command)

    def _tell_of_job(self, command: UnitChanged | JobEnded | JobAccepted | JobChanged) -> None:
        match command:
            case UnitChanged() | JobEnded():
                POINTS.passed("unit.told")
                self._tell(command)
            case JobAccepted():
                POINTS.passed("job.accepted")
                waiter = self._accepting.get(command.asked)
                if waiter is not None and not waiter.done():
                    waiter.set_result(command)
            case JobChanged():
                self._tell_of_change(command.job_id)

    def _tell_of_change(self, job_id: JobId) -> None:
        job = self.state.run_jobs.get(job_id)
        if job is not None and not job.is_open:
            POINTS.passed("result.recorded")
        for changed in self._changed.get(job_id, ()):
            changed.set()

    def _wake_followers(self) -> None:
        for changed in self._followers:
            changed.set()

    def _grant(self, command: GrantLease) -> None:
        lease: Lease = command.lease
        if lease.job_id is not None:
            return  # its agent runs it: nobody waits, and there is no session
        self.sessions.open(lease)
        log.info(
            "lease granted lease_id=%s device_id=%s epoch=%d holder=%r",
            lease.lease_id,
            lease.device_id,
            lease.epoch,
            lease.holder,
        )
        waiter = self._waiting.get(lease.lease_id)
        if waiter is not None and not waiter.done():
            waiter.set_result(command)

    def _tell(self, news: UnitChanged | JobEnded) -> None:
        for job_id in news.job_ids if isinstance(news, UnitChanged) else (news.job_id,):
            queue = self._news.get(job_id)
            if queue is not None:
                queue.put_nowait(news)
