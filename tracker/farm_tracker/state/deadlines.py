"""Deadlines: when a state that is between two others ends by itself, and in what.

Owns: the deadline of each entity in each state. Does not own: what happens then (`expiry`).

Invariant: every state that is not a resting state has a deadline, of its own or of what it is bound to: a held device
and the running attempt of a job end with their lease, a RUNNING job with its attempt, an attempt that ended is kept
as long as its job. Resting are: a device that is not OFFLINE and IDLE, or CLEANING and known to be BAD; one that is
OFFLINE and that people have taken out of service; an agent that is OFFLINE and still owns devices; an account that
holds or waits for something, or has limits of its own, outside its window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm_tracker.state.account import FORGET_AFTER_HALF_LIVES, Account
from farm_tracker.state.model import (
    HELD,
    Admin,
    Agent,
    Device,
    Health,
    Lease,
    LeaseState,
    Limits,
    Observed,
    Use,
)
from farm_tracker.state.run import RunJob, RunState
from farm_tracker.state.work import Attempt, AttemptState, BuildJob, BuildUnit, UnitState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farm_tracker.state.state import State

FORGOTTEN = "FORGOTTEN"
REOPENED = "REOPENED"
BAD = "CLEANING, BAD"

Entity = Agent | Device | Lease | BuildJob | BuildUnit | Attempt | RunJob | Account

TABLES = ("agents", "devices", "leases", "jobs", "units", "attempts", "run_jobs", "accounts")
"""The tables of a state whose entities have deadlines of their own."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When (on the tracker's clock, in seconds) and the name of the state that follows."""

    at: float
    then: str


def deadline_of(entity: Entity, limits: Limits) -> Deadline | None:
    """Return when `entity` leaves its state by itself; None for a resting state."""
    match entity:
        case RunJob():
            return _of_run(entity)
        case Account():
            return _of_account(entity, limits)
        case _:
            return _of_the_rest(entity, limits)


def _of_the_rest(
    entity: Agent | Device | Lease | BuildJob | BuildUnit | Attempt, limits: Limits
) -> Deadline | None:
    match entity:
        case Lease():
            return _of_lease(entity)
        case Device():
            return _of_device(entity, limits)
        case Agent():
            return _of_agent(entity, limits)
        case BuildJob():
            return Deadline(entity.deadline, "FAILED") if entity.is_open else _forget(entity)
        case BuildUnit():
            return _of_unit(entity)
        case Attempt():
            if entity.state is AttemptState.BUILDING:
                return Deadline(entity.deadline, AttemptState.LOST)
            return _forget(entity)


def deadlines(state: State) -> Iterator[tuple[Entity, Deadline]]:
    """Yield every armed deadline with what it belongs to."""
    for name in TABLES:
        for entity in getattr(state, name).values():
            deadline = deadline_of(entity, state.limits)
            if deadline is not None:
                yield entity, deadline


def _of_lease(lease: Lease) -> Deadline:
    match lease.state:
        case LeaseState.QUEUED:
            return Deadline(lease.wait_until, LeaseState.EXPIRED)
        case LeaseState.GRANTED if lease.active_by < lease.expires_at:
            return Deadline(lease.active_by, LeaseState.LOST)
        case LeaseState.GRANTED | LeaseState.ACTIVE:
            return Deadline(lease.expires_at, LeaseState.EXPIRED)
        case _:
            return _forget(lease)


def _of_device(device: Device, limits: Limits) -> Deadline | None:
    # A held device ends with its lease, whose deadline comes first in every state.
    found = []
    if (
        device.use is Use.CLEANING
        and device.health is not Health.BAD
        and device.use_until is not None
    ):
        found.append(Deadline(device.use_until, BAD))
    if device.admin_until is not None:
        found.append(Deadline(device.admin_until, Admin.ENABLED))
    if is_forgettable(device) and device.offline_at is not None:
        found.append(Deadline(device.offline_at + limits.device_retain_s, FORGOTTEN))
    return min(found, key=lambda it: it.at, default=None)


def is_forgettable(device: Device) -> bool:
    """Tell whether a device will be forgotten: not what people have wished of one that is out of service."""
    return device.observed is Observed.OFFLINE and device.admin is Admin.ENABLED


def _of_agent(agent: Agent, limits: Limits) -> Deadline | None:
    match agent.observed:
        case Observed.ONLINE:
            return Deadline(agent.last_report + limits.suspect_s, Observed.SUSPECT)
        case Observed.SUSPECT | Observed.UNKNOWN:
            return Deadline(agent.last_report + limits.offline_s, Observed.OFFLINE)
        case Observed.OFFLINE:
            return None if agent.device_ids else Deadline(agent.forget_at, FORGOTTEN)


def _of_unit(unit: BuildUnit) -> Deadline | None:
    match unit.state:
        case UnitState.QUEUED:
            return Deadline(unit.wait_until, UnitState.FAILED)
        case UnitState.DELAYED:
            return Deadline(unit.not_before, UnitState.QUEUED)
        case UnitState.BUILDING:
            return None  # ends with its attempt, which has one
        case _:
            return _forget(unit)


def _of_run(job: RunJob) -> Deadline | None:
    match job.state:
        case RunState.TERMINAL:
            return Deadline(job.forget_at, FORGOTTEN)
        case RunState.QUEUED | RunState.SUBMITTED:
            at = min(job.queue_until, job.unwatched_until or job.queue_until)
            if job.elsewhere_until is not None and job.elsewhere_until < at:
                return Deadline(job.elsewhere_until, RunState.QUEUED)
            return Deadline(at, RunState.TERMINAL)
        case RunState.DELAYED:
            if job.unwatched_until is not None and job.unwatched_until < job.not_before:
                return Deadline(job.unwatched_until, RunState.TERMINAL)
            return Deadline(job.not_before, RunState.QUEUED)
        case RunState.RUNNING if job.unwatched_until is not None:
            return Deadline(job.unwatched_until, RunState.TERMINAL)
        case RunState.RUNNING:
            return None  # ends with its attempt's lease, which has one


def _of_account(account: Account, limits: Limits) -> Deadline | None:
    end = account.window_end()
    if end is not None:
        return Deadline(end, REOPENED)
    if not account.is_idle():
        return None
    return Deadline(account.usage_at + FORGET_AFTER_HALF_LIVES * limits.half_life_s, FORGOTTEN)


def _forget(entity: Lease | BuildJob | BuildUnit | Attempt) -> Deadline:
    return Deadline(entity.forget_at, FORGOTTEN)


def is_between(entity: Entity) -> bool:
    """Tell whether the entity must have a deadline of its own or of what it is bound to."""
    if isinstance(entity, Device):
        return entity.use in HELD or (
            entity.use is Use.CLEANING and entity.health is not Health.BAD
        )
    return True
