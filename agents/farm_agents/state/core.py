"""The step function of the agent's core.

Owns: which event triggers which transition, and bringing the present state towards the desired one.
Does not own: the transitions themselves (`farm_agents.state.devices`, `farm_agents.state.builds`,
`farm_agents.state.runs`).

Invariant: after each step no device and no attempt can be brought closer to the desired state without an
answer of the shell or the passing of time.
"""

from __future__ import annotations

from collections.abc import Iterable

from farm.core.ids import DeviceId
from farm.core.values import replace
from farm_agents.state import builds as build_rules
from farm_agents.state import runs as run_rules
from farm_agents.state.devices import AgentDefect, Facts, Trigger, change
from farm_agents.state.messages import (
    BuildEnded,
    BuildMoved,
    Cleaned,
    Command,
    Crashed,
    Desired,
    Event,
    Fence,
    HealthSeen,
    Prepared,
    Report,
    RunEnded,
    RunLogged,
    RunMoved,
    RunsTold,
    SessionFailed,
    Stop,
    Tick,
)
from farm_agents.state.model import NO_EPOCH, BuildPhase, Device, Grant, Health, State, Use
from farm_agents.state.run import RunPhase
from farm_agents.state.runs import RunFacts, RunTrigger, change_run

_ANSWERS = {
    Prepared: Trigger.PREPARED,
    SessionFailed: Trigger.FAILED,
    Cleaned: Trigger.CLEANED,
}


def step(state: State, event: Event, now: float) -> tuple[State, tuple[Command, ...]]:
    """Return the state after `event` at time `now` (seconds, the agent's clock) and what has to be done.

    Raises
    ------
    AgentDefect
        The shell answered what it was not asked: a defect of the agent.
    """
    after, commands = _take(state, event, now)
    after, expired = _expire(after, now)
    after, settled = _settle(after, now)
    done = (*commands, *expired, *settled)
    if _has_news(after, state):
        done = (*done, Report())
    return after, done


def _take(state: State, event: Event, now: float) -> tuple[State, tuple[Command, ...]]:
    match event:
        case Desired():
            return _want(state, event, now)
        case Prepared() | SessionFailed() | Cleaned():
            return _answer(state, event, now)
        case HealthSeen() | Crashed():
            return _see(state, event), ()
        case BuildMoved():
            return _put_build(state, event, now), ()
        case BuildEnded():
            return _put_build(state, event, now), ()
        case RunMoved() | RunLogged() | RunEnded():
            return _put_run(state, event, now)
        case RunsTold():
            return _tell(state, event), ()
        case Tick():
            return state, ()
        case Stop():
            nothing: State = replace(state, wanted_leases={}, wanted_builds={}, wanted_runs={})
            return replace(nothing, stopping=True), ()


def _want(state: State, event: Desired, now: float) -> tuple[State, tuple[Command, ...]]:
    if state.stopping:
        return state, ()
    state, commands = _hear_ends(state, event)
    leases: dict[DeviceId, Grant] = {}
    for grant in event.leases:
        device = state.devices.get(grant.device_id)
        if device is None:
            continue
        current = device.lease
        is_current = current is not None and current.lease_id == grant.lease_id
        if grant.epoch > device.last_epoch or (is_current and grant.epoch == device.epoch):
            leases[grant.device_id] = grant
        else:
            commands.append(Fence(grant.lease_id, grant.device_id, grant.epoch, device.last_epoch))
    wanted = {order.attempt_id: order for order in event.builds}
    orders = {order.attempt_id: order for order in event.runs}
    runs, dropped = run_rules.drop(state.runs, orders)
    runs = run_rules.admit(runs, orders, state.devices, leases, now)
    wanting = replace(
        state, wanted_leases=leases, wanted_builds=wanted, wanted_runs=orders, runs=runs
    )
    return wanting, (*commands, *dropped)


def _hear_ends(state: State, event: Desired) -> tuple[State, list[Command]]:
    """Never serve epochs that are over; say so at once, since the tracker waits for it."""
    news: list[Command] = []
    for device_id, epoch in event.ended:
        device = state.devices.get(device_id)
        if device is not None and epoch > device.last_epoch:
            state = _put(state, replace(device, last_epoch=epoch))
            news = [Report()]
    return state, news


def _answer(
    state: State, event: Prepared | SessionFailed | Cleaned, now: float
) -> tuple[State, tuple[Command, ...]]:
    device = state.devices[event.device_id]
    if event.epoch != device.epoch:  # an answer for a lease that is over
        return state, ()
    cause = event.cause if isinstance(event, SessionFailed) else ""
    changed, commands = change(device, _ANSWERS[type(event)], Facts(now, cause=cause))
    return _put(state, changed), commands


def _see(state: State, event: HealthSeen | Crashed) -> State:
    device = state.devices[event.device_id]
    if isinstance(event, Crashed):
        is_current = device.use is not Use.IDLE and event.epoch == device.epoch
        return _put(state, replace(device, suspect=True)) if is_current else state
    if device.unkillable:  # only the proof that its processes are gone can heal it
        return state
    return _put(state, replace(device, health=event.health, health_cause=event.cause))


def _put_build(state: State, event: BuildMoved | BuildEnded, now: float) -> State:
    build = state.builds.get(event.attempt_id)
    if build is None:
        raise AgentDefect(
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


def _put_run(
    state: State, event: RunMoved | RunLogged | RunEnded, now: float
) -> tuple[State, tuple[Command, ...]]:
    run = state.runs.get(event.attempt_id)
    if run is None:
        raise AgentDefect(
            f"run {event.attempt_id}: an answer for an unknown attempt; defect of the agent"
        )
    commands: tuple[Command, ...] = ()
    match event:
        case RunLogged():
            run = run_rules.log(run, event)
        case RunMoved():
            facts = RunFacts(now, phase=event.phase)
            run, commands = change_run(run, RunTrigger.MOVED, facts)
        case RunEnded():
            run, commands = change_run(run, RunTrigger.ENDED, RunFacts(now, ended=event))
    return replace(state, runs={**state.runs, event.attempt_id: run}), commands


def _tell(state: State, event: RunsTold) -> State:
    runs = {
        attempt_id: replace(run, is_told=True)
        if attempt_id in event.attempt_ids and run.phase is RunPhase.FINISHED
        else run
        for attempt_id, run in state.runs.items()
    }
    return replace(state, runs=runs)


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
    runs = dict(state.runs)
    for attempt_id, run in state.runs.items():
        if run.deadline is not None and run.deadline <= now:
            facts = RunFacts(now, cause="its term was over")
            runs[attempt_id], todo = change_run(run, RunTrigger.EXPIRED, facts)
            commands.extend(todo)
    return replace(state, devices=devices, builds=builds, runs=runs), tuple(commands)


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
    runs, todo = run_rules.settle(state.runs, state.wanted_runs, devices, state.wanted_leases, now)
    commands.extend(todo)
    return replace(state, devices=devices, builds=builds, runs=runs), tuple(commands)


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


def _has_news(after: State, before: State) -> bool:
    """Tell whether the tracker should hear of a step at once, and not only with the next heartbeat.

    What has gone, it no longer wanted; and that the agent has begun what it was asked for changes nothing for it until
    that is done: that a device is ready is news for whoever waits to use it, for a run of this agent's own it is not.
    Each message costs a tracker with many agents more than the rest of a short run.
    """
    known = [*_news(before), *_uses(before, before.devices)]
    used = [
        name
        for name, device in after.devices.items()
        if not (device.use is Use.LEASED and device.lease and after.is_for_run(device.lease))
    ]
    return any(it not in known for it in [*_news(after), *_uses(after, used)])


def _uses(state: State, names: Iterable[DeviceId]) -> list[object]:
    return [(name, *_shown_use(state, state.devices[name])) for name in names]


def _news(state: State) -> list[object]:
    devices = [(name, it.health, it.health_cause) for name, it in state.devices.items()]
    builds = [name for name, it in state.builds.items() if it.outcome is not None]
    runs = [
        (name, it.outcome, it.log, it.log_is_cut)
        for name, it in state.runs.items()
        if it.outcome is not None or it.log
    ]
    return [*devices, *builds, *runs]


def _shown_use(state: State, device: Device) -> tuple[Use, int]:
    """Return a device's use; getting ready counts as idle, and cleaning up at the tracker's wish as leased still."""
    grant = state.wanted_leases.get(device.device_id)
    is_wanted = grant is not None and grant.epoch == device.epoch
    match device.use:
        case Use.PREPARING:
            return Use.IDLE, NO_EPOCH
        case Use.CLEANING if not is_wanted and not state.stopping:
            return Use.LEASED, device.epoch
        case _:
            return device.use, device.epoch
