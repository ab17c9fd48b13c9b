"""What can happen to the farm.

Owns: one type for each event. Does not own: where events come from.

Invariant: an event is complete; handling it needs only the state and the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farm_tracker.state.model import DEFAULT_ACCOUNT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farm.core.digest import Digest
    from farm.core.ids import AgentId, AttemptId, Epoch, JobId, LeaseId
    from farm.target import Selector
    from farm_tracker.state.account import AccountLimits
    from farm_tracker.state.demand import Variant
    from farm_tracker.state.model import Admin, Description, Health, Use
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
class RunReport:
    """What an agent knows of one run attempt; running while neither result nor failure is set.

    `result` is a `JobResult` of the contract; `log` are the chunks that are in the store, from the first on.
    """

    attempt_id: AttemptId
    epoch: Epoch
    result: bytes | None = None
    failure: Failure | None = None
    log: tuple[Digest, ...] = ()
    log_is_cut: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether the attempt came to an end, in whatever way."""
        return self.result is not None or self.failure is not None


@dataclass(frozen=True, slots=True)
class AgentReported:
    """An agent's whole state; `connected` marks the first of a control stream.

    A process that `yields` does not replace one that is there.
    """

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
    runs: tuple[RunReport, ...] = ()
    toolchains: Mapping[str, str] = field(default_factory=dict)
    yields: bool = False


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
    account: str = DEFAULT_ACCOUNT
    priority: int = 0
    variants: tuple[Variant, ...] = ()


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


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A client wants something run. `job_id` is what the job gets unless (account, client_key) has one already.

    `run` is a `RunSpec` of the contract, `content` a digest of everything that is asked for.
    """

    job_id: JobId
    account: str
    client_key: str
    content: str
    selector: Selector
    run: bytes
    limit_s: float
    priority: int = 0
    queue_limit_s: float = 86_400.0
    wait_for_device: bool = False
    cancel_when_unwatched: bool = False
    variants: tuple[Variant, ...] = ()


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """Somebody wants a job to end; one that ended already stays as it is."""

    job_id: JobId
    reason: str = ""
    actor: str = ""


@dataclass(frozen=True, slots=True)
class JobWatched:
    """A stream that waits for a job opened, or closed (`watched` false)."""

    job_id: JobId
    watched: bool


@dataclass(frozen=True, slots=True)
class AdminSet:
    """People want something else of the devices that match; after `until_s` (0: never) they are enabled again."""

    selector: Selector
    admin: Admin
    reason: str = ""
    until_s: float = 0.0
    actor: str = ""


@dataclass(frozen=True, slots=True)
class AccountLimited:
    """People let an account have more or less than it had."""

    account: str
    limits: AccountLimits
    actor: str = ""


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
    | JobSubmitted
    | JobCancelled
    | JobWatched
    | AdminSet
    | AccountLimited
)
"""Everything that `step` takes. Whoever drives the core (the tracker, a simulation) makes these and nothing else."""
