"""The recipe for matrix products: packed panels, register tiles, blocks that stay in the caches.

Owns: that recipe and its knobs. Notes: the loops of Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication" (2008), with the panels of one operand packed.
"""

from __future__ import annotations

from dataclasses import dataclass

from farm.errors import ScheduleError
from farm.ops.schedules.knobs import Choice, Knobs, divisors, values
from farm.ops.schedules.machine import Machine
from farm.schedule import LoopRV, Schedule

DEPTH = 512  # rows of a panel that stay in the first cache: 32 KiB of float32
BLOCK = 28  # tiles of rows that stay in the second
MOST_ROWS = 14
MOST_VECTORS = 4
GROUPS = (1, 2, 4, 7, 14, 28, 56, 112)
UNROLLS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Product:
    """``c[i, j] += a[i, k] * b[k, j]`` in loops i, j, k.

    Attributes
    ----------
    block
        Its name.
    m, n, depth
        Extents of the three loops.
    size_bytes
        Of an element of the result.
    transposed
        Whether the second operand is ``b[j, k]``.
    streamed_transposed
        Whether the first is ``a[k, i]``.
    """

    block: str
    m: int
    n: int
    depth: int
    size_bytes: int
    transposed: bool = False
    streamed_transposed: bool = False


def product_knobs(of: Product, machine: Machine) -> Knobs:
    """Return the choices: ``rows`` x ``columns`` of a register tile, ``depth`` of a panel, ``group`` tiles of rows that
    stay in a cache, steps of the sum that are unrolled, and whether the first operand is packed, too.

    All but a tile of registers divide; rows that are left over get loops of their own.

    Raises
    ------
    ScheduleError
        It is one column, which no vector is made of.
    """  # noqa: D205 - the sentence needs the room
    if of.n < 2:
        raise ScheduleError(f"panels of {of.block}: it has one column")
    lanes = machine.lanes(of.size_bytes)
    rows, columns = _tile(of, machine)
    depth = DEPTH if of.depth > DEPTH and of.depth % DEPTH == 0 else of.depth
    group = min(BLOCK, max(1, of.m // rows))
    widths = [lanes * count for count in range(1, MOST_VECTORS + 1)]
    return Knobs(
        {
            "rows": values(range(1, min(of.m, MOST_ROWS) + 1), rows),
            "columns": values((w for w in widths if of.n % w == 0), columns),
            "depth": values(divisors(of.depth, least=64), depth, of.depth),
            "group": values((each for each in GROUPS if each <= of.m), group),
            "unroll": values(each for each in UNROLLS if of.depth % each == 0),
            "pack": (0, 1),
        },
        (
            f"(rows + 1) * (columns // {lanes}) < {machine.registers}",
            f"group == 1 or group <= {of.m} // rows",
            "depth % unroll == 0",
            f"pack == 0 or {of.m} % rows == 0",
        ),
        {
            "rows": rows,
            "columns": columns,
            "depth": depth,
            "group": group,
            "unroll": 1,
            "pack": 0,
        },
    )


def schedule_product(sch: Schedule, of: Product, choice: Choice) -> None:
    """Schedule a product.

    Raises
    ------
    ScheduleError
        A step does not fit this function.
    """
    rows, columns, depth = choice["rows"], choice["columns"], choice["depth"]
    sch.fast_math(contract=True)
    packed = sch.cache_read(of.block, 1)
    given = "j, k" if of.transposed else "k, j"
    layout = f"lambda {given}: (j // {columns}, k, j % {columns})"
    sch.transform_layout(packed, ("write", 0), layout)
    sch.vectorize(sch.get_loops(packed)[-1])
    if choice["pack"]:
        given = "k, i" if of.streamed_transposed else "i, k"
        copy = sch.cache_read(of.block, 0)
        sch.transform_layout(copy, ("write", 0), f"lambda {given}: (i // {rows}, k, i % {rows})")
    i, j, k = sch.get_loops(of.block)
    sch.split(j, [None, columns])
    if depth < of.depth:
        sch.split(k, [None, depth])
    if of.m % rows:
        sch.split(i, [None, rows], tail="peel")
        _tiles(sch, f"{of.block}_tail", 0, None, choice["unroll"])
        _tiles(sch, of.block, rows, choice["group"], choice["unroll"])
    else:
        sch.split(i, [None, rows])
        _tiles(sch, of.block, rows, choice["group"], choice["unroll"])


def _tile(of: Product, machine: Machine) -> tuple[int, int]:
    """Return rows and columns of a register tile: two vectors wide if they divide, as many rows as fit."""
    lanes = machine.lanes(of.size_bytes)
    columns = 2 * lanes if of.n % (2 * lanes) == 0 else lanes
    vectors = columns // lanes
    rows = (machine.registers - vectors - 1) // vectors
    rows = 6 if rows > 6 and machine.registers == 16 else min(rows, 8)
    return min(rows, of.m), columns


def _tiles(sch: Schedule, block: str, rows: int, group: int | None, unroll: int) -> None:
    """Keep a tile of the result in registers while the sum over one part of k goes on."""
    loops = sch.get_loops(block)
    i1 = loops[1] if rows else loops[0]
    i0 = loops[0] if rows else None
    j0, j1 = (loops[2], loops[3]) if rows else (loops[1], loops[2])
    ks = loops[4:] if rows else loops[3:]
    outer_k, sums = ks[:-1], [ks[-1]]
    order: list[LoopRV] = [*outer_k]
    at = j0
    if i0 is not None and group is not None:
        ib, io = sch.split(i0, [None, group])
        order += [ib, j0, io]
        at = io
    else:
        order.append(j0)
    if unroll > 1:
        sums = sch.split(sums[0], [None, unroll])
    sch.reorder(*order, *sums, i1, j1)
    start = sch.decompose_reduction(block, order[0])
    sch.vectorize(sch.get_loops(start)[-1])
    first, last = sch.cache_inplace(block, at, "register")
    for copy in (first, last):
        *others, lane = [x for x in sch.get_loops(copy) if str(x).startswith("ax")]
        sch.vectorize(lane)
        for loop in others:
            sch.unroll(loop)
    for loop in sums[1:]:
        sch.unroll(loop)
    sch.unroll(i1)
    sch.vectorize(j1)
