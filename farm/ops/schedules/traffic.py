"""The recipe for arrays larger than the caches: results go past them, the next rows come ahead of need.

Owns: which loops get these hints. Does not own: what code generators make of them (`farm.codegen.llvm.loops`).

Notes: a store to a line that is in no cache fetches the line first, a third of what a copy moves; a store past the
caches does not. While one pass over a row computes, memory rests, unless something fetches the next row meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from farm.errors import ScheduleError
from farm.ir.buffer import Buffer
from farm.ir.function import Role
from farm.schedule import LoopRV, Schedule

STREAM = "llvm.stream"
AHEAD = "llvm.ahead"
LARGE_BYTES = 16 << 20
"""Of a result that no cache is likely to keep until somebody reads it."""
FAR_BYTES = 1 << 20
"""Of an operand that is not next to the core."""
ROW_BYTES = (512, 32 << 10)
"""Of rows that are worth fetching ahead, and that leave room for what is computed meanwhile."""
LINE_BYTES = 64


def is_streamed(buffer: Buffer) -> bool:
    """Tell whether a result is worth storing past the caches, and its rows can be: they are whole lines."""
    row_bytes = buffer.shape[-1] * buffer.dtype.size_bytes if buffer.shape else 0
    return buffer.size_bytes >= LARGE_BYTES and row_bytes % LINE_BYTES == 0


def schedule_traffic(sch: Schedule) -> None:
    """Give loops over large arrays their hints.

    Raises
    ------
    ScheduleError
        There are no such loops.
    """
    if not any(x.buffer.size_bytes >= FAR_BYTES for x in sch.original.params):
        raise ScheduleError(f"traffic of {sch.original.name}: no array is large")
    nest = _Nest(sch)
    hints = [*_streams(nest), *_ahead(nest)]
    if not hints:
        raise ScheduleError(f"traffic of {sch.original.name}: no loop passes over a large array")
    for loop, key, value in hints:
        sch.annotate(loop, key, value)


class _Nest:
    """The blocks of a schedule and the loops around them."""

    def __init__(self, sch: Schedule) -> None:
        self.sch = sch
        self.leaves = {name: sch.block(name) for name in sch.block_names()}
        self.loops = {name: sch.get_loops(name) for name in self.leaves}

    def params(self, role: Role) -> dict[str, Buffer]:
        """Return the parameters of a role by name."""
        return {x.buffer.name: x.buffer for x in self.sch.original.params if x.role is role}

    def steps(self, block: str) -> int:
        """Return how often a block runs."""
        return math.prod(map(self.sch.extent_of, self.loops[block]))

    def own_loop(self, block: str) -> LoopRV | None:
        """Return the loop of a block alone around its vectors, none that may become parallel; None if it has none."""
        loops = self.loops[block]
        shared = {loop for name, theirs in self.loops.items() if name != block for loop in theirs}
        own = [loop for loop in loops if loop not in shared]
        if not own:
            return None
        return own[-2] if len(own) > 1 and len(loops) > 2 else own[-1]


Hint = tuple[LoopRV, str, int]


def _streams(nest: _Nest) -> Iterator[Hint]:
    """Yield hints for loops that store large results, which nothing reads here."""
    read = {load.buffer.name for leaf in nest.leaves.values() for load in leaf.reads()}
    outputs = nest.params(Role.OUTPUT).keys() - read
    for name, leaf in nest.leaves.items():
        if leaf.buffer.name in outputs and leaf.reduction is None and is_streamed(leaf.buffer):
            loop = nest.own_loop(name)
            if loop is not None:
                yield loop, STREAM, 1


def _ahead(nest: _Nest) -> Iterator[Hint]:
    """Yield hints for second passes over rows: the first pass over the next row will find it in the caches."""
    inputs = nest.params(Role.INPUT)
    for name, buffer in inputs.items():
        row = buffer.shape[-1] if buffer.shape else 0
        is_fit = ROW_BYTES[0] <= row * buffer.dtype.size_bytes <= ROW_BYTES[1]
        read = {each: {x.buffer.name for x in it.reads()} for each, it in nest.leaves.items()}
        passes = [x for x in nest.leaves if name in read[x] and nest.steps(x) == buffer.elements]
        if buffer.size_bytes < FAR_BYTES or not is_fit or len(passes) < 2:
            continue
        first, second = passes[:2]
        around = [x for x in nest.loops[first] if x in nest.loops[second]]
        loop = nest.own_loop(second)
        rows = math.prod(nest.sch.extent_of(each) for each in around)
        is_only = read[second] & inputs.keys() == {name}
        if loop is not None and is_only and rows * row == buffer.elements:
            yield loop, AHEAD, row
