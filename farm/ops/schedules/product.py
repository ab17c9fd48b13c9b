"""The recipe for matrix products: packed panels, register tiles, blocks that stay in the caches.

Owns: that recipe and its knobs. Notes: the loops of Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication" (2008), with the panels of one operand packed. Narrow integers are packed so that a CPU's sums of two or
four products at once find their factors next to each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from farm.errors import ScheduleError
from farm.ir.dtype import DType
from farm.ops.schedules.knobs import Choice, Knobs, divisors, values
from farm.ops.schedules.machine import Machine
from farm.schedule import BlockRV, LoopRV, Schedule

DEPTH = 512  # rows of a panel that stay in the first cache: 32 KiB of float32
BLOCK = 7  # tiles of rows that stay in the second, with room for the next panels
STRIP = 16  # rows of an operand that are packed at once: each panel gets lines that follow each other, from few pages
MOST_ROWS = 14
MOST_VECTORS = 4
COPIED = 32  # elements of a copied row that are converted at once
GROUPS = (1, 2, 4, 7, 14, 28, 56, 112)
UNROLLS = (1, 2, 4, 8)
_NARROW = (DType.INT8, DType.UINT8, DType.INT16)


@dataclass(frozen=True, slots=True)
class Product:
    """``c[i, j] += a[i, k] * b[k, j]`` in loops i, j, k.

    Attributes
    ----------
    block
        Its name.
    m, n, depth
        Extents of the three loops.
    types
        Element types of both operands.
    result
        That of the sums.
    transposed
        Whether the second operand is ``b[j, k]``.
    streamed_transposed
        Whether the first is ``a[k, i]``.
    """

    block: str
    m: int
    n: int
    depth: int
    types: tuple[DType, DType]
    result: DType
    transposed: bool = False
    streamed_transposed: bool = False

    @property
    def size_bytes(self) -> int:
        """Return the size of an element of the result, as it is computed with."""
        return self.result.value_bytes

    def together(self, machine: Machine) -> int:
        """Return how many steps of the sums the machine takes at once."""
        narrow = all(each in _NARROW for each in self.types)
        if self.result is not DType.INT32 or not narrow:
            return 1
        if machine.dots == "pairs":
            return 2 if self.depth % 2 == 0 else 1
        bytes_ = len(set(self.types)) == 1 and self.types[0].bits == 8
        return 4 if machine.dots == "quarters" and bytes_ and self.depth % 4 == 0 else 1

    def multiplied(self, together: int) -> DType | None:
        """Return the type that the operands are converted to once, when they are packed; None if they are not."""
        if together == 2:
            return DType.INT16
        halves = any(each.is_half for each in self.types)
        return DType.FLOAT32 if halves and self.result is DType.FLOAT32 else None


def product_knobs(of: Product, machine: Machine) -> Knobs:
    """Return the choices: ``rows`` x ``columns`` of a register tile, ``depth`` of a panel, ``group`` tiles of rows that
    stay in a cache, steps of the sum that are unrolled, whether the first operand is packed, too, and steps of the sum
    that are taken ``together`` by an instruction.

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
    together = of.together(machine)
    widths = [lanes * count for count in range(1, MOST_VECTORS + 1)]
    return Knobs(
        {
            "rows": values(range(1, min(of.m, MOST_ROWS) + 1), rows),
            "columns": values((w for w in widths if of.n % w == 0), columns),
            "depth": values(divisors(of.depth, least=64), depth, of.depth),
            "group": values((each for each in GROUPS if each <= of.m), group),
            "unroll": values(each for each in UNROLLS if of.depth % each == 0),
            "pack": (0, 1),
            **({"together": (1, together)} if together > 1 else {}),
        },
        (
            f"(rows + 1) * (columns // {lanes}) < {machine.registers}",
            f"group == 1 or group <= {of.m} // rows",
            "depth % unroll == 0",
            f"pack == 0 or {of.m} % rows == 0",
            *(["together == 1 or unroll + pack == 1", "depth % together == 0"] * (together > 1)),
        ),
        {
            "rows": rows,
            "columns": columns,
            "depth": depth,
            "group": group,
            "unroll": 1,
            "pack": 0,
            **({"together": together} if together > 1 else {}),
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
    together = choice.get("together", 1)
    _panels(sch, of, columns, together)
    if choice["pack"]:
        given = "k, i" if of.streamed_transposed else "i, k"
        copy = sch.cache_read(of.block, 0)
        sch.transform_layout(copy, ("write", 0), f"lambda {given}: (i // {rows}, k, i % {rows})")
        _convert(sch, of, copy, together)
    elif of.multiplied(together) is not None or (together > 1 and of.streamed_transposed):
        _rows(sch, of, together)
    i, j, k = sch.get_loops(of.block)
    sch.split(j, [None, columns])
    steps = [depth // together] if depth < of.depth else []
    steps += [together] if together > 1 else []
    if steps:
        sch.split(k, [None, *steps])
    if of.m % rows:
        sch.split(i, [None, rows], tail="peel")
        _tiles(sch, f"{of.block}_tail", 0, None, choice)
        _tiles(sch, of.block, rows, choice["group"], choice)
    else:
        sch.split(i, [None, rows])
        _tiles(sch, of.block, rows, choice["group"], choice)


def _panels(sch: Schedule, of: Product, columns: int, together: int) -> None:
    """Pack the second operand: what a tile's lanes need in one step, or in steps taken at once, lies together."""
    packed = sch.cache_read(of.block, 1)
    given = "j, k" if of.transposed else "k, j"
    layout = f"(j // {columns}, k, j % {columns})"
    if together > 1:
        layout = f"(j // {columns}, k // {together}, j % {columns}, k % {together})"
    sch.transform_layout(packed, ("write", 0), f"lambda {given}: {layout}")
    _convert(sch, of, packed, together)
    panel, *_, before, last = sch.get_loops(packed)
    if together == 1:
        sch.vectorize(last)
        if not of.transposed and of.depth % STRIP == 0:
            strip, row = sch.split(before, [None, STRIP])
            sch.reorder(strip, panel, row)
        return
    sch.reorder(last, before)
    sch.unroll(last)
    sch.vectorize(before)


def _rows(sch: Schedule, of: Product, together: int) -> None:
    """Copy the first operand: in the type that is multiplied, a sum's steps next to each other."""
    copy = sch.cache_read(of.block, 0)
    if of.streamed_transposed:
        sch.transform_layout(copy, ("write", 0), "lambda k, i: (i, k)")
    _convert(sch, of, copy, together)
    if of.depth % COPIED == 0 and not of.streamed_transposed:
        _, lane = sch.split(sch.get_loops(copy)[-1], [None, COPIED])
        sch.vectorize(lane)


def _convert(sch: Schedule, of: Product, copy: BlockRV, together: int) -> None:
    wide = of.multiplied(together)
    if wide is not None:
        sch.set_dtype(copy, 0, str(wide))


def _tile(of: Product, machine: Machine) -> tuple[int, int]:
    """Return rows and columns of a register tile: two vectors wide if they divide, as many rows as fit."""
    lanes = machine.lanes(of.size_bytes)
    columns = 2 * lanes if of.n % (2 * lanes) == 0 else lanes
    vectors = columns // lanes
    rows = (machine.registers - vectors - 1) // vectors
    rows = 6 if rows > 6 and machine.registers == 16 else min(rows, 8)
    return min(rows, of.m), columns


def _tiles(sch: Schedule, block: str, rows: int, group: int | None, choice: Choice) -> None:
    """Keep a tile of the result in registers while the sum over one part of k goes on."""
    loops = sch.get_loops(block)
    i1 = loops[1] if rows else loops[0]
    i0 = loops[0] if rows else None
    j0, j1 = (loops[2], loops[3]) if rows else (loops[1], loops[2])
    ks = loops[4:] if rows else loops[3:]
    ks, inside = (ks[:-1], ks[-1:]) if choice.get("together", 1) > 1 else (ks, [])
    outer_k, sums = ks[:-1], [ks[-1]]
    order: list[LoopRV] = [*outer_k]
    at = j0
    if i0 is not None and group is not None:
        ib, io = sch.split(i0, [None, group])
        order += [ib, j0, io]
        at = io
    else:
        order.append(j0)
    if choice["unroll"] > 1:
        sums = sch.split(sums[0], [None, choice["unroll"]])
    sch.reorder(*order, *sums, i1, j1, *inside)
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
    for loop in inside:
        sch.unroll(loop)
