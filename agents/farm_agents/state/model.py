"""The values that the agent's core works on.

Owns: devices, grants, build orders, attempts, and the state that holds them; values of runs are in
`farm_agents.state.run`.
Does not own: how they change (`farm_agents.state.core`).

Invariant: a device is IDLE exactly if it has no lease, and exactly then it has no deadline.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from farm.core.digest import Digest
from farm.core.ids import AttemptId, DeviceId, Epoch, LeaseId
from farm.core.values import replace
from farm_agents.state.run import BUSY_PHASES, Run, RunOrder

NO_EPOCH = Epoch(0)
PREPARE_LIMIT_S = 30.0
"""How long a worker may take to get ready before the lease is given up."""
CLEAN_LIMIT_S = 10.0
"""How long the processes of a lease may take to die before the device is BAD(unkillable)."""
TRANSFER_LIMIT_S = 120.0
"""How long fetching a function or storing an object may take, the tracker's absence included."""
KILL_LIMIT_S = 10.0
"""How long a build's processes may take to die before they are killed once more."""
STORY_LENGTH = 24
"""How many transitions of a device are remembered for the message of an invalid one."""


class Use(enum.Enum):
    """What a device is doing, as the agent sees it."""

    IDLE = "IDLE"
    PREPARING = "PREPARING"
    LEASED = "LEASED"
    CLEANING = "CLEANING"


class Health(enum.Enum):
    """What checks and kills say of a device."""

    UNCHECKED = "UNCHECKED"
    CHECKING = "CHECKING"
    GOOD = "GOOD"
    BAD = "BAD"
    RECOVERING = "RECOVERING"


class BuildPhase(enum.Enum):
    """Where a build attempt is."""

    WAITING = "WAITING"
    FETCHING = "FETCHING"
    COMPILING = "COMPILING"
    STORING = "STORING"
    KILLING = "KILLING"
    FINISHED = "FINISHED"


ACTIVE_PHASES = frozenset(
    {BuildPhase.FETCHING, BuildPhase.COMPILING, BuildPhase.STORING, BuildPhase.KILLING}
)
"""Phases in which an attempt holds a build slot and has a deadline."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease that the tracker wants on a device; `ends_at` is on the agent's own clock."""

    lease_id: LeaseId
    device_id: DeviceId
    epoch: Epoch
    ends_at: float


@dataclass(frozen=True, slots=True)
class Device:
    """One device: its use, the lease of that use, and its health.

    Attributes
    ----------
    last_epoch
        The highest epoch that was ever served, or that is over for the tracker; one that is not above it is refused.
    deadline
        When the present use ends by itself, on the agent's clock; None only when IDLE.
    suspect
        Whether something crashed under the present lease: the device is CHECKING after it.
    unkillable
        Whether cleaning ran past its limit: the device is BAD until its processes are proved gone.
    """

    device_id: DeviceId
    use: Use = Use.IDLE
    lease: Grant | None = None
    last_epoch: Epoch = NO_EPOCH
    deadline: float | None = None
    health: Health = Health.UNCHECKED
    health_cause: str = ""
    unkillable: bool = False
    suspect: bool = False
    story: tuple[str, ...] = ()

    @property
    def epoch(self) -> Epoch:
        """The epoch of the present use; 0 when idle."""
        return self.lease.epoch if self.lease else NO_EPOCH

    @property
    def reported_epoch(self) -> Epoch:
        """The epoch of the present use; of an idle device the last one, so that the tracker sees what was heard."""
        return self.lease.epoch if self.lease else self.last_epoch

    def told(self, line: str) -> Device:
        """Return the device with one more line in its story."""
        return replace(self, story=(*self.story, line)[-STORY_LENGTH:])


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """One attempt to compile one function for one target; `code` is the function if it came with the order."""

    attempt_id: AttemptId
    kind: str
    target: str
    symbol: str
    function: Digest
    limit_s: float
    code: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled module, its object stored at the tracker, or in `data`, which goes there with the report."""

    object: Digest
    format: str
    format_version: int
    requires: tuple[str, ...]
    toolchain: str
    signature: bytes
    data: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """Why an attempt has no module: a stable code, a message, facts for programs."""

    code: str
    message: str
    details: tuple[tuple[str, str], ...] = ()


Outcome = Built | Failed


@dataclass(frozen=True, slots=True)
class Build:
    """One build attempt.

    Attributes
    ----------
    verdict
        Set in KILLING if the attempt was killed for passing a limit: it becomes the outcome.
    seconds
        Time that the compiler took; 0 until it ended.
    """

    order: BuildOrder
    phase: BuildPhase = BuildPhase.WAITING
    deadline: float | None = None
    verdict: Failed | None = None
    outcome: Outcome | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class State:
    """Everything the agent's core knows."""

    slots: int
    devices: Mapping[DeviceId, Device]
    builds: Mapping[AttemptId, Build] = field(default_factory=dict)
    runs: Mapping[AttemptId, Run] = field(default_factory=dict)
    wanted_leases: Mapping[DeviceId, Grant] = field(default_factory=dict)
    wanted_builds: Mapping[AttemptId, BuildOrder] = field(default_factory=dict)
    wanted_runs: Mapping[AttemptId, RunOrder] = field(default_factory=dict)
    stopping: bool = False

    @property
    def at_rest(self) -> bool:
        """Whether no lease is served and nothing is built or run; results may wait for the tracker."""
        return (
            all(device.use is Use.IDLE for device in self.devices.values())
            and not any(build.phase in ACTIVE_PHASES for build in self.builds.values())
            and not any(run.phase in BUSY_PHASES for run in self.runs.values())
        )

    def is_for_run(self, grant: Grant) -> bool:
        """Tell whether a lease is that of a run, which needs no session with the tracker."""
        return any(run.order.lease_id == grant.lease_id for run in self.runs.values())


def initial_state(device_ids: Iterable[DeviceId], slots: int, runs: Iterable[Run] = ()) -> State:
    """Return the state of a fresh agent: every device idle and unchecked, no builds.

    Parameters
    ----------
    runs
        What runs of an earlier process came to: FINISHED, or STORING if the store may lack some of it.
    """
    return State(
        slots=slots,
        devices={name: Device(name) for name in device_ids},
        runs={run.order.attempt_id: run for run in runs},
    )


def next_deadline(state: State) -> float | None:
    """Return the earliest armed deadline on the agent's clock, or None if nothing is armed."""
    devices = (device.deadline for device in state.devices.values())
    builds = (build.deadline for build in state.builds.values())
    runs = (run.deadline for run in state.runs.values())
    return min((at for at in (*devices, *builds, *runs) if at is not None), default=None)
