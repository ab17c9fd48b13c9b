"""The things that the tracker knows of: agents, devices, leases.

Owns: their fields and the closed sets of their states. Does not own: which change is allowed (`table`) or when
(`step`); what is built (`work`).

Invariant: every value is frozen; a change is a new value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum, unique
from typing import TYPE_CHECKING

from farm.core.limits import JOB_END_S, JOB_PREPARE_S, JOB_SETUP_S, MAX_JOB_TERM_S
from farm_tracker.state.demand import demand_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farm.core.ids import AgentId, AttemptId, DeviceId, Epoch, JobId, LeaseId
    from farm.target import Selector
    from farm_tracker.state.demand import Demand, Variant

NO_EPOCH = 0
STORY_LENGTH = 16
POISON_DEVICES = 2
"""A job that lost so many distinct devices is not tried again."""
DEFAULT_ACCOUNT = "local"


@unique
class Admin(StrEnum):
    """What people want of a device."""

    ENABLED = "ENABLED"
    DRAINING = "DRAINING"
    DRAINED = "DRAINED"
    MAINTENANCE = "MAINTENANCE"
    RETIRED = "RETIRED"


@unique
class Observed(StrEnum):
    """What heartbeats say of an agent and of its devices."""

    UNKNOWN = "UNKNOWN"
    ONLINE = "ONLINE"
    SUSPECT = "SUSPECT"
    OFFLINE = "OFFLINE"


@unique
class Health(StrEnum):
    """What checks and kills say of a device."""

    UNCHECKED = "UNCHECKED"
    CHECKING = "CHECKING"
    GOOD = "GOOD"
    BAD = "BAD"
    RECOVERING = "RECOVERING"


@unique
class Use(StrEnum):
    """What the lease engine does with a device."""

    IDLE = "IDLE"
    RESERVED = "RESERVED"
    PREPARING = "PREPARING"
    LEASED = "LEASED"
    CLEANING = "CLEANING"


@unique
class TimingClass(StrEnum):
    """How a device's time is to be read."""

    NATIVE = "NATIVE"
    EMULATED = "EMULATED"
    SIMULATED = "SIMULATED"


@unique
class LeaseState(StrEnum):
    """How far a lease is."""

    QUEUED = "QUEUED"
    GRANTED = "GRANTED"
    ACTIVE = "ACTIVE"
    RELEASED = "RELEASED"
    EXPIRED = "EXPIRED"
    REVOKED = "REVOKED"
    LOST = "LOST"


LIVE_LEASES = frozenset({LeaseState.GRANTED, LeaseState.ACTIVE})
HELD = frozenset({Use.RESERVED, Use.PREPARING, Use.LEASED})


@dataclass(frozen=True, slots=True)
class Limits:
    """Every length of time and count that the core decides by. Times are in seconds.

    A user's fault has no budget: it is never tried again. `account_held` counts devices at once, `account_queued`
    what waits; both for each account. `backoff_s` is what is waited at most before the first try after a failure of the
    farm, and doubles with each further one up to `backoff_ceiling_s`. `elsewhere_s` is how long a job waits for another
    device before it is tried again on one that failed it, `late_s` how long for the result of a lost attempt whose
    agent is back and still has it to store. `device_retain_s` is how long a device may be OFFLINE until it is
    forgotten. `expired_at_once` is how many deadlines pass in one step; what is due beyond passes in the next.
    """

    heartbeat_s: float = 1.0
    heartbeats_per_s: float = 500.0
    suspect_s: float = 4.0
    offline_s: float = 10.0
    prepare_s: float = JOB_PREPARE_S
    clean_s: float = 30.0
    attempt_s: float = 120.0
    attempt_grace_s: float = 10.0
    unit_wait_s: float = 600.0
    job_s: float = 3600.0
    retain_s: float = 600.0
    infra_budget: int = 2
    backoff_s: float = 1.0
    backoff_ceiling_s: float = 60.0
    lost_budget: int = 2
    elsewhere_s: float = 60.0
    late_s: float = 30.0
    run_setup_s: float = JOB_SETUP_S
    run_end_s: float = JOB_END_S
    unwatched_s: float = 60.0
    job_retain_s: float = 86_400.0
    device_retain_s: float = 7 * 86_400.0
    half_life_s: float = 3600.0
    account_held: int = 10_000
    account_queued: int = 200_000
    log_bytes: int = 4 << 20
    notes_kept: int = 10_000
    expired_at_once: int = 500

    def heartbeat_of(self, agents: int) -> float:
        """Return how often each of so many agents has to report, in seconds.

        Many report less often, so that hearing them takes no more than a part of one CPU; each does so twice before
        its silence counts.
        """
        return max(self.heartbeat_s, min(self.suspect_s / 2, agents / self.heartbeats_per_s))

    def term_of(self, limit_s: float) -> float:
        """Return the term of the lease of a run with this limit: what all that is done under it may take."""
        sum_s = self.prepare_s + self.run_setup_s + limit_s + self.run_end_s
        return min(MAX_JOB_TERM_S, sum_s)


@dataclass(frozen=True, slots=True)
class Description:
    """What a device is, as its agent says."""

    device_id: DeviceId
    targets: tuple[str, ...]
    labels: Mapping[str, str]
    timing_class: TimingClass
    provides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Device:
    """One device: four independent fields, and the epoch that was given out last."""

    description: Description
    agent_id: AgentId
    admin: Admin = Admin.ENABLED
    observed: Observed = Observed.UNKNOWN
    health: Health = Health.UNCHECKED
    health_cause: str = ""
    use: Use = Use.IDLE
    epoch: Epoch = NO_EPOCH  # type: ignore[assignment]
    lease_id: LeaseId | None = None
    use_until: float | None = None
    story: tuple[str, ...] = ()
    admin_reason: str = ""
    admin_actor: str = ""
    admin_until: float | None = None
    offline_at: float | None = None
    """When it was first OFFLINE since it was last ONLINE."""

    @property
    def device_id(self) -> DeviceId:
        """Its name, unique in the farm."""
        return self.description.device_id

    @property
    def labels(self) -> dict[str, str]:
        """What selectors see: its own labels, and its ids."""
        own = {"device_id": str(self.device_id), "agent_id": str(self.agent_id)}
        return {**self.description.labels, **own}

    @property
    def is_healthy(self) -> bool:
        """Whether it could be granted if nobody held it."""
        return (
            self.admin is Admin.ENABLED
            and self.observed is Observed.ONLINE
            and self.health is Health.GOOD
        )

    @property
    def is_free(self) -> bool:
        """Whether it can be granted now."""
        return self.use is Use.IDLE and self.is_healthy

    @property
    def situation(self) -> str:
        """Why it cannot be granted now, in a few words."""
        words = []
        if self.admin is not Admin.ENABLED:
            words.append(f"{self.admin}: {self.admin_reason}" if self.admin_reason else self.admin)
        if self.observed is not Observed.ONLINE:
            words.append(str(self.observed))
        if self.health is not Health.GOOD:
            words.append(f"{self.health} {self.health_cause}".strip())
        if self.use is not Use.IDLE:
            words.append(str(self.use))
        return ", ".join(words) or "free"


@dataclass(frozen=True, slots=True)
class Lease:
    """One request for a device, and the right to it once granted. `epoch` is 0 while queued.

    The lease of a job's attempt has `job_id`, and a fixed term: it is neither renewed nor released by a client.
    """

    lease_id: LeaseId
    selector: Selector
    holder: str
    ttl_s: float
    wait_until: float
    state: LeaseState = LeaseState.QUEUED
    device_id: DeviceId | None = None
    agent_id: AgentId | None = None
    epoch: Epoch = NO_EPOCH  # type: ignore[assignment]
    expires_at: float = 0.0
    active_by: float = 0.0
    forget_at: float = 0.0
    cause: str = ""
    story: tuple[str, ...] = ()
    account: str = DEFAULT_ACCOUNT
    priority: int = 0
    job_id: JobId | None = None
    queued_at: float = 0.0
    granted_at: float = 0.0
    variants: tuple[Variant, ...] = ()

    @property
    def key(self) -> str:
        """Its name in the queue."""
        return self.lease_id

    @property
    def demand(self) -> Demand:
        """What it demands of a device."""
        return demand_of(self.selector, self.variants)

    @property
    def is_queued(self) -> bool:
        """Whether it waits for a device."""
        return self.state is LeaseState.QUEUED

    @property
    def is_live(self) -> bool:
        """Whether it holds a device."""
        return self.state in LIVE_LEASES


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent: the process that speaks for it now, what it builds, and what it was given."""

    agent_id: AgentId
    instance_id: str
    version: str
    builds: tuple[str, ...]
    build_slots: int
    hosted_by: str
    host: str
    device_ids: tuple[DeviceId, ...] = ()
    observed: Observed = Observed.UNKNOWN
    last_report: float = 0.0
    attempt_ids: tuple[AttemptId, ...] = ()
    former_instances: tuple[str, ...] = ()
    toolchains: Mapping[str, str] = field(default_factory=dict)
    forget_at: float = 0.0

    @property
    def free_slots(self) -> int:
        """How many more units it can build now; 0 unless it is online."""
        if self.observed is not Observed.ONLINE:
            return 0
        return max(0, self.build_slots - len(self.attempt_ids))
