"""Simple scripted clients: what people and programs do with a farm, badly connected.

Owns: one script each for leases and builds. Does not own: the services.

Invariant: a client asks again only what it may ask again: a release, a renewal, a submit with its key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm_tracker.state.commands import GrantLease, JobAccepted, JobEnded, UnitChanged
from farm_tracker.state.events import (
    BuildSubmitted,
    JobCancelled,
    JobSubmitted,
    LeaseReleased,
    LeaseRenewed,
    LeaseRequested,
)
from farm_tracker.state.run import RunJob
from farm_tracker.state.work import ItemKind, UnitId, UnitSpec

from farm.core.digest import digest_of
from farm.core.ids import JobId, LeaseId
from farm.errors import FarmError, InfrastructureError
from farm.target import Selector
from simulation.runs import encoded
from simulation.wire import RUN_LIMIT_S

if TYPE_CHECKING:
    from farm_tracker.state.demand import Variant
    from farm_tracker.state.model import Lease

    from simulation.farm import Farm

FAMILIES = ("llvm/x86_64", "ea")
_SELECTORS: dict[str, Selector] = {}


def selector_of(text: str) -> Selector:
    """Return a parsed selector; each text is parsed once."""
    if text not in _SELECTORS:
        _SELECTORS[text] = Selector.parse(text)
    return _SELECTORS[text]


def spec_of(symbol: str, family: str) -> UnitSpec:
    """Return what is to be compiled under that name."""
    function = digest_of(symbol.encode())
    return UnitSpec(ItemKind.DEVICE, f"target {family}", "0" * 16, family, symbol, function)


@dataclass(frozen=True, slots=True)
class LeasePlan:
    """A client that wants a device: when, which, and what it does with it."""

    name: str
    at: float
    account: str
    selector: str
    ttl_s: float
    wait_s: float
    use_s: float
    renews: bool
    end: str  # "release", "repeat", "vanish", "leave queue"


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """A client that wants something built: when, what, and whether it stays."""

    name: str
    at: float
    symbols: tuple[str, ...]
    family: str
    keep_going: bool
    leave_after_s: float


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A client that wants something run: when, what, where, and whether it stays.

    `name` of what is run: "pass", "crash" (its own fault), "hang" (until it is killed).
    """

    name: str
    at: float
    work: str
    account: str
    variants: tuple[Variant, ...]
    run_s: float
    selector: str
    priority: int
    queue_limit_s: float
    waits: bool
    submits: int
    cancel_after_s: float
    leave_after_s: float
    unwatched: bool


class LeaseClient:
    """One client of leases."""

    def __init__(self, farm: Farm, plan: LeasePlan) -> None:
        self.farm = farm
        self.plan = plan
        self.tries = 0
        self.lease: Lease | None = None
        self.is_done = False
        farm.world.later(plan.at, self._ask)

    def _ask(self) -> None:
        self.tries += 1
        plan = self.plan
        lease_id = LeaseId(f"{plan.name}.{self.tries}")
        event = LeaseRequested(
            lease_id,
            selector_of(plan.selector),
            plan.ttl_s,
            plan.wait_s,
            plan.name,
            plan.account,
        )
        self.farm.call(lambda tracker: tracker.acquire(event, self._answered), self._answered)
        if plan.end == "leave queue":
            self.farm.world.later(plan.use_s, self._leave, lease_id)

    def _leave(self, lease_id: LeaseId) -> None:
        if self.lease is None and not self.is_done:
            self.is_done = True
            self.farm.call(lambda tracker: tracker.abandon(lease_id), lambda _: None)

    def _answered(self, answer: object) -> None:
        if self.is_done or self.lease is not None:
            return
        if isinstance(answer, GrantLease):
            self.farm.checks.promise(answer.lease)
            self.lease = answer.lease
            self._use(answer.lease)
        elif isinstance(answer, InfrastructureError) and self.tries < 4:
            self.farm.world.later(self.farm.world.between(0.2, 2.0), self._ask)
        else:
            self.farm.world.tell(self.plan.name, "gives up: %s", answer)
            self.is_done = True

    def _use(self, lease: Lease) -> None:
        world = self.farm.world
        self.farm.call(lambda tracker: tracker.hold(lease.lease_id, self._ended), lambda _: None)
        if self.plan.end != "vanish":
            world.later(self.plan.use_s, self._release, 0)
        if self.plan.renews:
            world.later(self.plan.ttl_s / 3, self._renew)

    def _ended(self, _: object) -> None:
        self.is_done = True

    def _renew(self) -> None:
        lease = self.lease
        if lease is None or self.is_done:
            return
        event = LeaseRenewed(lease.lease_id, lease.epoch, self.plan.ttl_s)
        self.farm.call(lambda tracker: tracker.renew(event, lambda _: None), lambda _: None)
        if self.farm.world.now < self.plan.at + self.plan.use_s:
            self.farm.world.later(self.plan.ttl_s / 3, self._renew)

    def _release(self, tries: int) -> None:
        lease = self.lease
        if lease is None:
            return
        event = LeaseReleased(lease.lease_id, lease.epoch)

        def answered(answer: object) -> None:
            if isinstance(answer, FarmError) and tries < 3:  # asking twice is allowed
                self.farm.world.later(0.3, self._release, tries + 1)

        self.farm.call(lambda tracker: tracker.release(event, answered), answered)
        if self.plan.end == "repeat" and tries == 0:
            self._release(3)


class JobClient:
    """One client of run jobs: it submits until it is told that it has a job, then watches it."""

    def __init__(self, farm: Farm, plan: JobPlan) -> None:
        self.farm = farm
        self.plan = plan
        self.job_id: JobId | None = None
        self.tries = 0
        self.is_done = False
        for index in range(plan.submits):  # the same submit more than once is one job
            farm.world.later(plan.at + index * 0.02, self._submit)

    def _submit(self) -> None:
        plan = self.plan
        self.tries += 1
        run = encoded(plan.work, plan.run_s)
        event = JobSubmitted(
            job_id=JobId(f"{plan.name}.{self.tries}"),
            account=plan.account,
            client_key=plan.name,
            content=run.decode(),
            selector=selector_of(plan.selector),
            run=run,
            limit_s=RUN_LIMIT_S,
            priority=plan.priority,
            queue_limit_s=plan.queue_limit_s,
            wait_for_device=plan.waits,
            cancel_when_unwatched=plan.unwatched,
            variants=plan.variants,
        )
        self.farm.call(lambda tracker: tracker.submit_job(event, self._answered), self._answered)

    def _answered(self, answer: object) -> None:
        world = self.farm.world
        if isinstance(answer, JobAccepted):
            self.farm.checks.accepted(self.plan.name, answer)
            if self.job_id is None:
                world.tell(self.plan.name, "has job %s", answer.job_id)
                self.job_id = answer.job_id
                self._watch()
                if self.plan.cancel_after_s:
                    world.later(self.plan.cancel_after_s, self._cancel)
                if self.plan.leave_after_s:
                    world.later(self.plan.leave_after_s, self._leave)
        elif self.job_id is None and not self.is_done:
            if isinstance(answer, InfrastructureError) and self.tries < 60:
                world.later(world.between(0.5, 3.0), self._submit)
            else:
                world.tell(self.plan.name, "gives up: %s", answer)
                self.is_done = True

    def _watch(self) -> None:
        job_id = self.job_id
        if job_id is not None and not self.is_done:
            self.farm.call(lambda tracker: tracker.watch_job(job_id, self._shown), self._shown)

    def _shown(self, job: object) -> None:
        if isinstance(job, RunJob):
            self.farm.checks.shown(job)
            self.is_done = self.is_done or not job.is_open
        elif not self.is_done:
            self.farm.world.later(self.farm.world.between(0.2, 2.0), self._watch)

    def _cancel(self) -> None:
        job_id = self.job_id
        if job_id is not None:
            event = JobCancelled(job_id, "a whim", "somebody")
            self.farm.call(
                lambda tracker: tracker.cancel_job(event, lambda _: None), lambda _: None
            )

    def _leave(self) -> None:
        job_id = self.job_id
        self.is_done = True
        if job_id is not None:
            self.farm.call(lambda tracker: tracker.unwatch_job(job_id, self._shown), lambda _: None)


class BuildClient:
    """One client of builds."""

    def __init__(self, farm: Farm, plan: BuildPlan) -> None:
        self.farm = farm
        self.plan = plan
        self.job_id: JobId | None = None
        self.is_done = False
        self.modules: dict[str, object] = {}
        farm.world.later(plan.at, self._submit, 1)
        if plan.leave_after_s:
            farm.world.later(plan.at + plan.leave_after_s, self._leave)

    def _submit(self, tries: int) -> None:
        plan = self.plan
        job_id = self.job_id = JobId(f"{plan.name}.{tries}")
        units = tuple(
            (UnitId(f"{job_id}.{index}"), spec_of(symbol, plan.family))
            for index, symbol in enumerate(plan.symbols)
        )
        event = BuildSubmitted(job_id, plan.name, "host", units, plan.keep_going)

        def heard(news: object) -> None:
            match news:
                case UnitChanged(unit, _):
                    if unit.module is not None:
                        known = self.modules.setdefault(unit.unit_id, unit.module)
                        assert known == unit.module
                case JobEnded():
                    self.is_done = self.is_done or news.state.value != "BUILDING"
                case InfrastructureError() if tries < 4 and not self.is_done:
                    self.farm.world.later(
                        self.farm.world.between(0.5, 3.0), self._submit, tries + 1
                    )
                case _:
                    self.is_done = True

        self.farm.call(lambda tracker: tracker.submit_build(event, heard), heard)

    def _leave(self) -> None:
        job_id = self.job_id
        if job_id is not None and not self.is_done:
            self.is_done = True
            self.farm.call(lambda tracker: tracker.leave_build(job_id), lambda _: None)
