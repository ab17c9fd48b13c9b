"""How run attempts change: one transition table.

Owns: the table of (phase, trigger) and its rules, and bringing the attempts towards the desired state.
Does not own: running (`farm_agents.runs`), devices and their leases (`farm_agents.state.devices`).

    WAITING → FETCHING → LOADING → RUNNING → ENDING → STORING → FINISHED, and from each of the middle ones → KILLING

Invariant: an attempt starts once, on a device that is LEASED with its epoch; it is KILLING or beyond as soon as that
lease ends; what it came to is kept until the tracker was told and no longer wants it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from farm.core.ids import AttemptId, DeviceId
from farm.core.values import replace
from farm.errors import Cancelled, FarmError, Fenced, InfrastructureError, TimeLimit
from farm_agents.state.devices import AgentDefect
from farm_agents.state.messages import Command, DropRun, KillRun, RunEnded, RunLogged, StartRun
from farm_agents.state.model import (
    KILL_LIMIT_S,
    TRANSFER_LIMIT_S,
    Device,
    Failed,
    Grant,
    Use,
)
from farm_agents.state.run import (
    DEVICE_PHASES,
    KEEP_LIMIT_S,
    LOAD_LIMIT_S,
    RUN_GRACE_S,
    Run,
    RunOrder,
    RunPhase,
    RunResult,
)

Runs = Mapping[AttemptId, Run]


class RunTrigger(enum.Enum):
    """What can happen to a run attempt."""

    LEASED = "LEASED"
    MOVED = "MOVED"
    ENDED = "ENDED"
    UNWANTED = "UNWANTED"
    LEASE_ENDED = "LEASE_ENDED"
    EXPIRED = "EXPIRED"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a rule may look at besides the attempt."""

    now: float
    phase: RunPhase | None = None
    ended: RunEnded | None = None
    cause: str = ""


RunRule = Callable[[Run, RunFacts], tuple[Run, tuple[Command, ...]]]

_MOVES = {
    RunPhase.FETCHING: {RunPhase.LOADING, RunPhase.ENDING, RunPhase.STORING},
    RunPhase.LOADING: {RunPhase.RUNNING, RunPhase.ENDING, RunPhase.STORING},
    RunPhase.RUNNING: {RunPhase.ENDING, RunPhase.STORING},
    RunPhase.ENDING: {RunPhase.STORING},
}


def change_run(run: Run, trigger: RunTrigger, facts: RunFacts) -> tuple[Run, tuple[Command, ...]]:
    """Return the attempt after `trigger`, and what has to be done.

    Raises
    ------
    AgentDefect
        The table has no rule for the attempt's phase and this trigger.
    """
    rule = RUN_TABLE.get((run.phase, trigger))
    if rule is None:
        raise AgentDefect(
            f"run {run.order.attempt_id}: no transition from {run.phase.value}({run.order.epoch}) "
            f"on {trigger.value}; this is a defect of the agent"
        )
    return rule(run, facts)


def log(run: Run, event: RunLogged) -> Run:
    """Return the attempt with the chunks of its log that are in the store."""
    if run.phase in (RunPhase.WAITING, RunPhase.FINISHED):
        raise AgentDefect(
            f"run {run.order.attempt_id}: printed in phase {run.phase.value}; defect of the agent"
        )
    return replace(run, log=event.chunks, log_is_cut=event.is_cut)


def admit(
    runs: Runs,
    orders: Mapping[AttemptId, RunOrder],
    devices: Mapping[DeviceId, Device],
    leases: Mapping[DeviceId, Grant],
    now: float,
) -> Runs:
    """Return the attempts with those that are new; what cannot start here is finished at once.

    Parameters
    ----------
    leases
        Those of the same message, without those that were refused.
    """
    found = dict(runs)
    for attempt_id, order in orders.items():
        if attempt_id in found:  # known, in whatever phase: it never starts twice
            continue
        grant = leases.get(order.device_id)
        if grant is not None and (grant.lease_id, grant.epoch) == (order.lease_id, order.epoch):
            found[attempt_id] = Run(order, deadline=grant.ends_at)
            continue
        device = devices.get(order.device_id)
        found[attempt_id] = Run(
            order, RunPhase.FINISHED, outcome=failed_of(_refusal(order, device))
        )
    return found


def drop(runs: Runs, orders: Mapping[AttemptId, RunOrder]) -> tuple[Runs, tuple[Command, ...]]:
    """Return the attempts without those whose outcome the tracker knows and no longer wants."""
    gone = [
        attempt_id
        for attempt_id, run in runs.items()
        if attempt_id not in orders and run.phase is RunPhase.FINISHED and run.is_told
    ]
    kept = {attempt_id: run for attempt_id, run in runs.items() if attempt_id not in gone}
    return kept, tuple(map(DropRun, gone))


def settle(
    runs: Runs,
    orders: Mapping[AttemptId, RunOrder],
    devices: Mapping[DeviceId, Device],
    leases: Mapping[DeviceId, Grant],
    now: float,
) -> tuple[Runs, tuple[Command, ...]]:
    """Return the attempts brought in line with what is wanted and with the devices."""
    kept: dict[AttemptId, Run] = {}
    commands: list[Command] = []
    for attempt_id, run in runs.items():
        trigger = _demand(run, attempt_id in orders, devices, leases)
        if trigger is RunTrigger.UNWANTED and run.phase is RunPhase.WAITING:
            continue
        if trigger is not None:
            cause = _story(devices.get(run.order.device_id))
            run, todo = change_run(run, trigger, RunFacts(now, cause=cause))
            commands.extend(todo)
        kept[attempt_id] = run
    return kept, tuple(commands)


def failed_of(error: FarmError) -> Failed:
    """Return an error as data."""
    return Failed(error.code, error.message, tuple(sorted(error.details.items())))


def _demand(
    run: Run,
    is_wanted: bool,
    devices: Mapping[DeviceId, Device],
    leases: Mapping[DeviceId, Grant],
) -> RunTrigger | None:
    if run.phase is not RunPhase.WAITING and run.phase not in DEVICE_PHASES:
        return None
    if not is_wanted:
        return RunTrigger.UNWANTED
    device = devices[run.order.device_id]
    serves = device.epoch == run.order.epoch
    if serves and device.use is Use.LEASED:
        return RunTrigger.LEASED if run.phase is RunPhase.WAITING else None
    grant = leases.get(device.device_id)
    comes = grant is not None and grant.epoch == run.order.epoch
    if run.phase is RunPhase.WAITING and (
        (serves and device.use is Use.PREPARING) or (comes and device.last_epoch < run.order.epoch)
    ):
        return None
    return RunTrigger.LEASE_ENDED


def _refusal(order: RunOrder, device: Device | None) -> FarmError:
    what = f"run {order.attempt_id}"
    if device is None:
        return InfrastructureError(
            f"{what}: {order.device_id} is none of this agent's; try elsewhere"
        )
    if order.epoch <= device.last_epoch:
        return Fenced(
            f"{what}: epoch {order.epoch} of {order.device_id} is over ({device.last_epoch} was "
            "served); try again"
        )
    return InfrastructureError(f"{what}: its lease {order.lease_id} is not here; try again")


def _story(device: Device | None) -> str:
    return device.story[-1] if device is not None and device.story else "nothing happened"


def _start(run: Run, facts: RunFacts) -> tuple[Run, tuple[Command, ...]]:
    lease_ends_at = run.deadline if run.deadline is not None else facts.now
    run_by = lease_ends_at - run.order.limit_s - RUN_GRACE_S
    started = replace(
        run,
        phase=RunPhase.FETCHING,
        deadline=min(facts.now + TRANSFER_LIMIT_S, run_by),
        run_by=run_by,
    )
    return started, (StartRun(run.order),)


def _move(run: Run, facts: RunFacts) -> tuple[Run, tuple[Command, ...]]:
    if facts.phase is None or facts.phase not in _MOVES[run.phase]:
        wrong = facts.phase.value if facts.phase else "nowhere"
        raise AgentDefect(
            f"run {run.order.attempt_id}: moved from {run.phase.value} to {wrong}; defect of the agent"
        )
    limits = {
        RunPhase.LOADING: LOAD_LIMIT_S,
        RunPhase.RUNNING: run.order.limit_s + RUN_GRACE_S,
        # The kernel returned, or the farm failed: a worker that does not end is no fault of the kernel.
        RunPhase.ENDING: RUN_GRACE_S,
        RunPhase.STORING: KEEP_LIMIT_S,
    }
    deadline = facts.now + limits[facts.phase]
    if facts.phase is RunPhase.LOADING and run.run_by is not None:
        deadline = min(deadline, run.run_by)
    return replace(run, phase=facts.phase, deadline=deadline), ()


def _kill(run: Run, facts: RunFacts, error: FarmError) -> tuple[Run, tuple[Command, ...]]:
    killing = replace(
        run,
        phase=RunPhase.KILLING,
        deadline=facts.now + KILL_LIMIT_S,
        verdict=run.verdict or failed_of(error),
    )
    return killing, (KillRun(run.order.attempt_id),)


def _kill_unwanted(run: Run, facts: RunFacts) -> tuple[Run, tuple[Command, ...]]:
    error = Cancelled(f"run {run.order.attempt_id}: no longer wanted; submit it again")
    return _kill(run, facts, error)


def _kill_without_lease(run: Run, facts: RunFacts) -> tuple[Run, tuple[Command, ...]]:
    return _kill(run, facts, _lease_ended(run, facts))


def _kill_expired(run: Run, facts: RunFacts) -> tuple[Run, tuple[Command, ...]]:
    what = f"run {run.order.attempt_id}"
    if run.phase is RunPhase.RUNNING:
        return _kill(
            run,
            facts,
            TimeLimit(
                f"{what}: ran past its limit ({run.order.limit_s:g} s) and was killed; raise --limit (limit_s) "
                "or fix the kernel",
                limit_s=f"{run.order.limit_s:g}",
            ),
        )
    error = InfrastructureError(f"{what}: {run.phase.value.lower()} took too long; try again")
    return _kill(run, facts, error)


def _refuse(run: Run, facts: RunFacts) -> tuple[Run, tuple[Command, ...]]:
    return _finish(run, failed_of(_lease_ended(run, facts))), ()


def _end(run: Run, facts: RunFacts) -> tuple[Run, tuple[Command, ...]]:
    if facts.ended is None:
        raise AgentDefect(
            f"run {run.order.attempt_id}: ended without an outcome; defect of the agent"
        )
    told = facts.ended
    ended = replace(
        run,
        log=told.log if told.log is not None else run.log,
        log_is_cut=run.log_is_cut or told.log_is_cut,
        started_at=told.started_at,
        ended_at=told.ended_at,
    )
    return _finish(ended, run.verdict or told.outcome), ()


def _finish(run: Run, outcome: RunResult | Failed) -> Run:
    return replace(run, phase=RunPhase.FINISHED, deadline=None, outcome=outcome)


def _keep(run: Run, facts: RunFacts) -> tuple[Run, tuple[Command, ...]]:
    return run, ()


def _lease_ended(run: Run, facts: RunFacts) -> InfrastructureError:
    return InfrastructureError(
        f"run {run.order.attempt_id}: its lease on {run.order.device_id} ended ({facts.cause}); "
        "try again"
    )


RUN_TABLE: dict[tuple[RunPhase, RunTrigger], RunRule] = {
    (RunPhase.WAITING, RunTrigger.LEASED): _start,
    (RunPhase.WAITING, RunTrigger.LEASE_ENDED): _refuse,
    (RunPhase.WAITING, RunTrigger.EXPIRED): _refuse,
    **{(phase, RunTrigger.MOVED): _move for phase in _MOVES},
    **{(phase, RunTrigger.UNWANTED): _kill_unwanted for phase in DEVICE_PHASES},
    **{(phase, RunTrigger.LEASE_ENDED): _kill_without_lease for phase in DEVICE_PHASES},
    **{(phase, RunTrigger.EXPIRED): _kill_expired for phase in _MOVES},
    (RunPhase.FETCHING, RunTrigger.ENDED): _end,
    (RunPhase.LOADING, RunTrigger.ENDED): _end,
    (RunPhase.RUNNING, RunTrigger.ENDED): _end,
    (RunPhase.ENDING, RunTrigger.ENDED): _end,
    (RunPhase.STORING, RunTrigger.ENDED): _end,
    (RunPhase.STORING, RunTrigger.EXPIRED): _kill_expired,
    # It was killed in the moment that it went on; its end is on the way.
    (RunPhase.KILLING, RunTrigger.MOVED): _keep,
    (RunPhase.KILLING, RunTrigger.EXPIRED): _kill_expired,
    (RunPhase.KILLING, RunTrigger.ENDED): _end,
}
