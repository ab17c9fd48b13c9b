"""The step function of the agent's core.

Owns: which event triggers which transition, and bringing the present state towards the desired one.
Does not own: the transitions themselves (`farm_agents.state.devices`, `farm_agents.state.builds`).

Invariant: after each step no device and no attempt can be brought closer to the desired state without an
answer of the shell or the passing of time.
"""

from __future__ import annotations

from dataclasses import replace

from farm.core.ids import DeviceId
from farm_agents.state import builds as build_rules
from farm_agents.state.devices import Facts, InvalidTransition, Trigger, change
from farm_agents.state.messages import (
    BuildEnded,
    BuildMoved,
    Cleaned,
    Command,
    Desired,
    Event,
    Fence,
    HealthSeen,
    Prepared,
    Report,
    SessionFailed,
    Stop,
    Tick,
)
from farm_agents.state.model import BuildPhase, Device, Grant, Health, State, Use

_ANSWERS = {
    Prepared: Trigger.PREPARED,
    SessionFailed: Trigger.FAILED,
    Cleaned: Trigger.CLEANED,
}


def step(state: State, event: Event, now: float) -> tuple[State, tuple[Command, ...]]:
    """Return the state after `event` at time `now` (seconds, the agent's clock) and what has to be done.

    Raises
    ------
    InvalidTransition
        The shell answered what it was not asked: a defect of the agent.
    """
    after, commands = _take(state, event, now)
    after, expired = _expire(after, now)
    after, settled = _settle(after, now)
    done = (*commands, *expired, *settled)
    if _visible(after) != _visible(state):
        done = (*done, Report())
    return after, done


def _take(state: State, event: Event, now: float) -> tuple[State, tuple[Command, ...]]:
    match event:
        case Desired():
            return _want(state, event)
        case Prepared() | SessionFailed() | Cleaned():
            return _answer(state, event, now)
        case HealthSeen():
            return _see(state, event), ()
        case BuildMoved():
            return _put_build(state, event, now), ()
        case BuildEnded():
            return _put_build(state, event, now), ()
        case Tick():
            return state, ()
        case Stop():
            return replace(state, stopping=True, wanted_leases={}, wanted_builds={}), ()


def _want(state: State, event: Desired) -> tuple[State, tuple[Command, ...]]:
    if state.stopping:
        return state, ()
    leases: dict[DeviceId, Grant] = {}
    refused: list[Command] = []
    for grant in event.leases:
        device = state.devices.get(grant.device_id)
        if device is None:
            continue
        current = device.lease
        is_current = current is not None and current.lease_id == grant.lease_id
        if grant.epoch > device.last_epoch or (is_current and grant.epoch == device.epoch):
            leases[grant.device_id] = grant
        else:
            refused.append(Fence(grant.lease_id, grant.device_id, grant.epoch, device.last_epoch))
    wanted = {order.attempt_id: order for order in event.builds}
    return replace(state, wanted_leases=leases, wanted_builds=wanted), tuple(refused)


def _answer(
    state: State, event: Prepared | SessionFailed | Cleaned, now: float
) -> tuple[State, tuple[Command, ...]]:
    device = state.devices[event.device_id]
    if event.epoch != device.epoch:  # an answer for a lease that is over
        return state, ()
    cause = event.cause if isinstance(event, SessionFailed) else ""
    changed, commands = change(device, _ANSWERS[type(event)], Facts(now, cause=cause))
    return _put(state, changed), commands


def _see(state: State, event: HealthSeen) -> State:
    device = state.devices[event.device_id]
    if device.unkillable:  # only the proof that its processes are gone can heal it
        return state
    return _put(state, replace(device, health=event.health, health_cause=event.cause))


def _put_build(state: State, event: BuildMoved | BuildEnded, now: float) -> State:
    build = state.builds.get(event.attempt_id)
    if build is None:
        raise InvalidTransition(
            f"build {event.attempt_id}: an answer for an unknown attempt; defect of the agent"
        )
    builds = dict(state.builds)
    if isinstance(event, BuildMoved):
        builds[event.attempt_id] = build_rules.move(build, event, now)
    elif build.phase is BuildPhase.KILLING and build.verdict is None:
        del builds[event.attempt_id]  # it was unwanted; if it is wanted again, it starts afresh
    else:
        builds[event.attempt_id] = build_rules.end(build, event)
    return replace(state, builds=builds)


def _expire(state: State, now: float) -> tuple[State, tuple[Command, ...]]:
    commands: list[Command] = []
    devices = dict(state.devices)
    for name, device in state.devices.items():
        if device.deadline is not None and device.deadline <= now:
            devices[name], todo = change(device, Trigger.EXPIRED, Facts(now, cause="deadline"))
            commands.extend(todo)
    builds = dict(state.builds)
    for attempt_id, build in state.builds.items():
        if build.deadline is not None and build.deadline <= now:
            builds[attempt_id], todo = build_rules.expire(build, now)
            commands.extend(todo)
    return replace(state, devices=devices, builds=builds), tuple(commands)


def _settle(state: State, now: float) -> tuple[State, tuple[Command, ...]]:
    commands: list[Command] = []
    devices = dict(state.devices)
    for name, device in state.devices.items():
        grant = state.wanted_leases.get(name)
        trigger = _demand(device, grant, now)
        if trigger is not None:
            devices[name], todo = change(device, trigger, Facts(now, grant))
            commands.extend(todo)
    builds, todo = build_rules.reconcile(state.builds, state.wanted_builds, state.slots, now)
    commands.extend(todo)
    return replace(state, devices=devices, builds=builds), tuple(commands)


def _demand(device: Device, grant: Grant | None, now: float) -> Trigger | None:
    if device.use is Use.CLEANING:
        return None
    if device.use is Use.IDLE:
        fresh = grant is not None and grant.epoch > device.last_epoch and grant.ends_at > now
        return Trigger.GRANTED if fresh and device.health is not Health.BAD else None
    if grant is None or grant.epoch != device.epoch:
        return Trigger.WITHDRAWN
    return Trigger.RENEWED if grant != device.lease else None


def _put(state: State, device: Device) -> State:
    return replace(state, devices={**state.devices, device.device_id: device})


def _visible(state: State) -> object:
    devices = [(d.use, d.epoch, d.health, d.health_cause) for d in state.devices.values()]
    builds = [(name, build.outcome is not None) for name, build in state.builds.items()]
    return devices, builds
