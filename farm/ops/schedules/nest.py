"""The recipe for loop nests that no other fits: sums outside, lanes inside, left-over lanes in loops of their own.

Owns: that recipe and its knobs.
"""

from __future__ import annotations

from farm.errors import ScheduleError
from farm.ops.schedules.knobs import Choice, Knobs, values
from farm.ops.schedules.machine import Machine
from farm.schedule import Schedule
from farm.schedule.block import Leaf

VECTORS = (1, 2, 4, 8)
LANES = 1024


def nest_knobs(leaf: Leaf, machine: Machine) -> Knobs:
    """Return the choices: lanes at once (``width``; what is left over gets a loop), and how many steps of the
    innermost sum are unrolled (``unroll``).

    Raises
    ------
    ScheduleError
        The block does not reduce, or its last dimension has one element.
    """  # noqa: D205 - the sentence needs the room
    spatial = [each for each in leaf.iters if not each.reduce]
    sums = [each for each in leaf.iters if each.reduce]
    if not spatial or not sums or spatial[-1].extent < 2 or leaf.iters[-len(sums) :] != (*sums,):
        raise ScheduleError(f"nest of {leaf.name}: it has no lanes outside its sums")
    lanes, extent = machine.lanes(leaf.buffer.dtype.value_bytes), spatial[-1].extent
    whole = [extent] if extent <= min(LANES, lanes * VECTORS[-1]) else []
    widths = values((lanes * n for n in VECTORS if 1 < lanes * n < extent), *whole)
    if not widths:
        raise ScheduleError(f"nest of {leaf.name}: {extent} lanes are none")
    unrolls = tuple(each for each in (1, 2, 4) if sums[-1].extent % each == 0)
    return Knobs(
        {"width": widths, "unroll": unrolls}, (), {"width": widths[-1], "unroll": unrolls[0]}
    )


def schedule_nest(sch: Schedule, block: str, choice: Choice) -> None:
    """Vectorize the last dimension of a block, inside its sums.

    Raises
    ------
    ScheduleError
        A step does not fit, or there were others.
    """
    leaf = sch.block(block)
    if len(sch.get_loops(block)) != len(leaf.iters):
        raise ScheduleError(f"nest of {block}: it has a schedule already")
    place = max(n for n, each in enumerate(leaf.iters) if not each.reduce)
    lane, width = sch.get_loops(block)[place], choice["width"]
    if width == sch.extent_of(lane):
        _vectorize(sch, block, place, place, choice["unroll"])
        return
    parts = sch.split(lane, [None, width], tail="peel")
    _vectorize(sch, block, place, place + 1, choice["unroll"])
    if len(parts) == 3:
        _vectorize(sch, f"{block}_tail", place, place, choice["unroll"])


def _vectorize(sch: Schedule, block: str, first: int, lane: int, unroll: int) -> None:
    """Put one loop of a block, by its place, inside its sums, which follow it; loops before `first` stay."""
    loops = sch.get_loops(block)
    sums = loops[lane + 1 :]
    if unroll > 1:
        sums[-1:] = sch.split(sums[-1], [None, unroll])
    sch.reorder(*loops[first:lane], *sums, loops[lane])
    if unroll > 1:
        sch.unroll(sums[-1])
    if sch.extent_of(loops[lane]) > 1:
        sch.vectorize(loops[lane])
