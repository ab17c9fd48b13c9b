"""What can happen to the farm.

Owns: one type for each event. Does not own: where events come from.

Invariant: an event is complete; handling it needs only the state and the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farm.core.digest import Digest
    from farm.core.ids import AgentId, AttemptId, Epoch, JobId, LeaseId
    from farm.target import Selector
    from farm_tracker.state.model import Description, Health, Use
    from farm_tracker.state.work import Failure, Module, UnitId, UnitSpec


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What an agent sees of one of its devices."""

    description: Description
    use: Use
    epoch: Epoch
    health: Health
    health_cause: str


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """What an agent knows of one attempt; running while neither module nor failure is set."""

    attempt_id: AttemptId
    module: Module | None = None
    failure: Failure | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class AgentReported:
    """An agent's whole state; `connected` marks the first of a control stream."""

    agent_id: AgentId
    instance_id: str
    version: str
    builds: tuple[str, ...]
    build_slots: int
    devices: tuple[DeviceReport, ...]
    attempts: tuple[AttemptReport, ...]
    hosted_by: str
    host: str
    connected: bool = False


@dataclass(frozen=True, slots=True)
class AgentDisconnected:
    """The control stream of this process ended."""

    agent_id: AgentId
    instance_id: str


@dataclass(frozen=True, slots=True)
class LeaseRequested:
    """A client wants a device: now, or within `wait_s`."""

    lease_id: LeaseId
    selector: Selector
    ttl_s: float
    wait_s: float
    holder: str


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """A client extends its lease to `ttl_s` from now."""

    lease_id: LeaseId
    epoch: Epoch
    ttl_s: float


@dataclass(frozen=True, slots=True)
class LeaseReleased:
    """A client gives its lease back, or (epoch None) leaves the queue or never took the answer."""

    lease_id: LeaseId
    epoch: Epoch | None


@dataclass(frozen=True, slots=True)
class LeaseRevoked:
    """The farm takes a lease away, with the cause that its holder is told."""

    lease_id: LeaseId
    cause: str


@dataclass(frozen=True, slots=True)
class BuildSubmitted:
    """A client wants these units, each with the id that it gets unless an equal one is in flight."""

    job_id: JobId
    request_key: str
    target_host: str
    units: tuple[tuple[UnitId, UnitSpec], ...]
    keep_going: bool


@dataclass(frozen=True, slots=True)
class BuildCancelled:
    """The client of a build went away; units that nobody else wants end."""

    job_id: JobId


@dataclass(frozen=True, slots=True)
class BuildMerged:
    """The coordinator merged a job's modules, or could not."""

    job_id: JobId
    artifact: Digest | None
    cause: str = ""


Event = (
    Tick
    | AgentReported
    | AgentDisconnected
    | LeaseRequested
    | LeaseRenewed
    | LeaseReleased
    | LeaseRevoked
    | BuildSubmitted
    | BuildCancelled
    | BuildMerged
)
