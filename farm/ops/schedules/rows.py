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
    if extent <= 2 * wide:
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
    around = sch.get_loops(block)[:-1]
    if sch.get_loops(partial)[: len(around)] == around:  # they share the loop of rows already
        sch.reorder(outer, lane)
    else:
        sch.compute_at(partial, around[-1])
    sch.set_scope(partial, 0, "register" if around else "global")
    sch.vectorize(sch.get_loops(partial)[-1])
    sch.unroll(sch.get_loops(block)[-1])


def schedule_shared_rows(sch: Schedule, blocks: list[str]) -> None:
    """Compute all stages of a row, the last block's, before the next row: what lies between stays in the cache.

    Raises
    ------
    ScheduleError
        A stage is no row's, or is needed by several rows.
    """
    *stages, last = blocks
    rows = [each.extent for each in sch.block(last).iters[:-1]]
    if not stages or not rows:
        raise ScheduleError(f"rows of {last}: there are no stages before it")
    for name in stages:
        leaf = sch.block(name)
        reduced = [each.reduce for each in leaf.iters]
        if [x.extent for x in leaf.iters][: len(rows)] != rows or any(reduced[: len(rows)]):
            raise ScheduleError(f"rows of {last}: {name} has other rows")
        if len(leaf.iters) > len(rows) + 1:
            raise ScheduleError(f"rows of {last}: {name} does more than one pass over a row")
    row = sch.get_loops(last)[len(rows) - 1]
    for name in reversed(stages):
        sch.compute_at(name, row)
    for name in stages:
        if sum(not each.reduce for each in sch.block(name).iters) == len(rows):
            sch.set_scope(name, 0, "register")  # one element a row
    _overwrite(sch, last, stages)


def _overwrite(sch: Schedule, last: str, stages: list[str]) -> None:
    """Keep the rows that the last stage reads where it stores its own: lines are fetched while something computes."""
    own = {sch.block(name).buffer.name for name in stages}
    buffers = list(dict.fromkeys(load.buffer.name for load in sch.block(last).reads()))
    for number, buffer in enumerate(buffers):
        if buffer in own:
            try:
                sch.store_inplace(last, number)
            except ScheduleError:
                continue
            return
