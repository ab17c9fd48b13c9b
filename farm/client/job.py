"""What a client learns of jobs: values, and what the end of a job means.

Owns: jobs, attempts, results and log chunks as Python values. Does not own: asking for them (`farm.client.jobs`).

Invariant: a job that ended without a passing run has a `failure`, whose exit code follows from outcome and verdict:
what the farm did wrong is never a `KernelFailed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from farm.api.v1 import job_pb2 as pb
from farm.core.digest import Digest
from farm.core.wire import Array
from farm.errors import (
    Cancelled,
    FarmError,
    InfrastructureError,
    KernelFailed,
    NobodyCanServe,
    TimeLimit,
)
from farm.measuring import Comparison
from farm.rpc import digest_from_proto, error_from_proto


class JobState(StrEnum):
    """How far a job is."""

    SUBMITTED = "submitted"
    QUEUED = "queued"
    DELAYED = "delayed"
    BUILDING = "building"
    RUNNING = "running"
    TERMINAL = "terminal"


class Outcome(StrEnum):
    """How a job ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time_limit"
    INFRA_FAILED = "infra_failed"
    POISONED = "poisoned"


class Verdict(StrEnum):
    """What a run that happened says of the work."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class AttemptState(StrEnum):
    """How far one try is, or how it ended."""

    RUNNING = "running"
    DONE = "done"
    INFRA_FAILED = "infra_failed"
    LOST = "lost"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """One try at a job.

    Attributes
    ----------
    error
        Why it is not done, or what the kernel did wrong.
    started_at, ended_at
        Seconds since the Unix epoch; None: not yet.
    """

    attempt_id: str
    device_id: str
    agent_id: str
    epoch: int
    state: AttemptState
    error: FarmError | None
    started_at: float | None
    ended_at: float | None

    @staticmethod
    def from_proto(attempt: pb.JobAttempt) -> AttemptInfo:
        """Return what a message says."""
        state = _word(pb.AttemptState.items(), attempt.state, "ATTEMPT_STATE_")
        return AttemptInfo(
            attempt_id=attempt.attempt_id,
            device_id=attempt.device_id,
            agent_id=attempt.agent_id,
            epoch=attempt.epoch,
            state=AttemptState(state),
            error=error_from_proto(attempt.error) if attempt.HasField("error") else None,
            started_at=attempt.started_at or None,
            ended_at=attempt.ended_at or None,
        )


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job as the tracker sees it; its arrays are fetched by `Job.result`.

    Attributes
    ----------
    outcome, verdict
        None while it has none: a verdict exists only if the run happened.
    artifact
        None in lists of jobs.
    candidates
        The names of those that a job compares; empty if it runs a function.
    error
        Set if the verdict is ``fail``, or the outcome is not ``completed``.
    submitted_at, ended_at
        Seconds since the Unix epoch; None: not yet.
    """

    job_id: str
    client_key: str
    account: str
    priority: int
    state: JobState
    outcome: Outcome | None
    verdict: Verdict | None
    selector: str
    artifact: Digest | None
    symbol: str
    repeat: int
    limit_s: float
    attempts: tuple[AttemptInfo, ...]
    error: FarmError | None
    submitted_at: float
    ended_at: float | None
    log_chunks: int
    candidates: tuple[str, ...] = ()

    @staticmethod
    def from_proto(job: pb.Job) -> JobInfo:
        """Return what a message says."""
        outcome = _word(pb.Outcome.items(), job.outcome, "OUTCOME_")
        verdict = _word(pb.Verdict.items(), job.verdict, "VERDICT_")
        run = job.run
        return JobInfo(
            job_id=job.job_id,
            client_key=job.client_key,
            account=job.account,
            priority=job.priority,
            state=JobState(_word(pb.JobState.items(), job.state, "JOB_STATE_")),
            outcome=Outcome(outcome) if job.outcome else None,
            verdict=Verdict(verdict) if job.verdict else None,
            selector=run.selector,
            artifact=digest_from_proto(run.artifact) if run.HasField("artifact") else None,
            symbol=run.symbol,
            repeat=run.repeat,
            limit_s=run.limit_s,
            attempts=tuple(map(AttemptInfo.from_proto, job.attempts)),
            error=error_from_proto(job.error) if job.HasField("error") else None,
            submitted_at=job.submitted_at,
            ended_at=job.ended_at or None,
            log_chunks=job.log_chunks,
            candidates=tuple(subject.name for subject in run.compare.subjects),
        )

    @property
    def ended(self) -> bool:
        """Whether it is terminal."""
        return self.state is JobState.TERMINAL

    @property
    def failure(self) -> FarmError | None:
        """Why an ended job did not pass; None if it did, or has not ended."""
        if not self.ended or (self.outcome, self.verdict) == (Outcome.COMPLETED, Verdict.PASS):
            return None
        error = self.error or FarmError(f"job {self.job_id}: {_said(self)}")
        cls = _class_of_failure(self, error)
        return error if isinstance(error, cls) else _as(cls, error)


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job that passed gave.

    Attributes
    ----------
    outputs
        One array for each output or inout parameter, in order.
    samples_ns
        Wall time of each timed call on the device; empty unless repeats were asked for.
    target
        Canonical text of the target whose slice ran.
    comparison
        Of a job that compares.
    """

    outputs: tuple[Array, ...]
    samples_ns: tuple[int, ...]
    target: str
    job: JobInfo
    comparison: Comparison | None = None

    @property
    def device_id(self) -> str:
        """The device that ran it."""
        done = [a.device_id for a in self.job.attempts if a.state is AttemptState.DONE]
        return done[-1] if done else ""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Some of what a kernel printed.

    Attributes
    ----------
    number
        1 for the first of a job.
    truncated
        The job's limit was reached here; the rest was dropped.
    """

    number: int
    data: bytes
    truncated: bool
    attempt_id: str

    @staticmethod
    def from_proto(chunk: pb.LogChunk) -> LogChunk:
        """Return what a message says."""
        return LogChunk(chunk.number, chunk.data, chunk.truncated, chunk.attempt_id)


@dataclass(frozen=True, slots=True)
class Why:
    """What a job is waiting for.

    Attributes
    ----------
    position
        1 is next; None: not in the queue.
    estimate_s
        About when it starts, in seconds from now; None: unknown.
    devices
        Each device that matches, and what keeps it from taking the job.
    """

    reason: str
    position: int | None
    estimate_s: float | None
    devices: Mapping[str, str]

    @staticmethod
    def from_proto(why: pb.WhyResponse) -> Why:
        """Return what a message says."""
        return Why(
            reason=why.reason,
            position=why.position or None,
            estimate_s=why.estimate_s if why.estimate_s >= 0 else None,
            devices=dict(sorted(why.devices.items())),
        )


_BY_OUTCOME: Mapping[Outcome | None, type[FarmError]] = {
    Outcome.CANCELLED: Cancelled,
    Outcome.TIME_LIMIT: TimeLimit,
    Outcome.POISONED: InfrastructureError,
}
_USERS = (1, 2, 3, 4)
"""Exit codes of errors that are the work's: it failed, was refused, did not build, ran too long."""


def _class_of_failure(job: JobInfo, error: FarmError) -> type[FarmError]:
    """Return what the end of a job must be an instance of, whatever the error's own code is."""
    if job.outcome is Outcome.COMPLETED:
        if job.verdict is not Verdict.FAIL:
            return InfrastructureError
        return type(error) if error.exit_code in _USERS else KernelFailed
    if job.outcome is Outcome.INFRA_FAILED and isinstance(error, NobodyCanServe):
        return NobodyCanServe
    return _BY_OUTCOME.get(job.outcome, InfrastructureError)


def _as(cls: type[FarmError], error: FarmError) -> FarmError:
    made = cls(error.message)
    made.details = {**error.details}
    if type(error) is not FarmError:
        made.details["cause"] = error.code
    return made


def _said(job: JobInfo) -> str:
    if job.outcome is Outcome.COMPLETED:
        return f"its verdict is {job.verdict or 'missing'}; see its log and attempts"
    return f"it ended as {job.outcome or 'nothing known here'}; see its attempts"


def _word(items: Iterable[tuple[str, int]], value: int, prefix: str) -> str:
    """Return ``queued`` for JOB_STATE_QUEUED.

    Raises
    ------
    InfrastructureError
        The tracker speaks of something that this version does not know.
    """
    name = next((name for name, number in items if number == value), None)
    if name is None or (name.endswith("_UNSPECIFIED") and prefix.endswith("STATE_")):
        raise InfrastructureError(
            f"job: an impossible {prefix.strip('_').lower()} ({value}); run the same version of kernel-farm at "
            "both ends"
        )
    return name.removeprefix(prefix).lower()
