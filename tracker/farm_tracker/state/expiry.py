"""Expiry: what happens when a deadline passes.

Owns: one rule a kind of entity. Does not own: when deadlines are (`deadlines`).

Invariant: after it, the entity is in the state that its deadline named, or gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from farm.core.values import replace
from farm_tracker.state import admin, agents, builds, jobs, leases, scheduling
from farm_tracker.state.account import Account
from farm_tracker.state.agents import UNKILLABLE
from farm_tracker.state.deadlines import BAD, FORGOTTEN, deadline_of
from farm_tracker.state.model import Agent, Device, Health, Lease, LeaseState, Observed
from farm_tracker.state.run import RunJob
from farm_tracker.state.table import Trigger
from farm_tracker.state.work import Attempt, BuildJob, BuildUnit, UnitState

if TYPE_CHECKING:
    from farm_tracker.state.deadlines import Deadline, Entity
    from farm_tracker.state.state import Draft, Overlay


def expire(draft: Draft, table: str, key: str) -> None:
    """Let every deadline of one entity pass that is due; another expiry of this step may have moved it."""
    overlay = cast("Overlay[str, Entity]", getattr(draft, table))
    while (entity := overlay.get(key)) is not None:
        deadline = deadline_of(entity, draft.limits)
        if deadline is None or deadline.at > draft.now:
            return
        if deadline.then == FORGOTTEN:
            _forget(draft, overlay, key, entity)
        else:
            _pass(draft, entity, deadline)


def _pass(draft: Draft, entity: Entity, deadline: Deadline) -> None:
    match entity:
        case Lease():
            _expire_lease(draft, entity, deadline.then)
        case Device() if deadline.then != BAD:
            admin.expire(draft, entity)
        case Device():
            draft.devices[entity.device_id] = replace(
                entity, health=Health.BAD, health_cause=UNKILLABLE, use_until=None
            )
        case Agent():
            _expire_agent(draft, entity)
        case Attempt():
            builds.lose(draft, entity, f"agent {entity.agent_id} never told its outcome")
        case BuildUnit():
            assert entity.state in (UnitState.QUEUED, UnitState.DELAYED)
            builds.expire_unit(draft, entity)
        case BuildJob():
            builds.expire_job(draft, entity)
        case RunJob():
            jobs.expire(draft, entity)
        case Account():
            scheduling.reopen(draft, entity)


def _forget(draft: Draft, overlay: Overlay[str, Entity], key: str, entity: Entity) -> None:
    if isinstance(entity, BuildUnit):
        builders = [draft.jobs.get(job_id) for job_id in entity.job_ids]
        if any(job is not None and job.is_open for job in builders):
            later = draft.now + draft.limits.retain_s
            draft.units[entity.unit_id] = replace(entity, forget_at=later)
            return
    if isinstance(entity, RunJob):
        jobs.forget(draft, entity)
        return
    if isinstance(entity, Device):
        agents.forget_device(draft, entity)
        return
    overlay.forget(key)


def _expire_lease(draft: Draft, lease: Lease, then: str) -> None:
    if lease.state is LeaseState.QUEUED:
        leases.end(draft, lease, Trigger.EXPIRE, "no device became free in time")
    elif then == LeaseState.LOST:
        limit = f"{draft.limits.prepare_s:g} s"
        leases.end(
            draft, lease, Trigger.LOSE, f"its agent did not prepare the device within {limit}"
        )
    else:
        leases.end(draft, lease, Trigger.EXPIRE, "its time ran out without a renewal")


def _expire_agent(draft: Draft, agent: Agent) -> None:
    if agent.observed is Observed.ONLINE:
        agents.observe(draft, agent, Trigger.SILENCE)
    else:
        agents.observe(draft, agent, Trigger.LOSE)
