"""Recipes for everything that goes over memory once: element-wise stages, and reductions of rows.

Owns: these recipes and their knobs.
"""

from __future__ import annotations

from farm.errors import ScheduleError
from farm.ir.expr import Expr, Select, walk
from farm.ops.schedules.knobs import Choice, Knobs, divisors, values
from farm.ops.schedules.machine import Machine
from farm.ops.schedules.traffic import is_streamed
from farm.schedule import Schedule
from farm.schedule.block import Leaf

UNROLL = 4  # vectors that are in flight at once
MOST_UNROLL = 16
WHOLE = 1024  # lanes that one loop may have


def elementwise_knobs(leaf: Leaf, machine: Machine) -> Knobs:
    """Return the choices: how many elements are computed at once (``width``); those left over get a loop."""
    extent = leaf.iters[-1].extent if leaf.iters else 1
    size_bytes = leaf.buffer.dtype.value_bytes
    lanes = machine.lanes(size_bytes)
    wide = lanes * UNROLL
    width = extent if extent <= 2 * wide else wide if extent % wide == 0 else lanes
    multiples = (lanes << shift for shift in range(MOST_UNROLL.bit_length()))
    whole = [extent] if 1 < extent <= min(WHOLE, 4 * wide) else []
    found = [each for each in multiples if 1 < each <= extent]
    if _is_guarded(leaf.value):  # left-over elements may have guards that are never true
        found = [each for each in found if extent % each == 0]
    return Knobs({"width": values(found, width, *whole)}, (), {"width": width})


def schedule_elementwise(sch: Schedule, block: str, extent: int, choice: Choice) -> None:
    """Vectorize the innermost loop of a block without a reduction.

    Raises
    ------
    ScheduleError
        Its iterations depend on each other.
    """
    loops = sch.get_loops(block)
    if not loops or extent < 2:
        return
    width = choice["width"]
    if width == extent:
        sch.vectorize(loops[-1])
        return
    parts = sch.split(loops[-1], [None, width], tail="peel")
    sch.vectorize(parts[1])


def _is_guarded(expr: Expr) -> bool:
    return any(isinstance(each, Select) for each in walk(expr))


def row_reduction_knobs(machine: Machine, extent: int, size_bytes: int) -> Knobs:
    """Return the choices: how many sums of a row go on at once (``width``), which divides the row.

    Raises
    ------
    ScheduleError
        The extent is no multiple of the lanes.
    """
    lanes = machine.lanes(size_bytes)
    wide = lanes * UNROLL
    if extent % wide:
        raise ScheduleError(f"row reduction: extent {extent} is no multiple of {wide}")
    found = values(divisors(extent // lanes, most=MOST_UNROLL), UNROLL)
    return Knobs({"width": tuple(lanes * each for each in found)}, (), {"width": wide})


def schedule_row_reduction(sch: Schedule, block: str, choice: Choice) -> None:
    """Reduce the innermost loop in the lanes of vectors, then over the lanes.

    Raises
    ------
    ScheduleError
        A step does not fit.
    """
    lanes = choice["width"]
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
    if not is_streamed(sch.block(last).buffer):
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
