"""Hints of loops over large arrays: stores past the caches, operands fetched ahead of need."""

from __future__ import annotations

import re

import numpy as np
import pytest

from farm.artifact import assemble
from farm.codegen import compile_function
from farm.codegen.llvm.loops import AHEAD, STREAM
from farm.codegen.llvm.machine import Machine
from farm.ir import (
    Buffer,
    DType,
    Function,
    LoopKind,
    Param,
    Role,
    interpret,
    serialise,
    verify,
)
from farm.ir.expr import Load, Var, const
from farm.ir.stmt import Block, For, Store
from farm.runtime.dlpack import TensorList
from farm.runtime.native import native_loader
from farm.target import Target

HERE = Target.parse("llvm")
ANYTHING = frozenset({f"arch:{HERE.family.partition('/')[2]}", "cpu-feature:*", "cpu:*"})
X86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3"
ARM = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72"
PAST = r"v?movnt(ps|pd|dq)\b|\bstnp\b"
ROWS, WIDTH = 6, 32


def doubled(
    columns,
    dtype="float32",
    hints=((STREAM, 1),),
    kind=LoopKind.SERIAL,
    read_again=False,
    beyond=0,
):
    """``y = x + x``, rows of vectors; its loop over a row has hints.

    `read_again`: y is then updated in there. `beyond`: elements of a row that are not computed.
    """
    kind_of, shape = DType(dtype), (ROWS, columns + beyond)
    x, y = (Buffer(name, kind_of, shape, kind_of.size_bytes) for name in "xy")
    i, j, lane = Var("i"), Var("j"), Var("lane_of_row")
    at = (i, j * WIDTH + lane)
    body = Store(y, at, Load(x, at) + Load(x, at))
    if read_again:
        body = Block((body, Store(y, at, Load(y, at) + const(1, dtype))))
    row = For(j, columns // WIDTH, For(lane, WIDTH, body, LoopKind.VECTORIZED), annotations=hints)
    params = (Param(x, Role.INPUT), Param(y, Role.OUTPUT))
    function = Function("doubled", params, For(i, ROWS, row, kind))
    verify(function)
    return function


def numbers(function):
    shape, dtype = function.params[0].buffer.shape, str(function.params[0].buffer.dtype)
    return np.random.default_rng(2).integers(0, 50, shape).astype(dtype)


def apart(array, offset, fill):
    """A copy `offset` elements after a multiple of 64 bytes, with elements around it that nobody may change."""
    size = array.itemsize
    room = np.full(array.size + 64 + 128 // size, fill, array.dtype)
    first = -room.ctypes.data % 64 // size + 64 // size + offset
    place = room[first : first + array.size].reshape(array.shape)
    place[...] = array
    return room, place


@pytest.fixture
def assembly(monkeypatch):
    """What a function becomes for a target, as assembler."""
    seen = []
    emit = Machine.emit

    def listen(self, module, **options):
        data = emit(self, module, **options)
        seen.append(self.create().emit_assembly(module))
        return data

    monkeypatch.setattr(Machine, "emit", listen)

    def compile_to_text(function, target):
        compile_function(serialise(function), "device", Target.parse(target))
        return seen[-1]

    return compile_to_text


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("offset", [0, 1, 4, 8])
@pytest.mark.parametrize(("dtype", "columns"), [("float32", 96), ("int8", 64), ("float64", 64)])
def test_streaming_loop_computes_the_same_wherever_its_result_is(dtype, columns, offset, threads):
    kind = LoopKind.PARALLEL if threads > 1 else LoopKind.SERIAL
    function = doubled(columns, dtype, ((AHEAD, columns), (STREAM, 1)), kind)
    x = numbers(function)
    (wanted,) = interpret(function, [x])
    built = assemble(HERE, [compile_function(serialise(function), "device", HERE)])
    room, y = apart(np.zeros_like(x), offset, fill=77)
    before = room.copy()
    with native_loader([str(HERE)], ANYTHING, threads=threads).load(built) as module:
        module.run(module.function("doubled"), TensorList([x, y]))
    np.testing.assert_array_equal(y, wanted)
    y[...] = 0
    np.testing.assert_array_equal(room, before)


@pytest.mark.parametrize("target", [X86, ARM])
def test_hints_become_instructions(target, assembly):
    text = assembly(doubled(64, hints=((AHEAD, 64), (STREAM, 1))), target)
    assert re.search(PAST, text)
    assert re.search(r"prefetcht0|\bprfm\b", text)
    if target == X86:  # other threads may be told only after it
        assert re.search(r"\bmfence\b|lock\s+or", text)


@pytest.mark.parametrize(
    "hints",
    [(), ((STREAM, 0),), ((STREAM, "yes"),), ((STREAM, -1), (AHEAD, -1)), ((AHEAD, 1 << 40),)],
)
def test_loop_without_a_hint_or_with_one_that_means_nothing_is_as_before(hints, assembly):
    text = assembly(doubled(64, hints=hints), X86)
    assert not re.search(PAST + r"|prefetch|\bmfence\b", text)


def test_result_that_is_read_again_stays_in_the_caches(assembly, check):
    function = doubled(64, read_again=True)
    assert not re.search(PAST, assembly(function, X86))
    check(function, [numbers(function)])


def test_rows_that_end_inside_a_line_stay_in_the_caches(assembly):
    assert not re.search(PAST, assembly(doubled(64, beyond=4), X86))


@pytest.mark.parametrize(
    "target",
    [
        "llvm -mtriple=wasm32-unknown-unknown -mattr=+simd128",
        "llvm -mtriple=riscv64-linux-gnu",
        "llvm -mtriple=armv7-linux-gnueabihf -mcpu=cortex-a7",
        "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64",
    ],
)
def test_every_target_takes_the_hints(target):
    function = doubled(64, hints=((AHEAD, 64), (STREAM, 1)))
    assert compile_function(serialise(function), "device", Target.parse(target)).data
