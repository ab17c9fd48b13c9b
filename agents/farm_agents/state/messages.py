"""What goes into the agent's core (events) and what comes out (commands).

Owns: their types. Does not own: what they cause (`farm_agents.state.core`) or how they are carried out
(`farm_agents.agent`).

Invariant: an answer of the shell (Prepared, SessionFailed, Cleaned, BuildEnded, RunEnded) carries the epoch or the
attempt of the command that it answers, so that a late one is recognised.
"""

from __future__ import annotations

from dataclasses import dataclass

from farm.core.digest import Digest
from farm.core.ids import AttemptId, DeviceId, Epoch, LeaseId
from farm_agents.state.model import BuildOrder, BuildPhase, Failed, Grant, Health, Outcome
from farm_agents.state.run import RunOrder, RunPhase, RunResult

# Events


@dataclass(frozen=True, slots=True)
class Desired:
    """The tracker's whole desired state; what is absent is to end. `ended`: epochs that are over, by device."""

    leases: tuple[Grant, ...]
    builds: tuple[BuildOrder, ...]
    runs: tuple[RunOrder, ...] = ()
    ended: tuple[tuple[DeviceId, Epoch], ...] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """The worker of a lease is ready."""

    device_id: DeviceId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class SessionFailed:
    """The worker of a lease could not be started, or the tracker refused its session."""

    device_id: DeviceId
    epoch: Epoch
    cause: str


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Every process of a lease is proved gone."""

    device_id: DeviceId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Crashed:
    """Something crashed on the device under this lease: it is checked before it is used again."""

    device_id: DeviceId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class HealthSeen:
    """A check of a device ended."""

    device_id: DeviceId
    health: Health
    cause: str


@dataclass(frozen=True, slots=True)
class BuildMoved:
    """An attempt went on to COMPILING or STORING."""

    attempt_id: AttemptId
    phase: BuildPhase


@dataclass(frozen=True, slots=True)
class BuildEnded:
    """An attempt's processes are gone; this is what came out."""

    attempt_id: AttemptId
    outcome: Outcome
    seconds: float


@dataclass(frozen=True, slots=True)
class RunMoved:
    """A run went on: to LOADING, RUNNING, ENDING (the kernel returned or the farm failed), STORING (no worker left)."""

    attempt_id: AttemptId
    phase: RunPhase


@dataclass(frozen=True, slots=True)
class RunLogged:
    """These chunks of what a run printed are in the store, all from the first one on."""

    attempt_id: AttemptId
    chunks: tuple[Digest, ...]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class RunEnded:
    """A run's processes are gone and what it came to is in the store; `log` None: as it was told before."""

    attempt_id: AttemptId
    outcome: RunResult | Failed
    started_at: float
    ended_at: float
    log: tuple[Digest, ...] | None = None
    log_is_cut: bool = False


@dataclass(frozen=True, slots=True)
class RunsTold:
    """A message with the outcomes of these runs has left for the tracker."""

    attempt_ids: frozenset[AttemptId]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; deadlines may have come."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The agent is to end: give up every lease and every build, take no new ones."""


Event = (
    Desired
    | Prepared
    | SessionFailed
    | Cleaned
    | Crashed
    | HealthSeen
    | BuildMoved
    | BuildEnded
    | RunMoved
    | RunLogged
    | RunEnded
    | RunsTold
    | Tick
    | Stop
)

# Commands


@dataclass(frozen=True, slots=True)
class Prepare:
    """Start a worker for this lease and open its session; answer with Prepared or SessionFailed."""

    grant: Grant


@dataclass(frozen=True, slots=True)
class Clean:
    """End the session and every process of this lease; answer with Cleaned when they are gone."""

    device_id: DeviceId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Check:
    """Check the device; answer with HealthSeen."""

    device_id: DeviceId


@dataclass(frozen=True, slots=True)
class StartBuild:
    """Run this attempt; answer with BuildMoved as it goes on and BuildEnded at the end."""

    order: BuildOrder


@dataclass(frozen=True, slots=True)
class KillBuild:
    """Kill the attempt's processes; it still answers with BuildEnded."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class StartRun:
    """Run this attempt; answer with RunMoved as it goes on and RunEnded at the end."""

    order: RunOrder


@dataclass(frozen=True, slots=True)
class KillRun:
    """Kill the attempt's processes; it still answers with RunEnded."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class DropRun:
    """The tracker knows what this attempt came to: nothing of it needs to be kept."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class Fence:
    """A grant was refused because its epoch is not above the last one that was served."""

    lease_id: LeaseId
    device_id: DeviceId
    epoch: Epoch
    last_epoch: Epoch


@dataclass(frozen=True, slots=True)
class Report:
    """What the tracker sees has changed: send the state now."""


Command = (
    Prepare | Clean | Check | StartBuild | KillBuild | StartRun | KillRun | DropRun | Fence | Report
)
