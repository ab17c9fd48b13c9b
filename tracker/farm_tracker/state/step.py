"""One step of the farm: what an event changes and what is to be done for it.

Owns: the order inside a step: what is due, then the event, then who gets what became free, then who is told.
Does not own: the rules themselves (`leases`, `agents`, `builds`).

Invariant: pure: equal (state, event, now) give equal results; an event that raises changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm_tracker.state import admin, agents, builds, expiry, jobs, leases, offers, scheduling
from farm_tracker.state.commands import BuildOrder, PushDesired, RunOrder
from farm_tracker.state.events import (
    AccountLimited,
    AdminSet,
    AgentDisconnected,
    AgentReported,
    BuildCancelled,
    BuildMerged,
    BuildSubmitted,
    JobCancelled,
    JobSubmitted,
    JobWatched,
    LeaseReleased,
    LeaseRenewed,
    LeaseRequested,
    LeaseRevoked,
    Tick,
)
from farm_tracker.state.model import Use
from farm_tracker.state.state import Draft, State, Step

if TYPE_CHECKING:
    from farm.core.ids import AgentId, JobId
    from farm_tracker.state.events import Event


def step(state: State, event: Event, now: float) -> Step:
    """Return what `event` changes at `now`, and the commands to carry out once that is stored.

    The new state is ``state.apply(result.changes)``: given as a difference so that a step costs what it
    changes, and the store can write exactly that before it counts.

    Raises
    ------
    FarmError
        The event is refused (`Fenced`, `NobodyCanServe`, `DeviceBusy`, `QuotaExceeded`, `NotFound`,
        `InvalidInput`); nothing changes.

    Notes
    -----
    Whoever drives the core applies the changes at once, makes the durable ones durable, and only then carries out
    the commands, in the order of the steps. `JobAccepted` is what acknowledges a submit.
    """
    draft = Draft(state, now)
    for table, key in state.due(now, state.limits.expired_at_once):
        expiry.expire(draft, table, key)
        jobs.settle(draft)
    _bring_together(draft)
    _handle(draft, event)
    _bring_together(draft)
    builds.assign(draft)
    for agent_id in draft.push:
        _push(draft, agent_id)
    return Step(draft.changes, tuple(draft.commands))


def _bring_together(draft: Draft) -> None:
    """See what follows from leases that ended and devices that became free."""
    jobs.settle(draft)
    admin.rest(draft)
    offers.offer(draft)


def _handle(draft: Draft, event: Event) -> None:
    match event:
        case AgentReported():
            agents.report(draft, event)
        case AgentDisconnected():
            agents.disconnect(draft, event)
        case LeaseRequested() | LeaseRenewed() | LeaseReleased() | LeaseRevoked():
            _handle_lease(draft, event)
        case BuildSubmitted() | BuildCancelled() | BuildMerged():
            _handle_build(draft, event)
        case JobSubmitted() | JobCancelled() | JobWatched():
            _handle_job(draft, event)
        case AdminSet():
            admin.wish(draft, event)
        case AccountLimited():
            scheduling.limit(draft, event)
        case Tick():
            pass


def _handle_build(draft: Draft, event: BuildSubmitted | BuildCancelled | BuildMerged) -> None:
    match event:
        case BuildSubmitted():
            builds.submit(draft, event)
        case BuildCancelled():
            builds.cancel(draft, event)
        case BuildMerged():
            builds.merged(draft, event)


def _handle_job(draft: Draft, event: JobSubmitted | JobCancelled | JobWatched) -> None:
    match event:
        case JobSubmitted():
            jobs.submit(draft, event)
        case JobCancelled():
            jobs.cancel(draft, event)
        case JobWatched():
            jobs.watch(draft, event)


def _handle_lease(
    draft: Draft, event: LeaseRequested | LeaseRenewed | LeaseReleased | LeaseRevoked
) -> None:
    match event:
        case LeaseRequested():
            leases.request(draft, event)
        case LeaseRenewed():
            leases.renew(draft, event)
        case LeaseReleased():
            leases.release(draft, event)
        case LeaseRevoked():
            leases.revoke(draft, event)


def _push(draft: Draft, agent_id: AgentId) -> None:
    """Tell an agent everything that is wanted of it."""
    agent = draft.agents.get(agent_id)
    if agent is None:
        return
    orders = []
    for attempt_id in agent.attempt_ids:
        attempt = draft.attempts[attempt_id]
        orders.append(BuildOrder(attempt_id, draft.units[attempt.unit_id].spec, attempt.limit_s))
    held = []
    runs = []
    ended = []
    for device_id in agent.device_ids:
        device = draft.devices.get(device_id)
        if device is not None and device.use is Use.CLEANING:
            ended.append((device_id, device.epoch))
        lease = agents.live_lease_of(draft, device) if device is not None else None
        if lease is None:
            continue
        held.append(lease)
        if lease.job_id is not None:
            runs.append(_run_order(draft, lease.job_id))
    draft.commands.append(
        PushDesired(
            agent_id, agent.instance_id, tuple(orders), tuple(held), tuple(runs), tuple(ended)
        )
    )


def _run_order(draft: Draft, job_id: JobId) -> RunOrder:
    job = draft.run_jobs[job_id]
    assert job.attempt_id is not None, "a live lease serves an attempt that runs"
    return RunOrder(draft.run_attempts[job.attempt_id], job.run)
