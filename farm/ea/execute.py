"""What each instruction computes, on whole tiles with numpy.

Owns the memories (`Memory`) and the exact integer arithmetic. Does not own order, semaphores or
checks (`farm.ea.emulator`): an instruction arrives here checked.

Invariant: results are exactly those of the row-by-row definition in ``docs/ea-isa.md``. Adds,
subtractions and products of int32 wrap; everything that narrows saturates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from farm.ea.access import dram_access, element_bytes, row_accesses, second_rows
from farm.ea.config import MachineConfig
from farm.ea.isa import (
    PAIRED,
    REGISTERS,
    Gemm,
    Instruction,
    Load,
    SetB,
    Source,
    Space,
    Store,
    Vec,
    VecOp,
)

Int32s = NDArray[np.int32]
Window = NDArray[np.uint8]
"""The bytes of one argument, one-dimensional."""

_FLOAT32_EXACT = 1 << 24
_INT32 = np.iinfo(np.int32)


class Memory:
    """On-chip state: both memories, which of their rows hold something, broadcast registers."""

    def __init__(self, config: MachineConfig) -> None:
        self.config = config
        self.rows: dict[Space, NDArray[np.int8] | Int32s] = {
            Space.SPAD: np.zeros((config.spad_rows, config.dim), np.int8),
            Space.ACC: np.zeros((config.acc_rows, config.dim), np.int32),
        }
        self.written = {space: np.zeros(len(rows), np.bool_) for space, rows in self.rows.items()}
        self.registers = np.zeros(REGISTERS, np.int32)

    def forget(self) -> None:
        """Start a program: no row holds anything, all registers are 0."""
        for written in self.written.values():
            written[:] = False
        self.registers[:] = 0

    def read(self, space: Space, index: NDArray[np.intp]) -> Int32s:
        """Return rows as int32, shape (len(index), dim)."""
        return self.rows[space][index].astype(np.int32)

    def write(self, space: Space, index: NDArray[np.intp], values: Int32s) -> None:
        """Write int32 rows; the scratchpad saturates them to int8."""
        if space is Space.SPAD:
            self.rows[space][index] = saturate_i8(values)
        else:
            self.rows[space][index] = values


def saturate_i8(values: Int32s) -> NDArray[np.int8]:
    """Narrow to int8: what is out of range becomes the nearest end."""
    return np.clip(values, -128, 127).astype(np.int8)


def rescale(values: Int32s, multiplier: Int32s, shift: Int32s) -> Int32s:
    """Return ``(values * multiplier + 2**(shift-1)) >> shift`` in 64 bits, saturated to int32.

    Only the low six bits of `shift` count; with 0 nothing is added or shifted.

    Notes
    -----
    Source: TOSA specification, apply_scale_32 with single rounding, which is defined for
    multiplier >= 0, 2 <= shift <= 62 and results in range; this agrees there.
    """
    amount = shift.astype(np.int64) & 63
    half = np.where(amount > 0, np.int64(1) << np.maximum(amount - 1, 0), np.int64(0))
    scaled = (values.astype(np.int64) * multiplier.astype(np.int64) + half) >> amount
    result: Int32s = np.clip(scaled, _INT32.min, _INT32.max).astype(np.int32)
    return result


def execute(instruction: Instruction, memory: Memory, windows: Sequence[Window]) -> None:
    """Carry out one checked instruction; those without data effects do nothing."""
    match instruction:
        case Load():
            _load(instruction, memory, windows)
        case Store():
            _store(instruction, memory, windows)
        case Gemm():
            _gemm(instruction, memory)
        case Vec():
            _vec(instruction, memory)
        case SetB():
            memory.registers[instruction.reg] = instruction.value
        case _:
            pass


def _dram_view(dma: Load | Store, windows: Sequence[Window]) -> NDArray[np.int8] | Int32s:
    """Return the elements that `dma` touches as a view of shape (rows, cols)."""
    access = dram_access(dma)
    assert access is not None
    size = element_bytes(dma)
    return np.ndarray(
        (dma.rows, dma.cols),
        np.dtype("<i4") if size == 4 else np.dtype(np.int8),
        buffer=windows[dma.arg],
        offset=dma.offset,
        strides=(dma.dstride, size),
    )


def _load(load: Load, memory: Memory, windows: Sequence[Window]) -> None:
    config = memory.config
    (access,) = row_accesses(load, config)
    blocks = access.outer
    tile = np.zeros((load.rows, blocks * config.dim), np.int32)
    if not load.fill:
        tile[:, : load.cols] = _dram_view(load, windows)
    by_block = tile.reshape(load.rows, blocks, config.dim).swapaxes(0, 1)
    memory.write(access.space, access.index, by_block.reshape(-1, config.dim))


def _store(store: Store, memory: Memory, windows: Sequence[Window]) -> None:
    config = memory.config
    (access,) = row_accesses(store, config)
    by_block = memory.read(access.space, access.index)
    by_row = by_block.reshape(access.outer, store.rows, config.dim).swapaxes(0, 1)
    tile = by_row.reshape(store.rows, -1)[:, : store.cols]
    view = _dram_view(store, windows)
    view[:] = saturate_i8(tile) if store.saturate else tile


def _gemm(gemm: Gemm, memory: Memory) -> None:
    dim = memory.config.dim
    a_rows, w_rows, *_, c_rows = row_accesses(gemm, memory.config)
    spad = memory.rows[Space.SPAD]
    depth = gemm.kt * dim
    # A float type in which every partial sum is exact; its matrix product is much the fastest.
    exact = np.float32 if depth << 14 <= _FLOAT32_EXACT else np.float64
    a_blocks = spad[a_rows.index].astype(exact).reshape(gemm.kt, gemm.m, dim)
    a = a_blocks.swapaxes(0, 1).reshape(gemm.m, depth)
    w = spad[w_rows.index].astype(exact).reshape(gemm.nt, depth, dim)
    product = np.matmul(a, w).astype(np.int32).reshape(gemm.nt * gemm.m, dim)
    if gemm.accumulate:
        product += memory.read(Space.ACC, c_rows.index)
    memory.write(Space.ACC, c_rows.index, product)


def _vec(vec: Vec, memory: Memory) -> None:
    if _feeds_itself(vec, memory.config):
        for row in range(vec.rows):
            _vec_rows(vec, memory, row, row + 1)
    else:
        _vec_rows(vec, memory, 0, vec.rows)


def _feeds_itself(vec: Vec, config: MachineConfig) -> bool:
    """Tell whether a row may be read or written again after it was written."""
    if vec.rows > 1 and vec.dinc == 0:
        return True
    *sources, target = row_accesses(vec, config)
    for source in sources:
        apart = source.end <= target.base or target.end <= source.base
        in_place = (source.base, source.inner, source.inner_stride) == (
            target.base,
            target.inner,
            target.inner_stride,
        )
        if source.space is target.space and not apart and not in_place:
            return True
    return False


def _vec_rows(vec: Vec, memory: Memory, first: int, last: int) -> None:
    rows = np.arange(first, last, dtype=np.intp)
    s1 = np.zeros((0, memory.config.dim), np.int32)
    if vec.op is not VecOp.SPLAT:
        s1 = memory.read(vec.s1sp, vec.s1 + rows * vec.sinc)
    second = _second(vec, memory, rows)
    result = _compute(vec, s1, second)
    shape = (len(rows), memory.config.dim)
    memory.write(vec.dsp, vec.dst + rows * vec.dinc, np.broadcast_to(result, shape))


def _second(vec: Vec, memory: Memory, rows: NDArray[np.intp]) -> list[Int32s]:
    """Return the second operand, or both of a pair, each to be broadcast against s1."""
    if vec.source is Source.IMM:
        return [np.full((1, 1), vec.imm, np.int32)]
    width = 2 if vec.op in PAIRED else 1
    if vec.source is Source.REG:
        return [memory.registers[vec.s2 + i].reshape(1, 1) for i in range(width)]
    access = second_rows(vec, memory.config)
    if access is None:
        return []
    if vec.op is VecOp.LUT8:
        return [memory.read(Space.ACC, access.index).reshape(-1)]
    advance = rows * width if vec.s2inc else rows[:1] * 0
    return [memory.read(Space.ACC, vec.s2 + advance + i) for i in range(width)]


def _compute(vec: Vec, s1: Int32s, second: list[Int32s]) -> Int32s:
    result: Int32s
    match vec.op:
        case VecOp.MOV:
            result = s1
        case VecOp.SPLAT:
            result = second[0]
        case VecOp.WIDEN:
            result = s1 & 255
        case VecOp.RSUM:
            result = s1.sum(axis=1, dtype=np.int32, keepdims=True)
        case VecOp.RMAX:
            result = s1.max(axis=1, keepdims=True)
        case VecOp.LUT8:
            result = second[0][s1 & 255]
        case VecOp.CLAMP:
            result = np.minimum(np.maximum(s1, second[0]), second[1])
        case VecOp.RQ:
            result = rescale(s1, second[0], second[1]) + np.int32(vec.imm)
        case _:
            result = _binary(vec.op, s1, second[0])
    return result


def _binary(op: VecOp, a: Int32s, b: Int32s) -> Int32s:
    match op:
        case VecOp.ADD:
            return a + b
        case VecOp.SUB:
            return a - b
        case VecOp.MUL:
            return a * b
        case VecOp.MIN:
            return np.minimum(a, b)
        case VecOp.MAX:
            return np.maximum(a, b)
        case VecOp.SHR:
            return a >> (b & 31)
        case VecOp.AND:
            return a & b
        case VecOp.OR:
            return a | b
        case _:
            raise AssertionError(op)
