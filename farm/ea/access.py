"""Which rows and bytes an instruction reads and writes.

Owns the one description of memory touched, used for bounds, hazards, initialisation and by the
emulator. Does not own what is computed with it (`farm.ea.execute`).

Invariant: an instruction touches exactly the rows and bytes of its accesses; every row access of
the instruction set is a two-level pattern ``base + o*outer_stride + i*inner_stride``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farm.ea.config import MachineConfig
from farm.ea.isa import (
    PAIRED,
    UNARY,
    Gemm,
    Instruction,
    Load,
    Source,
    Space,
    Store,
    Transfer,
    Vec,
    VecOp,
)


@dataclass(frozen=True, slots=True)
class RowAccess:
    """Whole rows of one on-chip memory, in the order ``for o: for i``."""

    space: Space
    write: bool
    base: int
    inner: int
    inner_stride: int = 1
    outer: int = 1
    outer_stride: int = 0

    @property
    def end(self) -> int:
        """One past the highest row."""
        outer = (self.outer - 1) * self.outer_stride
        return self.base + outer + (self.inner - 1) * self.inner_stride + 1

    @property
    def index(self) -> NDArray[np.intp]:
        """Row numbers, shape (outer * inner,)."""
        inner = np.arange(self.inner, dtype=np.intp) * self.inner_stride + self.base
        if self.outer == 1:
            return inner
        outer = np.arange(self.outer, dtype=np.intp) * self.outer_stride
        return (outer[:, None] + inner).reshape(-1)


@dataclass(frozen=True, slots=True)
class DramAccess:
    """`rows` runs of `row_bytes` bytes, `stride` bytes apart, in the window of argument `arg`."""

    arg: int
    write: bool
    offset: int
    rows: int
    stride: int
    row_bytes: int

    @property
    def end(self) -> int:
        """One past the highest byte."""
        return self.offset + (self.rows - 1) * self.stride + self.row_bytes

    def overlaps(self, other: DramAccess) -> bool:
        """Tell whether the two touch a common byte of one argument."""
        if self.arg != other.arg or self.offset >= other.end or other.offset >= self.end:
            return False
        starts = self.offset + np.arange(self.rows, dtype=np.int64) * self.stride
        others = other.offset + np.arange(other.rows, dtype=np.int64) * other.stride
        # The last run of `other` that starts before a run of ours ends is the one to reach it.
        last = np.searchsorted(others, starts + self.row_bytes, side="left") - 1
        reached = others[np.maximum(last, 0)] + other.row_bytes > starts
        return bool(np.any(reached & (last >= 0)))


def element_bytes(instruction: Load | Store) -> int:
    """Return the size in DRAM of one element that a DMA moves."""
    narrow = isinstance(instruction, Store) and instruction.saturate
    return 4 if instruction.space is Transfer.ACC_I32 and not narrow else 1


def row_accesses(instruction: Instruction, config: MachineConfig) -> tuple[RowAccess, ...]:
    """Return the on-chip rows that `instruction` touches: reads first, then writes."""
    match instruction:
        case Load() | Store():
            return (_dma_rows(instruction, config),)
        case Gemm():
            return _gemm_rows(instruction, config)
        case Vec():
            return _vec_rows(instruction, config)
        case _:
            return ()


def dram_access(instruction: Instruction) -> DramAccess | None:
    """Return the DRAM bytes that `instruction` touches, or None."""
    if not isinstance(instruction, Load | Store):
        return None
    if isinstance(instruction, Load) and instruction.fill:
        return None
    return DramAccess(
        instruction.arg,
        isinstance(instruction, Store),
        instruction.offset,
        instruction.rows,
        instruction.dstride,
        instruction.cols * element_bytes(instruction),
    )


def _dma_rows(dma: Load | Store, config: MachineConfig) -> RowAccess:
    return RowAccess(
        dma.space.space,
        isinstance(dma, Load),
        dma.row,
        dma.rows,
        outer=config.blocks(dma.cols),
        outer_stride=dma.lstride,
    )


def _gemm_rows(gemm: Gemm, config: MachineConfig) -> tuple[RowAccess, ...]:
    a = RowAccess(Space.SPAD, False, gemm.a, gemm.m, gemm.astep, gemm.kt, gemm.aks)
    w = RowAccess(Space.SPAD, False, gemm.w, gemm.nt * gemm.kt * config.dim)
    old, new = (
        RowAccess(Space.ACC, write, gemm.c, gemm.m, 1, gemm.nt, gemm.cns) for write in (False, True)
    )
    return (a, w, old, new) if gemm.accumulate else (a, w, new)


def _vec_rows(vec: Vec, config: MachineConfig) -> tuple[RowAccess, ...]:
    accesses = []
    if vec.op is not VecOp.SPLAT:
        accesses.append(RowAccess(vec.s1sp, False, vec.s1, vec.rows, vec.sinc))
    second = second_rows(vec, config)
    if second is not None:
        accesses.append(second)
    accesses.append(RowAccess(vec.dsp, True, vec.dst, vec.rows, vec.dinc))
    return tuple(accesses)


def second_rows(vec: Vec, config: MachineConfig) -> RowAccess | None:
    """Return the rows of a VEC's second operand, or None if it has none in memory."""
    if vec.source is not Source.ROW or vec.op in UNARY or vec.op is VecOp.SPLAT:
        return None
    if vec.op is VecOp.LUT8:
        return RowAccess(Space.ACC, False, vec.s2, config.lut_rows)
    width = 2 if vec.op in PAIRED else 1
    return RowAccess(Space.ACC, False, vec.s2, width * (vec.rows if vec.s2inc else 1))
