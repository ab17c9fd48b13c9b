"""One step of the farm: what an event changes and what is to be done for it.

Owns: the order inside a step: what is due, then the event, then who gets what became free, then who is told.
Does not own: the rules themselves (`leases`, `agents`, `builds`).

Invariant: pure: equal (state, event, now) give equal results; an event that raises changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm_tracker.state import agents, builds, expiry, leases
from farm_tracker.state.commands import BuildOrder, PushDesired
from farm_tracker.state.events import (
    AgentDisconnected,
    AgentReported,
    BuildCancelled,
    BuildMerged,
    BuildSubmitted,
    LeaseReleased,
    LeaseRenewed,
    LeaseRequested,
    LeaseRevoked,
    Tick,
)
from farm_tracker.state.state import Draft, State, Step

if TYPE_CHECKING:
    from farm.core.ids import AgentId
    from farm_tracker.state.events import Event


def step(state: State, event: Event, now: float) -> Step:
    """Return what `event` changes at `now`, and the commands to carry out once that is stored.

    The new state is ``state.apply(result.changes)``: given as a difference so that a step costs what it
    changes, and the store can write exactly that before it counts.

    Raises
    ------
    FarmError
        The event is refused (`Fenced`, `NobodyCanServe`, `DeviceBusy`, `InvalidInput`); nothing changes.
    """
    draft = Draft(state, now)
    for table, key in state.due(now):
        expiry.expire(draft, table, key)
    _handle(draft, event)
    leases.offer(draft)
    builds.assign(draft)
    for agent_id in draft.push:
        _push(draft, agent_id)
    return Step(draft.changes, tuple(draft.commands))


def _handle(draft: Draft, event: Event) -> None:
    match event:
        case AgentReported():
            agents.report(draft, event)
        case AgentDisconnected():
            agents.disconnect(draft, event)
        case LeaseRequested() | LeaseRenewed() | LeaseReleased() | LeaseRevoked():
            _handle_lease(draft, event)
        case BuildSubmitted():
            builds.submit(draft, event)
        case BuildCancelled():
            builds.cancel(draft, event)
        case BuildMerged():
            builds.merged(draft, event)
        case Tick():
            pass


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
    for device_id in agent.device_ids:
        device = draft.devices.get(device_id)
        lease = agents.live_lease_of(draft, device) if device is not None else None
        if lease is not None:
            held.append(lease)
    draft.commands.append(PushDesired(agent_id, agent.instance_id, tuple(orders), tuple(held)))
