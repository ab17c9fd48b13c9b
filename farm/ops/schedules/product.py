"""The recipe for matrix products: packed panels, register tiles, blocks that stay in the caches.

Owns: that recipe. Notes: the loops of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
(2008), with the panels of one operand packed.
"""

from __future__ import annotations

from farm.ops.schedules.machine import Machine
from farm.schedule import LoopRV, Schedule

DEPTH = 512  # rows of a panel that stay in the first cache: 32 KiB of float32
BLOCK = 28  # tiles of rows that stay in the second


def schedule_product(
    sch: Schedule,
    block: str,
    machine: Machine,
    sizes: tuple[int, int, int],
    size_bytes: int,
    *,
    transposed: bool = False,
) -> None:
    """Schedule ``c[i, j] += a[i, k] * b[k, j]`` in loops i, j, k.

    Parameters
    ----------
    sizes
        Extents of the three loops.
    transposed
        Whether the second operand is ``b[j, k]``.

    Raises
    ------
    ScheduleError
        A step does not fit this function.
    """
    rows, columns = _tile(machine, sizes, size_bytes)
    m, _, depth = sizes
    sch.fast_math(contract=True)
    packed = sch.cache_read(block, 1)
    given = "j, k" if transposed else "k, j"
    layout = f"lambda {given}: (j // {columns}, k, j % {columns})"
    sch.transform_layout(packed, ("write", 0), layout)
    sch.vectorize(sch.get_loops(packed)[-1])
    i, j, k = sch.get_loops(block)
    sch.split(j, [None, columns])
    if depth > DEPTH and depth % DEPTH == 0:
        sch.split(k, [None, DEPTH])
    if m % rows:
        sch.split(i, [None, rows], tail="peel")
        _tiles(sch, f"{block}_tail", 0, None)
        _tiles(sch, block, rows, BLOCK)
    else:
        sch.split(i, [None, rows])
        _tiles(sch, block, rows, BLOCK)


def _tile(machine: Machine, sizes: tuple[int, int, int], size_bytes: int) -> tuple[int, int]:
    """Return rows and columns of a register tile: two vectors wide if they divide, as many rows as fit."""
    lanes = machine.lanes(size_bytes)
    columns = 2 * lanes if sizes[1] % (2 * lanes) == 0 else lanes
    vectors = columns // lanes
    rows = (machine.registers - vectors - 1) // vectors
    rows = 6 if rows > 6 and machine.registers == 16 else min(rows, 8)
    return min(rows, sizes[0]), columns


def _tiles(sch: Schedule, block: str, rows: int, group: int | None) -> None:
    """Keep a tile of the result in registers while the sum over one part of k goes on."""
    loops = sch.get_loops(block)
    i1 = loops[1] if rows else loops[0]
    i0 = loops[0] if rows else None
    j0, j1 = (loops[2], loops[3]) if rows else (loops[1], loops[2])
    ks = loops[4:] if rows else loops[3:]
    outer_k = ks[:-1]
    order: list[LoopRV] = [*outer_k]
    at = j0
    if i0 is not None and group is not None:
        ib, io = sch.split(i0, [None, group])
        order += [ib, j0, io]
        at = io
    else:
        order.append(j0)
    sch.reorder(*order, ks[-1], i1, j1)
    start = sch.decompose_reduction(block, order[0])
    sch.vectorize(sch.get_loops(start)[-1])
    first, last = sch.cache_inplace(block, at, "register")
    for copy in (first, last):
        *others, lane = [x for x in sch.get_loops(copy) if str(x).startswith("ax")]
        sch.vectorize(lane)
        for loop in others:
            sch.unroll(loop)
    sch.unroll(i1)
    sch.vectorize(j1)
