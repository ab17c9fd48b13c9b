"""How a device's use changes: one transition table.

Owns: the table of (use, trigger) and its rules. Does not own: when a trigger arises
(`farm_agents.state.core`).

    IDLE → PREPARING(e) → LEASED(e) → CLEANING(e) → IDLE

Invariant: a device reaches PREPARING only from IDLE and only with an epoch above every earlier one; it leaves
CLEANING only when its processes are proved gone.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from farm.core.values import replace
from farm_agents.state.messages import Check, Clean, Command, Prepare
from farm_agents.state.model import CLEAN_LIMIT_S, PREPARE_LIMIT_S, Device, Grant, Health, Use


class AgentDefect(RuntimeError):
    """The shell answered what it was not asked; this is a defect of the agent. The message tells the story."""


class Trigger(enum.Enum):
    """What can happen to a device."""

    GRANTED = "GRANTED"
    RENEWED = "RENEWED"
    WITHDRAWN = "WITHDRAWN"
    PREPARED = "PREPARED"
    FAILED = "FAILED"
    CLEANED = "CLEANED"
    EXPIRED = "EXPIRED"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a rule may look at besides the device: the time, the grant, the cause of a failure."""

    now: float
    grant: Grant | None = None
    cause: str = ""


Rule = Callable[[Device, Facts], tuple[Device, tuple[Command, ...]]]


def change(device: Device, trigger: Trigger, facts: Facts) -> tuple[Device, tuple[Command, ...]]:
    """Return the device after `trigger`, and what has to be done.

    Raises
    ------
    AgentDefect
        The table has no rule for the device's use and this trigger.
    """
    rule = TABLE.get((device.use, trigger))
    if rule is None:
        story = "; ".join(device.story) or "nothing happened before"
        raise AgentDefect(
            f"device {device.device_id}: no transition from {device.use.value}({device.epoch}) on "
            f"{trigger.value}; story: {story}"
        )
    changed, commands = rule(device, facts)
    if changed == device and not commands:
        return device, ()
    line = (
        f"{facts.now:.3f} {trigger.value}{f' ({facts.cause})' if facts.cause else ''}: "
        f"{device.use.value}({device.epoch}) -> {changed.use.value}({changed.epoch})"
    )
    return changed.told(line), commands


def _start(device: Device, facts: Facts) -> tuple[Device, tuple[Command, ...]]:
    grant = _grant(facts)
    started = replace(
        device,
        use=Use.PREPARING,
        lease=grant,
        last_epoch=grant.epoch,
        deadline=min(facts.now + PREPARE_LIMIT_S, grant.ends_at),
    )
    return started, (Prepare(grant),)


def _renew_preparing(device: Device, facts: Facts) -> tuple[Device, tuple[Command, ...]]:
    grant = _grant(facts)
    deadline = min(device.deadline or grant.ends_at, grant.ends_at)
    return replace(device, lease=grant, deadline=deadline), ()


def _renew_leased(device: Device, facts: Facts) -> tuple[Device, tuple[Command, ...]]:
    grant = _grant(facts)
    return replace(device, lease=grant, deadline=grant.ends_at), ()


def _serve(device: Device, facts: Facts) -> tuple[Device, tuple[Command, ...]]:
    ends_at = device.lease.ends_at if device.lease else facts.now
    return replace(device, use=Use.LEASED, deadline=ends_at), ()


def _end(device: Device, facts: Facts) -> tuple[Device, tuple[Command, ...]]:
    cleaning = replace(device, use=Use.CLEANING, deadline=facts.now + CLEAN_LIMIT_S)
    return cleaning, (Clean(device.device_id, device.epoch),)


def _give_up_cleaning(device: Device, facts: Facts) -> tuple[Device, tuple[Command, ...]]:
    stuck = replace(
        device,
        deadline=facts.now + CLEAN_LIMIT_S,
        health=Health.BAD,
        health_cause=f"unkillable: processes of epoch {device.epoch} outlived {CLEAN_LIMIT_S:g} s",
        unkillable=True,
    )
    return stuck, (Clean(device.device_id, device.epoch),)


def _rest(device: Device, facts: Facts) -> tuple[Device, tuple[Command, ...]]:
    idle = replace(device, use=Use.IDLE, lease=None, deadline=None)
    if not (device.unkillable or device.suspect):
        return idle, ()
    clean = replace(idle, unkillable=False, suspect=False)
    if device.unkillable:
        clean = replace(clean, health=Health.UNCHECKED, health_cause="")
    elif device.health is Health.GOOD:
        clean = replace(clean, health=Health.CHECKING, health_cause="something crashed on it")
    return clean, (Check(device.device_id),)


def _keep(device: Device, facts: Facts) -> tuple[Device, tuple[Command, ...]]:
    return device, ()


def _grant(facts: Facts) -> Grant:
    if facts.grant is None:
        raise AgentDefect("device: a trigger that needs a grant came without one; pass it")
    return facts.grant


TABLE: dict[tuple[Use, Trigger], Rule] = {
    (Use.IDLE, Trigger.GRANTED): _start,
    (Use.PREPARING, Trigger.RENEWED): _renew_preparing,
    (Use.PREPARING, Trigger.WITHDRAWN): _end,
    (Use.PREPARING, Trigger.PREPARED): _serve,
    (Use.PREPARING, Trigger.FAILED): _end,
    (Use.PREPARING, Trigger.EXPIRED): _end,
    (Use.LEASED, Trigger.RENEWED): _renew_leased,
    (Use.LEASED, Trigger.WITHDRAWN): _end,
    (Use.LEASED, Trigger.FAILED): _end,
    (Use.LEASED, Trigger.EXPIRED): _end,
    # The lease ended while its worker was getting ready: the answer comes late and changes nothing.
    (Use.CLEANING, Trigger.PREPARED): _keep,
    (Use.CLEANING, Trigger.FAILED): _keep,
    (Use.CLEANING, Trigger.CLEANED): _rest,
    (Use.CLEANING, Trigger.EXPIRED): _give_up_cleaning,
}
