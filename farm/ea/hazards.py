"""Ordering of memory accesses between engines, by vector clocks.

Owns the happens-before relation of a program (engine order, semaphores, fences) and the check that
any two accesses to a row or byte, one of them a write, are ordered by it; also the reads of rows
that nothing wrote. Does not own semaphore rules (`farm.ea.verify`).

Invariant: if a program has no finding here and keeps the semaphore rules, every legal interleaving
gives the same bits.

Notes
-----
An engine is in order, so "everything it did up to its n-th instruction" is one number, and a vector
of four says what an instruction can rely on. The n-th wait on a counting semaphore with one producer
and one consumer follows the n-th post. Per row it is enough to keep the last writer and each
engine's last read (as in FastTrack, Flanagan and Freund, PLDI 2009): what came earlier was ordered
before those, or has been reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farm.ea.access import DramAccess, RowAccess, dram_access, row_accesses
from farm.ea.config import MachineConfig
from farm.ea.faults import Fault, Problem
from farm.ea.isa import Engine, Fence, Instruction, Space, engine_of, layout_of
from farm.ea.syntax import SPACE_LETTER

_Clock = NDArray[np.int32]
_ENGINES = len(Engine)


class Order:
    """Vector clocks: what each engine's next instruction can rely on being done."""

    def __init__(self) -> None:
        self._clocks: list[_Clock] = [np.zeros(_ENGINES, np.int32) for _ in Engine]
        self._issued = np.zeros(_ENGINES, np.int32)
        self._posts: dict[int, deque[_Clock]] = {}

    def start(self, engine: Engine, instruction: Instruction) -> _Clock:
        """Return what is done when `instruction` starts: its engine's past and what it awaited."""
        clock = self._clocks[engine]
        for number in instruction.waits:
            posts = self._posts.get(number)
            if posts:
                np.maximum(clock, posts.popleft(), out=clock)
        return clock

    def finish(self, engine: Engine, instruction: Instruction) -> int:
        """Count `instruction` as done, keep its posts, return its number on its engine."""
        self._issued[engine] += 1
        clock = self._clocks[engine]
        clock[engine] = self._issued[engine]
        for number in instruction.posts:
            self._posts.setdefault(number, deque()).append(clock.copy())
        return int(self._issued[engine])

    def issued(self, engine: Engine) -> int:
        """Return the number of the last instruction on `engine`, 1 for its first."""
        return int(self._issued[engine])

    def known(self, engine: Engine, other: Engine) -> int:
        """Return up to which instruction of `other` the last one on `engine` relies on."""
        return int(self._clocks[engine][other])

    def fence(self) -> None:
        """Order everything so far before everything after."""
        for clock in self._clocks:
            clock[:] = self._issued


class _Rows:
    """For each row of one memory, who wrote it last and when each engine read it last."""

    def __init__(self, rows: int) -> None:
        self.writer = np.zeros(rows, np.int8)
        self.written = np.zeros(rows, np.int32)  # number on the writer's engine, 0 for never
        self.writer_pc = np.zeros(rows, np.int32)
        self.read = np.zeros((_ENGINES, rows), np.int32)
        self.reader_pc = np.zeros((_ENGINES, rows), np.int32)


@dataclass(frozen=True, slots=True)
class _Transfer:
    access: DramAccess
    number: int
    pc: int


class HazardTracker:
    """Feed it a program in stream order; it yields what is not ordered."""

    def __init__(self, config: MachineConfig, instructions: tuple[Instruction, ...]) -> None:
        self._config = config
        self._instructions = instructions
        self.order = Order()
        self._rows = {Space.SPAD: _Rows(config.spad_rows), Space.ACC: _Rows(config.acc_rows)}
        self._transfers: dict[bool, deque[_Transfer]] = {False: deque(), True: deque()}
        accesses = [access for each in instructions if (access := dram_access(each)) is not None]
        loaded = {access.arg for access in accesses if not access.write}
        self._both = loaded & {access.arg for access in accesses if access.write}

    def step(self, pc: int, instruction: Instruction, checked: bool) -> Iterator[Problem]:
        """Account for instruction `pc`; skip its memory unless `checked` says it is in bounds."""
        engine = engine_of(instruction)
        if engine is None:
            if isinstance(instruction, Fence):
                self.order.fence()
            return
        clock = self.order.start(engine, instruction)
        accesses = row_accesses(instruction, self._config) if checked else ()
        indexed = [(access, access.index) for access in accesses]
        for access, index in indexed:
            yield from self._unordered(pc, clock, access, index)
        dram = dram_access(instruction) if checked else None
        if dram is not None and dram.arg in self._both:
            yield from self._unordered_dram(pc, clock, dram)
        number = self.order.finish(engine, instruction)
        for access, index in indexed:
            self._record(pc, engine, number, access, index)
        if dram is not None and dram.arg in self._both:
            self._transfers[dram.write].append(_Transfer(dram, number, pc))

    def _unordered(
        self, pc: int, clock: _Clock, access: RowAccess, index: NDArray[np.intp]
    ) -> Iterator[Problem]:
        rows = self._rows[access.space]
        written = rows.written[index]
        verb = "writes" if access.write else "reads"
        if not access.write:
            never = written == 0
            if never.any():
                first, last = _span(index[never])
                what = f"{self._name(pc)} reads {_range(access.space, first, last)}, never written"
                yield Problem(Fault.UNINIT, what, (first, last))
        late = written > clock[rows.writer[index]]
        if late.any():
            yield self._hazard(pc, verb, access, index[late], "written", rows.writer_pc)
        if access.write:
            for engine in Engine:
                late = rows.read[engine][index] > clock[engine]
                if late.any():
                    pcs = rows.reader_pc[engine]
                    yield self._hazard(pc, verb, access, index[late], "read", pcs)

    def _hazard(
        self,
        pc: int,
        verb: str,
        access: RowAccess,
        late: NDArray[np.intp],
        done: str,
        pcs: NDArray[np.int32],
    ) -> Problem:
        other = int(pcs[late[0]])
        first, last = _span(late[pcs[late] == other])
        where = _range(access.space, first, last)
        return self._problem(pc, f"{verb} {where} {done}", other, (first, last))

    def _problem(self, pc: int, deed: str, other: int, span: tuple[int, int]) -> Problem:
        what = f"{self._name(pc)} {deed} by {self._name(other)} without happens-before"
        return Problem(Fault.HAZARD, what, span)

    def _unordered_dram(self, pc: int, clock: _Clock, access: DramAccess) -> Iterator[Problem]:
        """Compare with the transfers of the other direction, which run on the other engine."""
        others = self._transfers[not access.write]
        done = clock[Engine.LD if access.write else Engine.ST]
        while others and others[0].number <= done:
            others.popleft()
        verb, past = ("writes", "read") if access.write else ("reads", "written")
        for other in others:
            if access.overlaps(other.access):
                where = f"arg{access.arg}[{access.offset}:{access.end})"
                span = (access.offset, access.end)
                yield self._problem(pc, f"{verb} {where} {past}", other.pc, span)
                return

    def _record(
        self, pc: int, engine: Engine, number: int, access: RowAccess, index: NDArray[np.intp]
    ) -> None:
        rows = self._rows[access.space]
        if access.write:
            rows.writer[index] = engine
            rows.written[index] = number
            rows.writer_pc[index] = pc
        else:
            rows.read[engine][index] = number
            rows.reader_pc[engine][index] = pc

    def _name(self, pc: int) -> str:
        return f"{layout_of(self._instructions[pc]).mnemonic}@{pc}"


def _span(index: NDArray[np.intp]) -> tuple[int, int]:
    return int(index.min()), int(index.max()) + 1


def _range(space: Space, first: int, last: int) -> str:
    return f"{SPACE_LETTER[space]}[{first}:{last})"
