"""What is built: jobs of clients, units that jobs share, attempts of agents.

Owns: their fields and states. Does not own: how a unit's result is merged (`farm_tracker.builds`).

Invariant: a unit that is being built has exactly one live attempt; equal units in flight are one unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from farm.core.digest import Digest
    from farm.core.ids import AgentId, AttemptId, JobId

UnitId = NewType("UnitId", str)


@unique
class ItemKind(StrEnum):
    """What an item becomes in the artifact."""

    DEVICE = "device"
    HOST = "host"


@unique
class JobState(StrEnum):
    """How far a build request is."""

    SUBMITTED = "SUBMITTED"
    QUEUED = "QUEUED"
    BUILDING = "BUILDING"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


@unique
class UnitState(StrEnum):
    """How far one unit is."""

    QUEUED = "QUEUED"
    DELAYED = "DELAYED"
    BUILDING = "BUILDING"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


@unique
class AttemptState(StrEnum):
    """How far one try of one agent is."""

    BUILDING = "BUILDING"
    DONE = "DONE"
    FAILED = "FAILED"
    LOST = "LOST"
    CANCELLED = "CANCELLED"


OPEN_JOBS = frozenset({JobState.SUBMITTED, JobState.QUEUED, JobState.BUILDING})
OPEN_UNITS = frozenset({UnitState.QUEUED, UnitState.DELAYED, UnitState.BUILDING})


@dataclass(frozen=True, slots=True, order=True)
class UnitSpec:
    """What is to be compiled: everything that its bytes depend on, but the compiler."""

    kind: ItemKind
    target: str
    target_id: str
    family: str
    symbol: str
    function: Digest


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as data: a stable code of `farm.errors`, a message, facts."""

    code: str
    message: str
    details: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Module:
    """What an agent returned for one unit; the bytes are a blob of the store."""

    object: Digest
    format: str
    format_version: int
    requires: tuple[str, ...]
    toolchain: str
    signature: bytes


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One line of the build cache: a unit, who built it, what came out."""

    spec: UnitSpec
    builder_version: str
    module: Module


@dataclass(frozen=True, slots=True)
class BuildJob:
    """One client's request, less what the cache answered."""

    job_id: JobId
    request_key: str
    target_host: str
    unit_ids: tuple[UnitId, ...]
    keep_going: bool
    deadline: float
    state: JobState = JobState.SUBMITTED
    artifact: Digest | None = None
    cause: str = ""
    forget_at: float = 0.0

    @property
    def is_open(self) -> bool:
        """Whether it may still change."""
        return self.state in OPEN_JOBS


@dataclass(frozen=True, slots=True)
class BuildUnit:
    """One thing to compile, wanted by one or more jobs."""

    unit_id: UnitId
    spec: UnitSpec
    job_ids: tuple[JobId, ...]
    wait_until: float
    infra_left: int
    lost_left: int
    state: UnitState = UnitState.QUEUED
    attempt_id: AttemptId | None = None
    agent_id: AgentId | None = None
    module: Module | None = None
    failure: Failure | None = None
    seconds: float = 0.0
    tries: int = 0
    shunned: tuple[AgentId, ...] = ()
    """Agents that failed it."""
    not_before: float = 0.0
    forget_at: float = 0.0

    @property
    def is_open(self) -> bool:
        """Whether it may still change."""
        return self.state in OPEN_UNITS


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of one agent's process at one unit."""

    attempt_id: AttemptId
    unit_id: UnitId
    agent_id: AgentId
    instance_id: str
    deadline: float
    limit_s: float
    state: AttemptState = AttemptState.BUILDING
    failure: Failure | None = None
    seconds: float = 0.0
    forget_at: float = 0.0
