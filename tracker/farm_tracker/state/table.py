"""The transition table: which state follows which on what.

Owns: every allowed transition of leases, of a device's use and observation, of jobs, units and attempts.
Does not own: when a trigger happens (`step`).

Invariant: a pair that is absent is a bug of the caller and raises with the story of that thing.
"""

from __future__ import annotations

from enum import StrEnum, unique
from typing import TYPE_CHECKING, TypeVar

from farm.errors import InvalidTransition
from farm_tracker.state.model import STORY_LENGTH, Admin, LeaseState, Observed, Use
from farm_tracker.state.run import RunAttemptState, RunState
from farm_tracker.state.work import AttemptState, JobState, UnitState

if TYPE_CHECKING:
    from collections.abc import Mapping


@unique
class Trigger(StrEnum):
    """What makes something change its state."""

    GRANT = "GRANT"
    PREPARE = "PREPARE"
    ACTIVATE = "ACTIVATE"
    RELEASE = "RELEASE"
    EXPIRE = "EXPIRE"
    REVOKE = "REVOKE"
    LOSE = "LOSE"
    END = "END"
    CLEAN = "CLEAN"
    REPORT = "REPORT"
    DISCONNECT = "DISCONNECT"
    SILENCE = "SILENCE"
    ENQUEUE = "ENQUEUE"
    ASSIGN = "ASSIGN"
    SUCCEED = "SUCCEED"
    FAIL = "FAIL"
    RETRY = "RETRY"
    DELAY = "DELAY"
    CANCEL = "CANCEL"
    SUPERSEDE = "SUPERSEDE"
    ENABLE = "ENABLE"
    DRAIN = "DRAIN"
    REST = "REST"
    MAINTAIN = "MAINTAIN"
    RETIRE = "RETIRE"


S = TypeVar(
    "S",
    LeaseState,
    Use,
    Observed,
    JobState,
    UnitState,
    AttemptState,
    RunState,
    RunAttemptState,
    Admin,
)

LEASE: Mapping[tuple[LeaseState, Trigger], LeaseState] = {
    (LeaseState.QUEUED, Trigger.GRANT): LeaseState.GRANTED,
    (LeaseState.QUEUED, Trigger.RELEASE): LeaseState.RELEASED,
    (LeaseState.QUEUED, Trigger.EXPIRE): LeaseState.EXPIRED,
    (LeaseState.QUEUED, Trigger.REVOKE): LeaseState.REVOKED,
    (LeaseState.GRANTED, Trigger.ACTIVATE): LeaseState.ACTIVE,
    (LeaseState.GRANTED, Trigger.RELEASE): LeaseState.RELEASED,
    (LeaseState.GRANTED, Trigger.EXPIRE): LeaseState.EXPIRED,
    (LeaseState.GRANTED, Trigger.REVOKE): LeaseState.REVOKED,
    (LeaseState.GRANTED, Trigger.LOSE): LeaseState.LOST,
    (LeaseState.ACTIVE, Trigger.RELEASE): LeaseState.RELEASED,
    (LeaseState.ACTIVE, Trigger.EXPIRE): LeaseState.EXPIRED,
    (LeaseState.ACTIVE, Trigger.REVOKE): LeaseState.REVOKED,
    (LeaseState.ACTIVE, Trigger.LOSE): LeaseState.LOST,
}

USE: Mapping[tuple[Use, Trigger], Use] = {
    (Use.IDLE, Trigger.GRANT): Use.RESERVED,
    (Use.RESERVED, Trigger.PREPARE): Use.PREPARING,
    (Use.RESERVED, Trigger.ACTIVATE): Use.LEASED,
    (Use.PREPARING, Trigger.ACTIVATE): Use.LEASED,
    # The agent is busy with something that the tracker did not give it, such as an ended lease.
    (Use.IDLE, Trigger.END): Use.CLEANING,
    (Use.RESERVED, Trigger.END): Use.CLEANING,
    (Use.PREPARING, Trigger.END): Use.CLEANING,
    (Use.LEASED, Trigger.END): Use.CLEANING,
    (Use.CLEANING, Trigger.CLEAN): Use.IDLE,
}

OBSERVED: Mapping[tuple[Observed, Trigger], Observed] = {
    (Observed.UNKNOWN, Trigger.REPORT): Observed.ONLINE,
    (Observed.UNKNOWN, Trigger.LOSE): Observed.OFFLINE,
    (Observed.ONLINE, Trigger.REPORT): Observed.ONLINE,
    (Observed.ONLINE, Trigger.SILENCE): Observed.SUSPECT,
    (Observed.ONLINE, Trigger.DISCONNECT): Observed.SUSPECT,
    (Observed.SUSPECT, Trigger.REPORT): Observed.ONLINE,
    (Observed.SUSPECT, Trigger.DISCONNECT): Observed.SUSPECT,
    (Observed.SUSPECT, Trigger.LOSE): Observed.OFFLINE,
    (Observed.OFFLINE, Trigger.REPORT): Observed.ONLINE,
    (Observed.OFFLINE, Trigger.DISCONNECT): Observed.OFFLINE,
}

JOB: Mapping[tuple[JobState, Trigger], JobState] = {
    (JobState.SUBMITTED, Trigger.ENQUEUE): JobState.QUEUED,
    (JobState.QUEUED, Trigger.ASSIGN): JobState.BUILDING,
    (JobState.QUEUED, Trigger.FAIL): JobState.FAILED,
    (JobState.QUEUED, Trigger.CANCEL): JobState.CANCELLED,
    (JobState.BUILDING, Trigger.ASSIGN): JobState.BUILDING,
    (JobState.BUILDING, Trigger.SUCCEED): JobState.DONE,
    (JobState.BUILDING, Trigger.FAIL): JobState.FAILED,
    (JobState.BUILDING, Trigger.CANCEL): JobState.CANCELLED,
}

UNIT: Mapping[tuple[UnitState, Trigger], UnitState] = {
    (UnitState.QUEUED, Trigger.ASSIGN): UnitState.BUILDING,
    (UnitState.QUEUED, Trigger.FAIL): UnitState.FAILED,
    (UnitState.QUEUED, Trigger.CANCEL): UnitState.CANCELLED,
    (UnitState.BUILDING, Trigger.SUCCEED): UnitState.DONE,
    (UnitState.BUILDING, Trigger.FAIL): UnitState.FAILED,
    (UnitState.BUILDING, Trigger.RETRY): UnitState.QUEUED,
    (UnitState.BUILDING, Trigger.DELAY): UnitState.DELAYED,
    (UnitState.DELAYED, Trigger.ENQUEUE): UnitState.QUEUED,
    (UnitState.DELAYED, Trigger.CANCEL): UnitState.CANCELLED,
    (UnitState.BUILDING, Trigger.CANCEL): UnitState.CANCELLED,
}

ATTEMPT: Mapping[tuple[AttemptState, Trigger], AttemptState] = {
    (AttemptState.BUILDING, Trigger.SUCCEED): AttemptState.DONE,
    (AttemptState.BUILDING, Trigger.FAIL): AttemptState.FAILED,
    (AttemptState.BUILDING, Trigger.LOSE): AttemptState.LOST,
    (AttemptState.BUILDING, Trigger.CANCEL): AttemptState.CANCELLED,
}

RUN: Mapping[tuple[RunState, Trigger], RunState] = {
    (RunState.SUBMITTED, Trigger.ENQUEUE): RunState.QUEUED,
    (RunState.QUEUED, Trigger.ASSIGN): RunState.RUNNING,
    # A result that came late, but before anybody else began.
    (RunState.QUEUED, Trigger.SUCCEED): RunState.TERMINAL,
    (RunState.QUEUED, Trigger.CANCEL): RunState.TERMINAL,
    (RunState.QUEUED, Trigger.EXPIRE): RunState.TERMINAL,
    # The agent of its lost attempt is back and still keeps what came of it.
    (RunState.QUEUED, Trigger.DELAY): RunState.DELAYED,
    (RunState.RUNNING, Trigger.SUCCEED): RunState.TERMINAL,
    (RunState.RUNNING, Trigger.FAIL): RunState.TERMINAL,
    (RunState.RUNNING, Trigger.CANCEL): RunState.TERMINAL,
    (RunState.RUNNING, Trigger.RETRY): RunState.QUEUED,
    (RunState.RUNNING, Trigger.DELAY): RunState.DELAYED,
    (RunState.DELAYED, Trigger.ENQUEUE): RunState.QUEUED,
    (RunState.DELAYED, Trigger.SUCCEED): RunState.TERMINAL,
    (RunState.DELAYED, Trigger.CANCEL): RunState.TERMINAL,
}

RUN_ATTEMPT: Mapping[tuple[RunAttemptState, Trigger], RunAttemptState] = {
    (RunAttemptState.RUNNING, Trigger.SUCCEED): RunAttemptState.DONE,
    (RunAttemptState.RUNNING, Trigger.FAIL): RunAttemptState.INFRA_FAILED,
    (RunAttemptState.RUNNING, Trigger.LOSE): RunAttemptState.LOST,
    (RunAttemptState.RUNNING, Trigger.CANCEL): RunAttemptState.CANCELLED,
    (RunAttemptState.LOST, Trigger.SUCCEED): RunAttemptState.DONE,
    (RunAttemptState.LOST, Trigger.SUPERSEDE): RunAttemptState.SUPERSEDED,
}

WISHES: Mapping[Admin, Trigger] = {
    Admin.ENABLED: Trigger.ENABLE,
    Admin.DRAINING: Trigger.DRAIN,
    Admin.MAINTENANCE: Trigger.MAINTAIN,
    Admin.RETIRED: Trigger.RETIRE,
}
"""What people can ask for, whatever they asked for before."""

ADMIN: Mapping[tuple[Admin, Trigger], Admin] = {
    **{(before, trigger): after for before in Admin for after, trigger in WISHES.items()},
    (Admin.DRAINING, Trigger.REST): Admin.DRAINED,
}


def follow(
    table: Mapping[tuple[S, Trigger], S],
    state: S,
    trigger: Trigger,
    subject: str,
    story: tuple[str, ...] = (),
) -> S:
    """Return the state that follows `state` on `trigger`.

    Raises
    ------
    InvalidTransition
        The table has no such pair: a bug of the tracker. The message tells the thing's story.
    """
    try:
        return table[state, trigger]
    except KeyError:
        told = "; ".join(story) or "nothing recorded"
        raise InvalidTransition(
            f"{subject}: {trigger} is impossible in state {state}; report this story: {told}"
        ) from None


def told(story: tuple[str, ...], line: str) -> tuple[str, ...]:
    """Return the story with one more line; the oldest lines fall out."""
    return (*story, line)[-STORY_LENGTH:]
