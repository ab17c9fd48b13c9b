"""The recipe for sums whose lanes are neighbours in the result's last dimension: depthwise and grouped convolutions.

Owns: that recipe and its knobs. Does not own: tiles in which one operand is packed (`contraction`).
"""

from __future__ import annotations

import math

from farm.errors import ScheduleError
from farm.ir.affine import affine
from farm.ir.expr import Expr, Load, Var
from farm.ops.schedules.contraction import factors
from farm.ops.schedules.knobs import Choice, Knobs, divisors, values
from farm.ops.schedules.machine import Machine
from farm.schedule import Schedule
from farm.schedule.block import Leaf, variables

VECTORS = 8  # of results that are in registers at once
MOST_VECTORS = 12
TAPS = 25  # sums of up to so many steps are unrolled
MOST_TAPS = 49
STRIDE = 4
STAGE_BYTES = 64 << 10  # of an operand that is made for one iteration of the outer loops


def window_knobs(leaf: Leaf, machine: Machine) -> Knobs:
    """Return the choices: results that are in registers at once (``width``, which divides the row), and up to how
    many steps of the sums are unrolled (``taps``).

    Raises
    ------
    ScheduleError
        The block is no such sum, or its rows have no divisor that fits.
    """  # noqa: D205 - the sentence needs the room
    spatial = [each for each in leaf.iters if not each.reduce]
    pair = factors(leaf)
    if pair is None or not spatial or list(leaf.indices) != [each.var for each in spatial]:
        raise ScheduleError(f"window of {leaf.name}: it is no sum of products")
    lane = spatial[-1]
    if not all(_is_near(load, lane.var, leaf) for load in pair):
        raise ScheduleError(f"window of {leaf.name}: neighbours do not read neighbours")
    lanes = machine.lanes(leaf.buffer.dtype.value_bytes)
    width = _width(lane.extent, lanes)
    steps = math.prod(each.extent for each in leaf.iters if each.reduce)
    return Knobs(
        {
            "width": values(divisors(lane.extent, 2, MOST_VECTORS * lanes), width),
            "taps": values({1, TAPS, *([steps] if steps <= MOST_TAPS else [])}),
        },
        (),
        {"width": width, "taps": TAPS},
    )


def schedule_window(sch: Schedule, block: str, choice: Choice) -> None:
    """Keep part of a row of results in registers while the sums of all its elements go on.

    Raises
    ------
    ScheduleError
        A step does not fit.
    """
    leaf = sch.block(block)
    spatial = [each for each in leaf.iters if not each.reduce]
    width = choice["width"]
    sch.fast_math(contract=True)
    result = sch.cache_write(block, 0, "register")
    loops = sch.get_loops(block)
    outer = [*loops[: len(spatial) - 1]]
    sums = loops[len(spatial) :]
    top, inner = sch.split(loops[len(spatial) - 1], [None, width])
    sch.reorder(*outer, top, *sums, inner)
    sch.reverse_compute_at(result, top)
    start = sch.decompose_reduction(block, sums[0])
    for copy in (start, result):
        sch.vectorize(sch.get_loops(copy)[-1])
    if math.prod(each.extent for each in leaf.iters if each.reduce) <= choice["taps"]:
        for loop in sums:
            sch.unroll(loop)
    sch.vectorize(inner)


def schedule_stage(sch: Schedule, stage: str, block: str) -> None:
    """Make an operand (a padded input) where it is used, one channel at a time.

    Raises
    ------
    ScheduleError
        It is used by several channels, or a step does not fit.
    """
    own, user = sch.block(stage), sch.block(block)
    shared = next((n for n, each in enumerate(user.iters) if not _is_index(user, own, n)), 0)
    if not 0 < shared < len(own.iters):
        raise ScheduleError(f"{stage} at {block}: it has no channels of its own")
    part = math.prod(each.extent for each in own.iters[shared:]) * own.buffer.dtype.size_bytes
    if part > STAGE_BYTES:
        raise ScheduleError(f"{stage} at {block}: {part} bytes for each; use at most {STAGE_BYTES}")
    sch.compute_at(stage, sch.get_loops(block)[shared - 1])
    sch.set_scope(stage, 0, "stack")


def _is_index(user: Leaf, own: Leaf, axis: int) -> bool:
    """Tell whether dimension `axis` of a buffer is indexed by the iterator `axis` of its user wherever it is read."""
    loads = [load for load in user.reads() if load.buffer.name == own.buffer.name]
    extents = {each.var: each.extent for each in user.iters}
    wanted = affine(user.iters[axis].var, extents)
    return bool(loads) and all(
        axis < len(load.indices) and affine(load.indices[axis], extents) == wanted for load in loads
    )


def _is_near(load: Load, lane: Var, leaf: Leaf) -> bool:
    """Tell whether an element moves by a short step in its last dimension with the lanes, or not at all."""
    if not load.indices:
        return True
    *others, last = load.indices
    if any(lane in set(variables(index)) for index in others):
        return False
    return lane not in set(variables(last)) or 0 < _step(last, lane, leaf) <= STRIDE


def _step(index: Expr, lane: Var, leaf: Leaf) -> int:
    form = affine(index, {each.var: each.extent for each in leaf.iters})
    steps = [(d, k) for d, k in form.terms if d.var == lane] if form is not None else []
    if len(steps) != 1 or steps[0][0].lower != 1 or not steps[0][0].is_top:
        return 0
    return steps[0][1]


def _width(extent: int, lanes: int) -> int:
    """Return how many results are in registers at once: as many vectors as divide the row."""
    if extent <= VECTORS * lanes:
        return extent
    for width in range(VECTORS * lanes, 1, -1):
        if extent % width == 0:
            return width
    raise ScheduleError(f"window: a row of {extent} has no divisor up to {VECTORS * lanes}")
