"""The recipe for sums of products in general: convolutions, batched and transposed matrix products.

Owns: which iterators become the lanes and rows of a register tile, that recipe, its knobs. Does not own: plain products
of large matrices, whose panels must also stay in the caches (`product`).
"""

from __future__ import annotations

from dataclasses import dataclass

from farm.errors import ScheduleError
from farm.ir.expr import Binary, BinaryOp, Cast, Expr, Load, Var
from farm.ops.schedules.knobs import Choice, Knobs, divisors, values
from farm.ops.schedules.machine import Machine
from farm.schedule import LoopRV, Schedule
from farm.schedule.block import Leaf, variables

MOST_ROWS = 13
MOST_VECTORS = 4
TAPS = 9  # steps of the sums that are unrolled: a 3 x 3 filter
LATENCY = 4.0  # cycles from one fused multiplication and addition to the next on its result; two start in each cycle


@dataclass(frozen=True, slots=True)
class Contraction:
    """A block that adds up products of two buffers' elements.

    Attributes
    ----------
    streamed
        What is loaded once for a row of the tile and broadcast to all lanes.
    packed
        What is loaded once for the lanes and used by all rows.
    lane, row
        The spatial iterators of the tile; the first is an index of `packed` and of nothing else, the second occurs in
        `streamed` only, or is None.
    """

    streamed: Load
    packed: Load
    lane: Var
    row: Var | None


def factors(leaf: Leaf) -> tuple[Load, Load] | None:
    """Return the two elements that a block multiplies and adds up; None if it does something else."""
    if leaf.reduction is None or leaf.reduction.op is not BinaryOp.ADD:
        return None
    match leaf.value:
        case Binary(BinaryOp.MUL, a, b):
            sides = [_uncast(a), _uncast(b)]
            loads = [each for each in sides if isinstance(each, Load)]
            if len(loads) == 2 and loads[0].buffer.name != loads[1].buffer.name:
                return loads[0], loads[1]
    return None


def contraction_of(leaf: Leaf) -> Contraction | None:
    """Return how a block can be tiled, preferring lanes and rows that are stored next to each other."""
    pair = factors(leaf)
    if pair is None:
        return None
    spatial = [each.var for each in leaf.iters if not each.reduce]
    if list(leaf.indices) != spatial:
        return None
    for lane in reversed(spatial):
        for streamed, packed in (pair, pair[::-1]):
            inside = [variables_of(packed), variables_of(streamed)]
            at_once = [index for index in packed.indices if lane in set(variables(index))]
            if at_once == [lane] and lane not in inside[1]:
                rows = [v for v in reversed(spatial) if v in inside[1] and v not in inside[0]]
                return Contraction(streamed, packed, lane, rows[0] if rows else None)
    return None


def variables_of(load: Load) -> set[Var]:
    """Return the iterators that an element depends on."""
    return {var for index in load.indices for var in variables(index)}


def contraction_knobs(leaf: Leaf, machine: Machine) -> Knobs:
    """Return the choices: ``rows`` x ``columns`` of a register tile, which divide, and up to how many steps of the
    innermost sums are unrolled (``taps``).

    Raises
    ------
    ScheduleError
        The block is no contraction, or its extents divide into no tile.
    """  # noqa: D205 - the sentence needs the room
    found = contraction_of(leaf)
    if found is None:
        raise ScheduleError(
            f"tiles of {leaf.name}: it is no sum of products with lanes of their own"
        )
    extents = {each.var: each.extent for each in leaf.iters}
    lanes = machine.lanes(leaf.buffer.dtype.value_bytes)
    high = extents[found.row] if found.row is not None else 1
    wide = extents[found.lane]
    rows, columns = tile_of(machine, lanes, high, wide)
    widths = divisors(wide, max(2, lanes // 2), MOST_VECTORS * lanes)
    vectors = f"((columns + {lanes - 1}) // {lanes})"
    return Knobs(
        {
            "rows": values(divisors(high, most=MOST_ROWS), rows),
            "columns": values(widths, columns),
            "taps": (1, 3, TAPS, 25),
        },
        (f"(rows + 1) * {vectors} < {machine.registers}",),
        {"rows": rows, "columns": columns, "taps": TAPS},
    )


def schedule_contraction(sch: Schedule, block: str, choice: Choice) -> None:
    """Keep a tile of results in registers: `lane` in vectors, `row` unrolled, all sums inside.

    Raises
    ------
    ScheduleError
        The block is no contraction, or a step does not fit.
    """
    leaf = sch.block(block)
    found = contraction_of(leaf)
    if found is None:
        raise ScheduleError(f"tiles of {block}: it is no sum of products with lanes of their own")
    extents = {each.var: each.extent for each in leaf.iters}
    rows, columns = choice["rows"], choice["columns"]
    sch.fast_math(contract=True)
    _pack(sch, block, leaf, found, columns)
    result = sch.cache_write(block, 0, "register")
    spatial = [each.var for each in leaf.iters if not each.reduce]
    others = [var for var in spatial if var not in (found.lane, found.row)]
    order = [*others, *([] if found.row is None else [found.row]), found.lane]
    if order != spatial:
        names = [f"d{number}" for number in range(len(spatial))]
        new = ", ".join(names[spatial.index(var)] for var in order)
        sch.transform_layout(block, ("write", 0), f"lambda {', '.join(names)}: ({new})")
    loops = dict(zip((each.var for each in leaf.iters), sch.get_loops(block), strict=True))
    panel, lane = sch.split(loops[found.lane], [None, columns])
    inner: list[LoopRV] = []
    outer = [loops[var] for var in others if var in variables_of(found.packed)]
    outer += [panel, *(loops[var] for var in others if var not in variables_of(found.packed))]
    if found.row is not None:
        top, row = sch.split(loops[found.row], [None, rows])
        outer.append(top)
        inner.append(row)
    sums = [loops[each.var] for each in leaf.iters if each.reduce]
    sch.reorder(*outer, *sums, *inner, lane)
    sch.reverse_compute_at(result, outer[-1])
    start = sch.decompose_reduction(block, sums[0])
    _registers(sch, result, len(outer), -2 if rows > 1 and _row_is_last(spatial, found) else -1)
    _registers(sch, start, len(outer), -1)
    for loop in inner:
        sch.unroll(loop)
    sch.vectorize(lane)
    counts = [extents[each.var] for each in leaf.iters if each.reduce]
    _unroll_taps(sch, sums, counts, choice["taps"])


def tile_of(machine: Machine, lanes: int, rows: int, columns: int) -> tuple[int, int]:
    """Return how many rows and columns of a tile keep the multipliers busiest, among those that divide.

    Raises
    ------
    ScheduleError
        None is worth it.

    Examples
    --------
    >>> tile_of(Machine(32, 16), 8, 56, 64)
    (4, 16)
    >>> tile_of(Machine(32, 16), 8, 13, 8)
    (13, 8)
    """
    best, most = None, 0.0
    for width in range(min(columns, 2 * lanes), max(2, lanes // 2) - 1, -1):
        vectors = -(-width // lanes)
        limit = min((machine.registers - vectors - 1) // vectors, MOST_ROWS, rows)
        for height in range(limit, 0, -1):
            if columns % width or rows % height:
                continue
            cycles = max(LATENCY, height * vectors / 2, (height + vectors) / 2)
            if height * width / cycles > most:
                best, most = (height, width), height * width / cycles
    if best is None:
        raise ScheduleError(f"tiles of {rows} x {columns}: no divisors near {lanes} lanes")
    return best


def _pack(sch: Schedule, block: str, leaf: Leaf, found: Contraction, columns: int) -> None:
    """Lay out one operand so that the lanes of a tile are neighbours, and its sums' steps follow each other."""
    buffers = list(dict.fromkeys(load.buffer for load in leaf.reads()))
    copy = sch.cache_read(block, buffers.index(found.packed.buffer))
    names = [f"d{axis}" for axis in range(len(found.packed.indices))]
    lane = names[found.packed.indices.index(found.lane)]
    rest = "".join(f"{name}, " for name in names if name != lane)
    layout = f"lambda {', '.join(names)}: ({lane} // {columns}, {rest}{lane} % {columns})"
    sch.transform_layout(copy, ("write", 0), layout)
    sch.vectorize(sch.get_loops(copy)[-1])


def _unroll_taps(sch: Schedule, sums: list[LoopRV], extents: list[int], most: int) -> None:
    """Unroll the innermost sums, but for one loop at least, while that leaves little code."""
    steps = 1
    for loop, extent in list(zip(sums, extents, strict=True))[:0:-1]:
        steps *= extent
        if steps > most:
            break
        sch.unroll(loop)


def _row_is_last(spatial: list[Var], found: Contraction) -> bool:
    return found.row is not None and spatial.index(found.row) > spatial.index(found.lane)


def _registers(sch: Schedule, copy: str, around: int, lane: int) -> None:
    """Vectorize one loop of a block over a tile, and unroll the others."""
    loops = sch.get_loops(copy)[around:]
    if not loops:
        return
    wide = loops[lane] if len(loops) >= -lane else loops[-1]
    for loop in loops:
        if loop is wide:
            sch.vectorize(loop)
        else:
            sch.unroll(loop)


def _uncast(expr: Expr) -> Expr:
    return expr.value if isinstance(expr, Cast) else expr
