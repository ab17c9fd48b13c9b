"""Sums of products of narrow integers: the instructions that they become, and their values at the ends of the types."""

from __future__ import annotations

import re

import numpy as np
import pytest

import farm.te as te
from farm import ops
from farm.codegen import compile_function
from farm.codegen.llvm.machine import Machine
from farm.ir import Buffer, DType, Function, LoopKind, Param, Role, interpret, serialise, verify
from farm.ir.expr import Load, Var
from farm.ir.stmt import Block, For, Store
from farm.ops.schedules import scheduled
from farm.target import Target

LANES = 8
TYPES = ("int8", "uint8", "int16")


def extremes(shape, dtype):
    """Values at both ends of a type, mostly: sums of their products go beyond 32 bits."""
    info = np.iinfo(dtype)
    some = np.array([info.min, info.max, info.min + 1, -1 % (info.max + 1), 1], dtype)
    return np.random.default_rng(4).choice(some, shape)


def dot(left, right, steps, layout):
    """A vectorized loop with an unrolled sum inside: both operands packed, or one the same in all lanes, or neither."""
    a_shape = {"same": (steps,), "packed": (LANES, steps), "apart": (steps, LANES)}[layout]
    a = Buffer("a", DType(left), a_shape, DType(left).size_bytes)
    b = Buffer("b", DType(right), (LANES, steps), DType(right).size_bytes)
    c = Buffer("c", DType.INT32, (LANES,), 4)
    lane, k = Var("lane"), Var("k")
    at = {"same": (k,), "packed": (lane, k), "apart": (k, lane)}[layout]
    product = Load(a, at).astype("int32") * Load(b, (lane, k)).astype("int32")
    step = Store(c, (lane,), Load(c, (lane,)) + product)
    body = Block(
        (
            For(Var("init"), LANES, Store(c, (Var("init"),), te.const(2**31 - 1, "int32"))),
            For(lane, LANES, For(k, steps, step, LoopKind.UNROLLED), LoopKind.VECTORIZED),
        )
    )
    params = (Param(a, Role.INPUT), Param(b, Role.INPUT), Param(c, Role.OUTPUT))
    function = Function("dot", params, body)
    verify(function)
    return function, [extremes(a.shape, left), extremes(b.shape, right)]


@pytest.mark.parametrize("layout", ["same", "packed", "apart"])
@pytest.mark.parametrize("left", TYPES)
@pytest.mark.parametrize("right", TYPES)
def test_unrolled_sums_at_the_ends_of_the_types_equal_the_interpreter(left, right, layout, check):
    for steps in (2, 3, 8):
        check(*dot(left, right, steps, layout))


@pytest.mark.parametrize(("ta", "tb"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype", TYPES)
def test_scheduled_product_equals_the_interpreter(ta, tb, dtype, run):
    m, n, depth = 13, 32, 10
    shapes = ((depth, m) if ta else (m, depth)), ((n, depth) if tb else (depth, n))
    a, b = (
        te.placeholder(shape, dtype, name=name) for shape, name in zip(shapes, "ab", strict=True)
    )
    product = te.function("product", [a, b, ops.matmul(a, b, transpose_a=ta, transpose_b=tb)])
    fast = scheduled(product, "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3")
    arrays = [extremes(shape, dtype) for shape in shapes]
    (wanted,) = interpret(product, arrays)
    np.testing.assert_array_equal(interpret(fast, arrays)[0], wanted)
    np.testing.assert_array_equal(run(fast, arrays)[0], wanted)


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


X86, ARM = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64", "llvm -mtriple=aarch64-linux-gnu -mcpu="


@pytest.mark.parametrize(
    ("target", "dtype", "wanted", "unwanted"),
    [
        (f"{X86}-v3", "int8", r"vpmaddwd\s.*ymm", r"pmulld|pmullw"),
        (f"{X86}-v3", "uint8", r"vpmaddwd\s.*ymm", r"pmulld|pmullw"),
        (f"{X86}-v3", "int16", r"vpmaddwd\s.*ymm", r"pmulld|pmullw"),
        (X86, "int8", r"\bpmaddwd\s", r"pmulld|pmullw"),
        (f"{ARM}cortex-a76", "int8", r"\bsdot\s.*16b", r"\bs?m(la|ul)l?2?\s+v"),
        (f"{ARM}generic -mattr=+dotprod", "uint8", r"\budot\s.*16b", r"\bu?m(la|ul)l?2?\s+v"),
        (f"{ARM}cortex-a72", "int8", r"\bs?m(la|ul)l?2?\s+v", r"[su]dot"),
        (f"{ARM}cortex-a76 -mattr=-dotprod", "int8", r"\bs?m(la|ul)l?2?\s+v", r"[su]dot"),
    ],
)
def test_product_under_its_default_schedule_has_the_instruction(
    target, dtype, wanted, unwanted, assembly
):
    a, b = (te.placeholder((48, 64), dtype, name="a"), te.placeholder((64, 32), dtype, name="b"))
    text = assembly(scheduled(te.function("product", [a, b, ops.matmul(a, b)]), target), target)
    assert re.search(wanted, text)
    assert not re.search(unwanted, text)


def test_pair_of_products_written_by_hand_becomes_one_instruction(assembly, check):
    x = te.placeholder((4, 64), "int16", name="x")

    def pair(i):
        a, b, c, d = (x[row, i].astype("int32") for row in range(4))
        return a * b + c * d

    y = te.compute((64,), pair, name="y")
    fast = scheduled(te.function("pairs", [x, y]), f"{X86}-v3")
    assert re.search(r"vpmaddwd\s.*ymm", assembly(fast, f"{X86}-v3"))
    check(fast, [extremes((4, 64), "int16")])
