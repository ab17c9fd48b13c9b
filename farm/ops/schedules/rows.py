"""Recipes for everything that goes over memory once: element-wise stages, and reductions of rows.

Owns: these recipes.
"""

from __future__ import annotations

from farm.errors import ScheduleError
from farm.ops.schedules.machine import Machine
from farm.schedule import Schedule

UNROLL = 4  # vectors that are in flight at once


def schedule_elementwise(
    sch: Schedule, block: str, machine: Machine, extent: int, size_bytes: int
) -> None:
    """Vectorize the innermost loop of a block without a reduction.

    Raises
    ------
    ScheduleError
        Its iterations depend on each other.
    """
    lanes = machine.lanes(size_bytes)
    loops = sch.get_loops(block)
    if not loops or extent < 2:
        return
    wide = lanes * UNROLL
    if extent <= wide:
        sch.vectorize(loops[-1])
        return
    width = wide if extent % wide == 0 else lanes
    parts = sch.split(loops[-1], [None, width], tail="peel")
    sch.vectorize(parts[1])


def schedule_row_reduction(
    sch: Schedule, block: str, machine: Machine, extent: int, size_bytes: int
) -> None:
    """Reduce the innermost loop in the lanes of vectors, then over the lanes.

    Raises
    ------
    ScheduleError
        The extent is no multiple of the lanes, or a step does not fit.
    """
    lanes = machine.lanes(size_bytes) * UNROLL
    if extent % lanes:
        raise ScheduleError(f"row reduction of {block}: extent {extent} is no multiple of {lanes}")
    sch.fast_math(contract=True, reassociate=True)
    loops = sch.get_loops(block)
    outer, lane = sch.split(loops[-1], [None, lanes])
    partial = sch.rfactor(lane, len(loops) - 1)
    if len(loops) > 1:
        sch.compute_at(partial, sch.get_loops(block)[len(loops) - 2])
        sch.set_scope(partial, 0, "register")
    else:
        sch.reorder(outer, lane)
    sch.vectorize(sch.get_loops(partial)[-1])
