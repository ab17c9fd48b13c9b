"""Vectorized and unrolled loops: every shape of access, masks, inner loops, registers."""

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir

from farm import te
from farm.codegen.llvm.machine import machine_for
from farm.codegen.llvm.statements import Kernel
from farm.codegen.llvm.unit import Unit
from farm.ir import (
    Buffer,
    DType,
    FastMath,
    Function,
    LoopKind,
    Param,
    Role,
    Scope,
    parse,
    serialise,
    verify,
)
from farm.ir.expr import Cast, Load, Math, MathOp, Var, const, select
from farm.ir.stmt import Allocate, Block, For, If, Store
from farm.target import Target

V, U = LoopKind.VECTORIZED, LoopKind.UNROLLED
i, j, k = Var("i"), Var("j"), Var("k")
TYPES = ["bool", "int8", "uint16", "int32", "int64", "float32", "float64"]


def buffer(name, dtype, *shape, scope=Scope.GLOBAL):
    kind = DType(dtype)
    return Buffer(name, kind, shape, kind.size_bytes, scope)


def number(value):
    return const(value, "int64")


def function(inputs, outputs, body, **options):
    """A function; what is not stored everywhere is an inout."""
    params = [Param(b, Role.INPUT) for b in inputs] + [Param(b, Role.INOUT) for b in outputs]
    made = Function("kinds", tuple(params), body, **options)
    verify(made)
    return made


def arrays_of(made, values, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.choice(values(p.buffer.dtype), p.buffer.shape) for p in made.params]


CASES = [(dtype, 37) for dtype in TYPES] + [("int8", 5), ("float64", 130), ("bool", 130)]


def accesses(extent, table):
    """Name, index that is loaded and index that is stored, of each shape of access."""
    top = number(extent + 3)
    return {
        "contiguous": (i, i),
        "shifted": (i + 3, i + 1),
        "reversed": (top - i, number(extent) - i),
        "every_second": (i * 2 + 1, i * 2),
        "every_third": (i * 3, i * 3 + 2),
        "every_seventh": (i * 7 + 2, i * 7),
        "uniform": (number(5), i),
        "quotient": (i // 3, i),
        "remainder": ((i * 5) % 19, i),
        "split": ((i // 16) * 16 + i % 16, (i // 16) * 16 + i % 16),
        "from_table": (Cast(DType.INT64, Load(table, (i,))), i),
        "scattered": (i, i // 2 + (i % 2) * (extent + 5)),
    }


@pytest.mark.parametrize(("dtype", "extent"), CASES)
def test_every_shape_of_access_equals_interpreter(dtype, extent, values, check):
    size = max(7 * extent + 50, 256)
    table, source = buffer("t", "uint8", extent), buffer("x", dtype, size)
    outputs, stores = [], []
    for name, (load, store) in accesses(extent, table).items():
        outputs.append(buffer(name, dtype, size))
        stores.append(Store(outputs[-1], (store,), Load(source, (load,))))
    made = function([table, source], outputs, For(i, extent, Block(tuple(stores)), V))
    rng = np.random.default_rng(extent)
    arrays = [rng.integers(0, 50, extent).astype(np.uint8)]
    arrays += [rng.choice(values(dtype), size) for _ in range(1 + len(outputs))]
    check(made, arrays)


@pytest.mark.parametrize("dtype", ["bool", "int16", "float32", "uint64"])
def test_masked_lanes_touch_nothing_and_equal_interpreter(dtype, values, check):
    """Guards that fail in some lanes, all or none; every index is outside its buffer where its guard fails."""
    kind, n = DType(dtype), 19
    x, t = buffer("x", dtype, n), buffer("t", "uint8", n)
    y = [buffer(f"y{number}", dtype, n) for number in range(8)]
    last = number(n - 1)
    jumps = (i * 5) % 23
    counted = Cast(DType.INT64, Load(t, (i % n,)))
    zero = const(False if kind is DType.BOOL else 0, dtype)
    inside, low = i < n, i >= 3
    loads = Load(x, (i - 3,))
    body = Block(
        (
            If(inside, Store(y[0], (i,), Load(x, (last - i,)))),
            If(low & inside, Store(y[1], (i - 3,), loads), None),
            If(i < n, Store(y[2], (i,), select(low, loads, zero)), Store(y[2], (i - 16,), zero)),
            If(i < 6, Store(y[3], (i * 3,), Load(x, (i * 3 + 1,)))),
            If((j < 2) & (i < 9), Store(y[4], (i * 2 + j,), Load(x, (number(7) * j,)))),
            If(counted < i, If(jumps < n, Store(y[5], (jumps,), Load(x, (jumps,))))),
            If(i.eq(j), Store(y[6], (j,), Load(x, (j * 9,)))),
            If(
                i < number(2) * j,
                For(k, 3, Store(y[7], (i * 3 + k,), Load(x, (i * 2 + j + k,)))),
            ),
        )
    )
    made = function([x, t], y, For(j, 3, For(i, 32, body, V)))
    rng = np.random.default_rng(1)
    arrays = [rng.choice(values(dtype), n), rng.integers(0, 2 * n, n).astype(np.uint8)]
    arrays += [rng.choice(values(dtype), n) for _ in y]
    check(made, arrays)


def test_division_in_masked_lanes_does_not_trap(check):
    """What a condition tells of a divisor holds only in the lanes that are on."""
    x, y = buffer("x", "int64", 16), buffer("y", "int64", 16)
    divisor = Load(x, (i,))
    made = function(
        [x], [y], For(i, 16, If(i.ne(3), Store(y, (i,), (i + 100) // (i - 3) + i % divisor)), V)
    )
    bounded = For(i, 16, If(i > 3, Store(y, (i,), number(1000) // (i - 3))), V)
    check(made, [np.arange(-8, 8), np.arange(16)])
    check(function([x], [y], bounded), [np.arange(16), np.arange(16)])


def tile(kind, rows, columns, length, dtype="float32", **options):
    """A register tile: accumulators by rows and lanes, a serial loop around, a transposed store."""
    a, b = buffer("a", dtype, rows, length), buffer("b", dtype, length, columns)
    c = buffer("c", dtype, columns, rows)
    acc = buffer("acc", dtype, rows, columns, scope=Scope.REGISTER)

    def each(stage, make):
        r, v = Var(f"r{stage}"), Var(f"v{stage}")
        return For(r, rows, For(v, columns, make(r, v), kind), U)

    start = each(0, lambda r, v: Store(acc, (r, v), const(0, dtype)))
    step = each(
        1, lambda r, v: Store(acc, (r, v), Load(acc, (r, v)) + Load(a, (r, k)) * Load(b, (k, v)))
    )
    end = each(2, lambda r, v: Store(c, (v, r), Load(acc, (r, v))))
    body = Allocate(acc, Block((start, For(k, length, step), end)))
    return function([a, b], [c], body, **options)


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
@pytest.mark.parametrize("columns", [16, 13])
def test_register_tiles_equal_interpreter(dtype, columns, values, check):
    made = tile(V, 3, columns, 9, dtype)
    check(made, arrays_of(made, values))


def test_contraction_rounds_once_only_where_it_is_allowed(run):
    """1 + 2**-12 squared, minus its rounded square: 0 with two roundings, 2**-24 with one."""
    x = np.full((2, 1), 1 + 2**-12, np.float32)
    a, b, c = buffer("a", "float32", 16), buffer("b", "float32", 16), buffer("c", "float32", 16)
    value = Load(a, (i,)) * Load(a, (i,)) - Load(b, (i,))
    for kind in (V, LoopKind.SERIAL):
        arrays = [np.full(16, x[0, 0]), np.full(16, x[0, 0] * x[0, 0]), np.zeros(16, np.float32)]
        body = For(i, 16, Store(c, (i,), value), kind)
        (exact,) = run(function([a, b], [c], body), arrays)
        (fused,) = run(function([a, b], [c], body, fast_math=FastMath(contract=True)), arrays)
        assert (exact == 0).all()
        assert (fused == np.float32(2**-24)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_of_vectors_equal_those_of_scalars(dtype, elementwise_function, run):
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.uniform(-110, 90, 300), [np.inf, -np.inf, np.nan, 0.0, -0.0]])
    arrays = [x.astype(dtype)]
    made = {op.value: lambda x, i, op=op: Math(op, x) for op in MathOp}
    functions = [
        elementwise_function("functions", {"x": arrays[0]}, made, kind)
        for kind in (V, LoopKind.SERIAL)
    ]
    vectors, scalars = (run(f, arrays) for f in functions)
    for ours, theirs in zip(vectors, scalars, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_unrolled_loops_that_are_too_large_still_loop(check):
    x, y = buffer("x", "int32", 64, 64, 64), buffer("y", "int32", 64, 64, 64)
    store = Store(y, (i, j, k), Load(x, (i, j, k)) + 1)
    body = For(i, 64, For(j, 64, For(k, 64, store, U), U), U)
    made = function([x], [y], body)
    rng = np.random.default_rng(2)
    check(made, [rng.integers(-9, 9, (64, 64, 64)).astype(np.int32) for _ in range(2)])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_sums_of_two_products_equal_interpreter_at_their_limits(dtype, values, check_all_ways):
    """Pairs of lanes and of what all lanes share, in both orders; -2**15 squared twice wraps around."""
    n = 21
    a, b = buffer("a", dtype, 2 * n), buffer("b", dtype, 2 * n)
    y = [buffer(f"y{number}", "int32", n) for number in range(4)]

    def at(source, index):
        return Load(source, (index,)).astype("int32")

    even, odd = (i * 2, i * 2 + 1)
    sums = [
        at(a, even) * at(b, even) + at(a, odd) * at(b, odd),
        at(a, number(0)) * at(b, even) + at(b, odd) * at(a, number(1)),
        at(a, i) * at(b, number(3)) + at(a, i + n) * at(a, i + n),
        at(a, even).astype("int64").astype("int32") * at(b, i) + at(a, odd) * at(b, odd),
    ]
    stores = [Store(target, (i,), value) for target, value in zip(y, sums, strict=True)]
    made = function([a, b], y, For(i, n, Block(tuple(stores)), V))
    lowest = np.full(2 * n, DType(dtype).min, DType(dtype).numpy)
    rest = [np.zeros(n, np.int32) for _ in y]
    check_all_ways(made, [lowest, lowest, *rest])
    check_all_ways(made, arrays_of(made, values, seed=3))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_saturating_arithmetic_equals_interpreter(
    dtype, pairs, elementwise_function, check_all_ways
):
    a, b = pairs(dtype)
    made = {
        "total": lambda x, y, i: te.saturating_add(x, y),
        "rest": lambda x, y, i: te.saturating_sub(x, y),
    }
    function = elementwise_function("saturating", {"a": a, "b": b}, made, V)
    check_all_ways(function, [a, b])


def test_a_tile_of_6_by_16_stays_in_registers():
    """12 fused multiply-adds a step, and no vector on the stack."""
    made = tile(V, 6, 16, 64, fast_math=FastMath(contract=True))
    machine = machine_for(Target.parse("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3"))
    module = ir.Module(context=ir.Context())
    module.triple, module.data_layout = machine.triple, machine.data_layout()
    Kernel(Unit(module), parse(serialise(made)), "tile").emit().linkage = "external"
    parsed = llvm.parse_assembly(str(module), llvm.create_context())
    creator = machine.create()
    builder = llvm.create_pass_builder(creator, llvm.create_pipeline_tuning_options(2))
    builder.getModulePassManager().run(parsed, builder)
    lines = creator.emit_assembly(parsed).splitlines()
    assert sum("vfmadd" in line for line in lines) % 12 == 0
    assert any("vfmadd" in line for line in lines)
    assert not [line for line in lines if "ymm" in line and "(%rsp" in line]


@pytest.mark.parametrize(
    ("kind", "rows", "inner", "left_alone"),
    [
        (V, 6, False, True),
        (V, 65, True, True),  # 4,160 bytes: no registers hold that
        (V, 64, True, False),
        (LoopKind.SERIAL, 6, False, False),
    ],
)
def test_llvm_may_not_repeat_what_is_around_vectors_unless_it_may_be_in_registers(
    check, kind, rows, inner, left_alone
):
    x, y = buffer("x", "float32", rows, 16), buffer("y", "float32", rows, 16)
    t = buffer("t", "float32", rows, 16)
    steps = [(t, x), (y, t)] if inner else [(y, x)]
    names = [(Var("a"), Var("b")), (Var("c"), Var("d"))]
    body = Block(
        tuple(
            For(a, rows, For(b, 16, Store(to, (a, b), Load(source, (a, b))), kind=kind))
            for (a, b), (to, source) in zip(names, steps, strict=False)
        )
    )
    made = function([x], [y], Allocate(t, body) if inner else body)
    module = ir.Module(context=ir.Context())
    Kernel(Unit(module), parse(serialise(made)), "copy").emit()
    assert str(module).count("!llvm.loop ") == (len(steps) if left_alone else 0)
    check(made, arrays_of(made, lambda dtype: np.arange(9, dtype=dtype.numpy)))
