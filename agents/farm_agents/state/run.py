"""The values of run attempts: orders, phases, outcomes.

Owns: these types and their limits. Does not own: how they change (`farm_agents.state.runs`), or running
(`farm_agents.runs`).

Invariant: `outcome` is set exactly in FINISHED; what was asked for and what came out are messages of the contract
(`RunSpec`, `JobResult`) that the core never looks into.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.core.limits import JOB_END_S

if TYPE_CHECKING:
    from farm.core.digest import Digest
    from farm.core.ids import AttemptId, DeviceId, Epoch, JobId, LeaseId
    from farm_agents.state.model import Failed

LOAD_LIMIT_S = 75.0
"""How long a worker may take to load an artifact; the session ends it earlier and says why."""
RUN_GRACE_S = JOB_END_S
"""How long after its limit a run may take to be killed and reported; the session does so at the limit."""
KEEP_LIMIT_S = 86_400.0
"""How long a result is kept for a tracker that is away."""


class RunPhase(enum.Enum):
    """Where a run attempt is."""

    WAITING = "WAITING"
    FETCHING = "FETCHING"
    LOADING = "LOADING"
    RUNNING = "RUNNING"
    ENDING = "ENDING"
    STORING = "STORING"
    KILLING = "KILLING"
    FINISHED = "FINISHED"


DEVICE_PHASES = frozenset({RunPhase.FETCHING, RunPhase.LOADING, RunPhase.RUNNING})
"""Phases in which an attempt uses its device: it is killed when the lease ends."""
BUSY_PHASES = DEVICE_PHASES | {RunPhase.ENDING, RunPhase.KILLING}
"""Phases in which an attempt may have processes."""


@dataclass(frozen=True, slots=True)
class RunOrder:
    """One attempt to run something under a lease of its own; `run` is a serialised `RunSpec`."""

    attempt_id: AttemptId
    job_id: JobId
    lease_id: LeaseId
    device_id: DeviceId
    epoch: Epoch
    limit_s: float
    run: bytes


@dataclass(frozen=True, slots=True)
class RunResult:
    """The kernel ran to its end: a serialised `JobResult`, its blobs in the store."""

    message: bytes


@dataclass(frozen=True, slots=True)
class Run:
    """One run attempt.

    Attributes
    ----------
    deadline
        When the phase ends by itself, on the agent's clock; None only when FINISHED.
    verdict
        Set in KILLING: it becomes the outcome.
    log, log_is_cut
        Chunks that are in the store; whether more was printed than is kept.
    run_by
        When the calls must have begun, on the agent's clock, to have their whole limit before the lease ends.
    started_at, ended_at
        Seconds since the Unix epoch; 0: not yet.
    is_told
        Whether a message with the outcome has left; only then may the tracker's silence about it end it.
    """

    order: RunOrder
    phase: RunPhase = RunPhase.WAITING
    deadline: float | None = None
    verdict: Failed | None = None
    outcome: RunResult | Failed | None = None
    log: tuple[Digest, ...] = ()
    log_is_cut: bool = False
    run_by: float | None = None
    started_at: float = 0.0
    ended_at: float = 0.0
    is_told: bool = False
