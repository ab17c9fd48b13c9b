"""dotcore: a coprocessor with two matrix instructions, described by what they compute.

An instruction has 28 bytes: the opcode, then address and row stride of x, w and out in the core's memory. ``mm8`` adds
the product of 8x8 by 8x8, ``mv16`` that of one row of 16 by 16x16. The core keeps the tile of w that it used last: one
that stays costs no load, so that the order of the calls matters.
"""

import struct

import numpy as np
from numpy import int32

from farm.accel import Accelerator, Intrinsic, Operand

WORD = struct.Struct("<7I")
MM8, MV16 = 1, 2
SHAPES = {MM8: (8, 8, 8), MV16: (1, 16, 16)}  # m n k


def mm8(x, w, out):
    """Multiply 8x8 by 8x8 and add: this function is the meaning, and what loops are matched against."""
    for i in range(8):
        for j in range(8):
            for k in range(8):
                out[i, j] += int32(x[i, k]) * int32(w[k, j])


def mv16(x, w, out):
    """Multiply a row of 16 by 16x16 and add."""
    for j in range(16):
        for k in range(16):
            out[j] += int32(x[k]) * int32(w[k, j])


def emit(op):
    """Return the hook that emits one instruction for operands at some places."""

    def emit_one(places, config):
        numbers = []
        for name in ("x", "w", "out"):
            place = places[name]
            numbers += [place.address, place.strides[0] if len(place.strides) == 2 else 0]
        return WORD.pack(op, *numbers)

    return emit_one


def execute(instructions, memory, config, unit):
    """Run instructions on the core's memory and return the cycles; of a real core, its driver."""
    cycles, held = 0, None
    for op, x, x_step, w, w_step, out, out_step in WORD.iter_unpack(instructions):
        m, n, k = SHAPES[op]
        if (op, w, w_step) != held:
            cycles, held = cycles + k, (op, w, w_step)
        cycles += m
        tile(memory, out, out_step, (m, n), np.int32)[:] += tile(
            memory, x, x_step, (m, k), np.int8
        ).astype(np.int32) @ tile(memory, w, w_step, (k, n), np.int8)
    return cycles


def tile(memory, address, step, shape, dtype):
    """Return part of the memory as rows of elements; numpy checks that it lies inside."""
    rows, columns = shape
    size = np.dtype(dtype).itemsize
    last = address + (rows - 1) * step + columns * size
    part = memory[address:last].view(np.uint8)
    assert len(part) == last - address, "outside of the memory"
    return np.ndarray(shape, dtype, part, strides=(step, size))


DOTCORE = Accelerator(
    name="dotcore",
    timing="simulated",
    execute=execute,
    intrinsics=(
        Intrinsic(
            name="mm8",
            operands=(
                Operand("x", "int8", (8, 8)),
                Operand("w", "int8", (8, 8)),
                Operand("out", "int32", (8, 8)),
            ),
            body=mm8,
            emit=emit(MM8),
        ),
        Intrinsic(
            name="mv16",
            operands=(
                Operand("x", "int8", (16,)),
                Operand("w", "int8", (16, 16)),
                Operand("out", "int32", (16,)),
            ),
            body=mv16,
            emit=emit(MV16),
        ),
    ),
)
