"""What to tell of a seed that failed: the smallest plan that still fails in the same way, and its history.

Owns: living through one plan, making a failing one small, the text. Does not own: which seeds run.

Invariant: the story is of a run that failed with the same invariant as the seed.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simulation.farm import Farm
from simulation.plan import plan_of
from simulation.world import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulation.plan import Plan

SHRINK_RUNS = 250
STORY_LINES = 60


@dataclass(frozen=True, slots=True)
class Ending:
    """How one run ended. `name` is empty if every invariant held."""

    name: str = ""
    message: str = ""
    trace: tuple[str, ...] = ()
    events: int = 0


def live(plan: Plan, *, trace: bool = False) -> Ending:
    """Live through a plan."""
    farm = Farm(plan, trace=trace)
    name = message = ""
    try:
        farm.run()
    except Violation as error:
        name, message = error.name, str(error)
    except Exception as error:  # noqa: BLE001 - a defect of the code under test is a finding as well
        name, message = type(error).__name__, f"{type(error).__name__}: {error}"
    return Ending(name, message, tuple(farm.world.trace or ()), farm.world.events)


def run_batch(batch: tuple[int, int]) -> tuple[int, float, list[int]]:
    """Run some seeds (the first, how many); return events, CPU time in seconds, and which failed."""
    first, count = batch
    gc.disable()  # a farm is a few thousand objects; what is in cycles goes now and then,
    gc.freeze()  # without a look at all the modules
    started = time.process_time()
    events = 0
    failed = []
    for seed in range(first, first + count):
        ending = live(plan_of(seed))
        events += ending.events
        if ending.name:
            failed.append(seed)
        if seed % 25 == 0:
            gc.collect()
    gc.unfreeze()
    gc.enable()
    return events, time.process_time() - started, failed


def smallest(plan: Plan, name: str) -> Plan:
    """Leave out whatever is not needed for the plan to fail with the invariant `name`."""
    runs = 0
    shrunk = True
    while shrunk and runs < SHRINK_RUNS:
        shrunk = False
        for smaller in _smaller(plan):
            runs += 1
            if live(smaller).name == name:
                plan, shrunk = smaller, True
                break
            if runs >= SHRINK_RUNS:
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    for field in PARTS:
        items = getattr(plan, field)
        for index in range(len(items)):
            yield replace(plan, **{field: items[:index] + items[index + 1 :]})
    if plan.nasty_kills:
        yield replace(plan, nasty_kills=0.0)
    if plan.is_flaky:
        yield replace(plan, is_flaky=False)


PARTS = ("faults", "builds", "leases", "jobs")


def story_of(seed: int, *, whole: bool = False) -> str:
    """Return the text about a seed: what failed, the smallest plan that fails so, its history, how to see it again."""
    plan = plan_of(seed)
    ending = live(plan)
    if not ending.name:
        lines = live(plan, trace=True).trace if whole else ()
        return "\n".join([*lines, f"seed {seed}: every invariant held ({ending.events} events)"])
    small = smallest(plan, ending.name)
    told = live(small, trace=True)
    history = told.trace if whole else told.trace[-STORY_LINES:]
    return "\n".join(
        [
            f"seed {seed}: {ending.message}",
            f"smallest plan that fails so: {told.message}",
            *(f"  agent {it}" for it in small.agents),
            *(f"  client {it}" for field in PARTS[1:] for it in getattr(small, field)),
            *(f"  fault {it}" for it in small.faults),
            f"history (the last {len(history)} lines of {len(told.trace)}):",
            *history,
            f"again: make simulate SEED={seed} TRACE=1",
        ]
    )
