"""How build attempts change.

Owns: the phases of an attempt, its slots and its limits. Does not own: compiling (`farm_agents.builder`).

    WAITING → FETCHING → COMPILING → STORING → FINISHED, and from each of the middle three → KILLING

Invariant: at most `slots` attempts are active; a finished one is kept until the tracker drops it; one that is
killed keeps its slot until its processes are gone.
"""

from __future__ import annotations

from collections.abc import Mapping

from farm.core.ids import AttemptId
from farm.core.values import replace
from farm.errors import InfrastructureError, TimeLimit
from farm_agents.state.devices import AgentDefect
from farm_agents.state.messages import BuildEnded, BuildMoved, Command, KillBuild, StartBuild
from farm_agents.state.model import (
    ACTIVE_PHASES,
    KILL_LIMIT_S,
    TRANSFER_LIMIT_S,
    Build,
    BuildOrder,
    BuildPhase,
    Failed,
)

Builds = Mapping[AttemptId, Build]

MOVES = {
    BuildPhase.FETCHING: BuildPhase.COMPILING,
    BuildPhase.COMPILING: BuildPhase.STORING,
}


def move(build: Build, event: BuildMoved, now: float) -> Build:
    """Return the attempt in its next phase, with that phase's deadline; one that is being killed stays so."""
    if build.phase is BuildPhase.KILLING:
        return build
    if MOVES.get(build.phase) is not event.phase:
        raise _invalid(build, f"moved to {event.phase.value}")
    limit_s = build.order.limit_s if event.phase is BuildPhase.COMPILING else TRANSFER_LIMIT_S
    return replace(build, phase=event.phase, deadline=now + limit_s)


def end(build: Build, event: BuildEnded) -> Build:
    """Return the attempt as finished; if a limit had killed it, that is its outcome."""
    if build.phase not in ACTIVE_PHASES:
        raise _invalid(build, "ended")
    return replace(
        build,
        phase=BuildPhase.FINISHED,
        deadline=None,
        outcome=build.verdict or event.outcome,
        seconds=event.seconds,
    )


def expire(build: Build, now: float) -> tuple[Build, tuple[Command, ...]]:
    """Return the attempt after its deadline: it is killed, or killed once more."""
    killing = replace(
        build,
        phase=BuildPhase.KILLING,
        deadline=now + KILL_LIMIT_S,
        verdict=build.verdict if build.phase is BuildPhase.KILLING else _verdict(build),
    )
    return killing, (KillBuild(build.order.attempt_id),)


def reconcile(
    builds: Builds, wanted: Mapping[AttemptId, BuildOrder], slots: int, now: float
) -> tuple[Builds, tuple[Command, ...]]:
    """Return the attempts as the tracker wants them: end what is absent, start what is new and fits the slots."""
    kept: dict[AttemptId, Build] = {}
    commands: list[Command] = []
    for attempt_id, build in builds.items():
        if attempt_id in wanted or build.phase is BuildPhase.KILLING:
            kept[attempt_id] = build
        elif build.phase in ACTIVE_PHASES:
            kept[attempt_id] = replace(build, phase=BuildPhase.KILLING, deadline=now + KILL_LIMIT_S)
            commands.append(KillBuild(attempt_id))
    for attempt_id, order in wanted.items():
        kept.setdefault(attempt_id, Build(order))
    free = slots - sum(build.phase in ACTIVE_PHASES for build in kept.values())
    for attempt_id, build in kept.items():
        if free > 0 and build.phase is BuildPhase.WAITING:
            free -= 1
            kept[attempt_id] = replace(
                build, phase=BuildPhase.FETCHING, deadline=now + TRANSFER_LIMIT_S
            )
            commands.append(StartBuild(build.order))
    return kept, tuple(commands)


def _verdict(build: Build) -> Failed:
    order = build.order
    if build.phase is BuildPhase.COMPILING:
        return Failed(
            TimeLimit.code,
            f"{order.symbol} for {order.target}: the compiler ran past its limit "
            f"({order.limit_s:g} s) and was killed; simplify the function or raise the limit",
        )
    return Failed(
        InfrastructureError.code,
        f"{order.symbol} for {order.target}: {build.phase.value.lower()} took longer than "
        f"{TRANSFER_LIMIT_S:g} s; build again",
    )


def _invalid(build: Build, what: str) -> AgentDefect:
    return AgentDefect(
        f"build {build.order.attempt_id}: {what} in phase {build.phase.value}; "
        f"this is a defect of the agent"
    )
