"""What the shell is to do after a step has been committed.

Owns: one type for each command. Does not own: how it is carried out (`farm_tracker.tracker`).

Invariant: a command carries everything that it needs, so that it never shows a later state than the committed one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farm.core.ids import AgentId, AttemptId, DeviceId, Epoch, JobId, LeaseId
    from farm.errors import FarmError
    from farm_tracker.state.model import Device, Lease
    from farm_tracker.state.run import RunAttempt
    from farm_tracker.state.work import BuildUnit, JobState, UnitSpec


@dataclass(frozen=True, slots=True)
class GrantLease:
    """Tell the waiting client that it has a device, and open the session."""

    lease: Lease
    device: Device


@dataclass(frozen=True, slots=True)
class RefuseLease:
    """Tell the waiting client that it gets none."""

    lease_id: LeaseId
    error: FarmError


@dataclass(frozen=True, slots=True)
class EndSession:
    """A granted lease ended: end both ends of its session with this error."""

    lease_id: LeaseId
    error: FarmError


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """One attempt that an agent is to work on."""

    attempt_id: AttemptId
    spec: UnitSpec
    limit_s: float


@dataclass(frozen=True, slots=True)
class RunOrder:
    """One run attempt that an agent is to work on; `run` is a `RunSpec` of the contract."""

    attempt: RunAttempt
    run: bytes


@dataclass(frozen=True, slots=True)
class PushDesired:
    """Send an agent's process everything that is wanted of it, and the epochs of the devices that it is to clean."""

    agent_id: AgentId
    instance_id: str
    builds: tuple[BuildOrder, ...]
    leases: tuple[Lease, ...]
    runs: tuple[RunOrder, ...] = ()
    ended: tuple[tuple[DeviceId, Epoch], ...] = ()


@dataclass(frozen=True, slots=True)
class FenceAgent:
    """End the control stream of a process that a newer one has replaced."""

    agent_id: AgentId
    instance_id: str


@dataclass(frozen=True, slots=True)
class UnitChanged:
    """Tell these jobs how far a unit is."""

    unit: BuildUnit
    job_ids: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Tell the coordinator that no unit of a job changes any more; BUILDING: it is to be merged."""

    job_id: JobId
    state: JobState
    cause: str


@dataclass(frozen=True, slots=True)
class JobAccepted:
    """Acknowledge a submit: the one that asked under the id `asked` has the job `job_id`."""

    asked: JobId
    job_id: JobId
    existed: bool


@dataclass(frozen=True, slots=True)
class JobChanged:
    """Tell whoever waits for a run job that it, or its log, changed."""

    job_id: JobId


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell whoever runs the farm."""

    message: str


Command = (
    GrantLease
    | RefuseLease
    | EndSession
    | PushDesired
    | FenceAgent
    | UnitChanged
    | JobEnded
    | JobAccepted
    | JobChanged
    | Warn
)
