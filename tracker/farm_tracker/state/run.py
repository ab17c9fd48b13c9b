"""Run jobs: what the farm has promised to bring to an end, and each try at it.

Owns: their fields and states. Does not own: which change is allowed (`table`) or when (`jobs`).

Invariant: outcome and verdict are two fields: a verdict exists only if the run happened (COMPLETED), and what the
farm did wrong is never a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique
from typing import TYPE_CHECKING

from farm_tracker.state.demand import demand_of

if TYPE_CHECKING:
    from farm.core.digest import Digest
    from farm.core.ids import AgentId, AttemptId, DeviceId, Epoch, JobId, LeaseId
    from farm.target import Selector
    from farm_tracker.state.demand import Demand, Variant
    from farm_tracker.state.work import Failure


@unique
class RunState(StrEnum):
    """How far a run job is; BUILDING of the contract is for jobs that build first."""

    SUBMITTED = "SUBMITTED"
    QUEUED = "QUEUED"
    DELAYED = "DELAYED"
    RUNNING = "RUNNING"
    TERMINAL = "TERMINAL"


@unique
class Outcome(StrEnum):
    """How a job ended."""

    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    TIME_LIMIT = "TIME_LIMIT"
    INFRA_FAILED = "INFRA_FAILED"
    POISONED = "POISONED"


@unique
class Verdict(StrEnum):
    """What a run that happened says of the work."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


@unique
class RunAttemptState(StrEnum):
    """How far one try at a run is."""

    RUNNING = "RUNNING"
    DONE = "DONE"
    INFRA_FAILED = "INFRA_FAILED"
    LOST = "LOST"
    CANCELLED = "CANCELLED"
    SUPERSEDED = "SUPERSEDED"


@dataclass(frozen=True, slots=True)
class LogPart:
    """One numbered chunk of a job's log: a blob; None marks the place where the limit was reached."""

    attempt_id: AttemptId
    blob: Digest | None


@dataclass(frozen=True, slots=True)
class RunJob:
    """One request to run something once. Points in time are on the tracker's clock.

    `run` and `result` are messages of the contract (`RunSpec`, `JobResult`) that the core never looks into;
    `content` is a digest of everything that was asked for.
    """

    job_id: JobId
    account: str
    client_key: str
    content: str
    selector: Selector
    run: bytes
    limit_s: float
    priority: int
    queue_limit_s: float
    cancel_when_unwatched: bool
    queued_at: float
    queue_until: float
    infra_left: int
    lost_left: int
    state: RunState = RunState.SUBMITTED
    outcome: Outcome | None = None
    verdict: Verdict | None = None
    result: bytes | None = None
    failure: Failure | None = None
    attempt_id: AttemptId | None = None
    attempt_ids: tuple[AttemptId, ...] = ()
    lost_devices: tuple[DeviceId, ...] = ()
    shunned: tuple[DeviceId, ...] = ()
    elsewhere_until: float | None = None
    """Until when it is given no device that failed it before; None: it may have any."""
    log: tuple[LogPart, ...] = ()
    log_bytes: int = 0
    watchers: int = 0
    unwatched_until: float | None = None
    not_before: float = 0.0
    variants: tuple[Variant, ...] = ()
    ended_at: float | None = None
    forget_at: float = 0.0
    story: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Its name in the queue."""
        return self.job_id

    @property
    def demand(self) -> Demand:
        """What it demands of a device."""
        return demand_of(self.selector, self.variants)

    @property
    def is_queued(self) -> bool:
        """Whether it waits for a device."""
        return self.state is RunState.QUEUED

    def waits_after(self, attempt_id: AttemptId) -> bool:
        """Tell whether nobody has begun anew since this attempt of it was lost."""
        return self.is_open and self.attempt_id is None and self.attempt_ids[-1:] == (attempt_id,)

    def avoids(self, device_id: DeviceId) -> bool:
        """Tell whether it waits for another device than this one, which failed it before."""
        return self.elsewhere_until is not None and device_id in self.shunned

    @property
    def is_open(self) -> bool:
        """Whether it may still change."""
        return self.state is not RunState.TERMINAL

    @property
    def log_is_cut(self) -> bool:
        """Whether its limit of output was reached."""
        return bool(self.log) and self.log[-1].blob is None


@dataclass(frozen=True, slots=True)
class RunAttempt:
    """One try at a job, under a lease of its own with a fixed term.

    `result` of a SUPERSEDED attempt is kept for people and never counts.
    """

    attempt_id: AttemptId
    job_id: JobId
    lease_id: LeaseId
    device_id: DeviceId
    agent_id: AgentId
    instance_id: str
    epoch: Epoch
    started_at: float
    state: RunAttemptState = RunAttemptState.RUNNING
    result: bytes | None = None
    failure: Failure | None = None
    log_chunks: int = 0
    ended_at: float | None = None
