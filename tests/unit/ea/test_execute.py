"""Every instruction against a model in plain Python integers, one element at a time."""

from __future__ import annotations

import copy
import dataclasses
import random

import numpy as np
import pytest

from farm.ea.checks import instruction_problems
from farm.ea.config import EA8
from farm.ea.execute import Memory, execute, rescale
from farm.ea.isa import Gemm, Load, SetB, Source, Space, Store, Transfer, Vec, VecOp

TINY = dataclasses.replace(EA8, name="tiny", dim=4, spad_rows=64, acc_rows=96)
DIM = TINY.dim
DRAM_BYTES = 400


def wrap(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def clip(value: int, bits: int) -> int:
    return max(-(1 << (bits - 1)), min(value, (1 << (bits - 1)) - 1))


class Scalar:
    """Memories as nested lists, instructions as loops."""

    def __init__(self, memory: Memory, dram: np.ndarray) -> None:
        self.rows = {space: rows.tolist() for space, rows in memory.rows.items()}
        self.registers = memory.registers.tolist()
        self.dram = bytearray(dram.tobytes())

    def load(self, i: Load) -> None:
        size = 4 if i.space is Transfer.ACC_I32 else 1
        for block in range(-(-i.cols // DIM)):
            for r in range(i.rows):
                for lane in range(DIM):
                    col, value = block * DIM + lane, 0
                    if col < i.cols and not i.fill:
                        at = i.offset + r * i.dstride + col * size
                        value = int.from_bytes(self.dram[at : at + size], "little", signed=True)
                    self.rows[i.space.space][i.row + block * i.lstride + r][lane] = value

    def store(self, i: Store) -> None:
        size = 4 if i.space is Transfer.ACC_I32 and not i.saturate else 1
        for r in range(i.rows):
            for col in range(i.cols):
                row = i.row + col // DIM * i.lstride + r
                value = clip(self.rows[i.space.space][row][col % DIM], 8 * size)
                at = i.offset + r * i.dstride + col * size
                self.dram[at : at + size] = value.to_bytes(size, "little", signed=True)

    def gemm(self, i: Gemm) -> None:
        spad, acc = self.rows[Space.SPAD], self.rows[Space.ACC]
        for n in range(i.nt):
            for r in range(i.m):
                for lane in range(DIM):
                    total = acc[i.c + n * i.cns + r][lane] if i.accumulate else 0
                    for k in range(i.kt):
                        for j in range(DIM):
                            a = spad[i.a + k * i.aks + r * i.astep][j]
                            total += a * spad[i.w + (n * i.kt + k) * DIM + j][lane]
                    acc[i.c + n * i.cns + r][lane] = wrap(total)

    def vec(self, i: Vec) -> None:
        bits = 8 if i.dsp is Space.SPAD else 32
        for r in range(i.rows):
            source = [] if i.op is VecOp.SPLAT else self.rows[i.s1sp][i.s1 + r * i.sinc]
            values = [clip(self.lane(i, r, lane, source), bits) for lane in range(DIM)]
            self.rows[i.dsp][i.dst + r * i.dinc] = values

    def second(self, i: Vec, r: int, lane: int, which: int = 0) -> int:
        if i.source is Source.IMM:
            return i.imm
        if i.source is Source.REG:
            return self.registers[i.s2 + which]
        width = 2 if i.op in (VecOp.RQ, VecOp.CLAMP) else 1
        return self.rows[Space.ACC][i.s2 + i.s2inc * r * width + which][lane]

    def lane(self, i: Vec, r: int, lane: int, s1: list[int]) -> int:
        x = s1[lane] if s1 else 0
        unary = {
            VecOp.MOV: lambda: x,
            VecOp.WIDEN: lambda: x % 256,
            VecOp.RSUM: lambda: wrap(sum(s1)),
            VecOp.RMAX: lambda: max(s1),
        }
        if i.op in unary:
            return unary[i.op]()
        if i.op is VecOp.LUT8:
            return self.rows[Space.ACC][i.s2 + x % 256 // DIM][x % 256 % DIM]
        y = self.second(i, r, lane)
        if i.op is VecOp.CLAMP:
            return min(max(x, y), self.second(i, r, lane, 1))
        if i.op is VecOp.RQ:
            shift = self.second(i, r, lane, 1) % 64
            total = x * y + ((1 << shift) >> 1)
            total = (total + (1 << 63)) % (1 << 64) - (1 << 63)
            return wrap(clip(total >> shift, 32) + i.imm)
        return {
            VecOp.SPLAT: lambda: y,
            VecOp.ADD: lambda: wrap(x + y),
            VecOp.SUB: lambda: wrap(x - y),
            VecOp.MUL: lambda: wrap(x * y),
            VecOp.MIN: lambda: min(x, y),
            VecOp.MAX: lambda: max(x, y),
            VecOp.SHR: lambda: x >> (y % 32),
            VecOp.AND: lambda: x & y,
            VecOp.OR: lambda: x | y,
        }[i.op]()


def random_memory(rng: np.random.Generator) -> Memory:
    memory = Memory(TINY)
    memory.rows[Space.SPAD][:] = rng.integers(-128, 128, (TINY.spad_rows, DIM))
    wide = rng.integers(-(1 << 31), 1 << 31, (TINY.acc_rows, DIM))
    narrow = rng.integers(-300, 300, (TINY.acc_rows, DIM))
    memory.rows[Space.ACC][:] = np.where(rng.random(wide.shape) < 0.5, wide, narrow)
    memory.registers[:] = rng.integers(-(1 << 31), 1 << 31, 16)
    memory.registers[::3] = rng.integers(0, 64, 6)
    return memory


@pytest.mark.parametrize(
    ("kind", "run", "variant", "variants"),
    [
        (Load, Scalar.load, lambda i: (i.space, i.fill), 5),
        (Store, Scalar.store, lambda i: (i.space, i.saturate), 3),
        (Gemm, Scalar.gemm, lambda i: (i.accumulate, i.nt, i.kt), 18),
        # Unary, lut8, splat, paired, the rest: times sources allowed.
        (Vec, Scalar.vec, lambda i: (i.op, i.source), 4 + 1 + 2 + 2 * 2 + 8 * 3),
    ],
    ids=["load", "store", "gemm", "vec"],
)
def test_execute_random_instruction_equals_the_scalar_model(
    kind, run, variant, variants, random_instruction
):
    rng, seen = random.Random(1), set()
    for seed in range(900):
        instruction = random_instruction(kind, rng)
        if instruction_problems(instruction, TINY, [DRAM_BYTES]):
            continue
        seen.add(variant(instruction))
        numpy_rng = np.random.default_rng(seed)
        memory = random_memory(numpy_rng)
        dram = numpy_rng.integers(0, 256, DRAM_BYTES, dtype=np.uint8)
        model = Scalar(memory, dram)
        run(model, instruction)
        execute(instruction, memory, [dram])
        actual = {space: rows.tolist() for space, rows in memory.rows.items()}
        assert actual == model.rows, instruction
        assert dram.tobytes() == bytes(model.dram), instruction
    assert len(seen) == variants


def test_execute_setb_sets_one_register():
    memory = random_memory(np.random.default_rng(0))
    before = copy.copy(memory.registers)
    execute(SetB(reg=4, value=-(1 << 31)), memory, [])
    before[4] = -(1 << 31)
    assert memory.registers.tolist() == before.tolist()


def test_gemm_at_the_extremes_is_exact_on_the_deepest_machine():
    config = dataclasses.replace(EA8, name="deep", dim=64, spad_rows=32768, acc_rows=2048)
    memory = Memory(config)
    memory.rows[Space.SPAD][:] = -128
    memory.rows[Space.SPAD][0, 0] = -127
    memory.rows[Space.SPAD][1, :] = -127
    execute(Gemm(m=1, kt=63, a=0, w=1, c=0, aks=64), memory, [])
    total = (63 * 64 - 1) * 128 * 128 + 127 * 127  # odd and beyond what float32 can hold
    assert int(np.float32(total)) != total
    assert memory.rows[Space.ACC][0].tolist() == [total] * 64


def test_gemm_accumulate_wraps_to_int32():
    memory = Memory(TINY)
    memory.rows[Space.SPAD][:] = 1
    memory.rows[Space.ACC][0] = (1 << 31) - 1
    execute(Gemm(m=1, a=0, w=0, c=0, accumulate=True), memory, [])
    assert memory.rows[Space.ACC][0].tolist() == [-(1 << 31) + 3] * 4


@pytest.mark.parametrize(
    ("value", "multiplier", "shift", "expected"),
    [
        (5, 1 << 30, 31, 3),  # 2.5 rounds up
        (-5, 1 << 30, 31, -2),  # so does -2.5
        (7, 3, 0, 21),
        (1 << 30, 8, 0, (1 << 31) - 1),  # saturates
        (-(1 << 31), 1 << 30, 2, -(1 << 31)),
        (3, 2, 64 + 1, 3),  # six bits of shift
        (-(1 << 31), -(1 << 31), 63, -1),  # the 64-bit sum wraps
    ],
)
def test_rescale_rounds_half_up_and_saturates(value, multiplier, shift, expected):
    arrays = [np.array([each], np.int32) for each in (value, multiplier, shift)]
    assert rescale(*arrays).tolist() == [expected]
