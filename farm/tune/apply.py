"""Using what was recorded: a function with the best schedule that is known of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from farm.ir import Function
from farm.schedule import Trace
from farm.target import Target
from farm.tune.records.record import Workload

if TYPE_CHECKING:
    from farm.tune.records.database import Records


def apply_best(records: Records, function: Function, target: Target) -> Function:
    """Return a function with the schedule of the decision that stands for a target; as it is if nothing is known.

    Raises
    ------
    ScheduleError
        The schedule that was recorded does not work any more.
    """
    workload = Workload.of(function)
    winner = records.best(workload.id, str(target))
    if winner is None or not winner.trace:
        return function
    scheduled = Trace.from_json(winner.trace).apply(workload.function).function
    return replace(scheduled, name=function.name, target=function.target)
