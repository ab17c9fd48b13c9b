"""Every operation on every type that has it, on awkward values, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from farm.ir import DType, LoopKind
from farm.ir.expr import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Math,
    MathOp,
    const,
    select,
)

INTEGERS = [dtype for dtype in DType if dtype.is_integer]
FLOATS = [dtype for dtype in DType if dtype.is_float]
HALVES = [dtype for dtype in DType if dtype.is_half]
WIDE = [dtype for dtype in DType if dtype.size_bytes >= 4]

BITS = (BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR)
ARITHMETIC = (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX)
ON_INTEGERS = (
    *(*ARITHMETIC, *BITS),
    *(BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.SHL, BinaryOp.SHR),
)


def operations_of(dtype):
    if dtype is DType.BOOL:
        return BITS
    return ON_INTEGERS if dtype.is_integer else (*ARITHMETIC, BinaryOp.DIV)


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_binary_operation_of_awkward_pairs_equals_interpreter(
    dtype, elementwise_function, pairs, check
):
    a, b = pairs(dtype)
    expressions = {
        f"{op.value}_": lambda x, y, i, op=op: Binary(op, x, y) for op in operations_of(dtype)
    }
    check(elementwise_function("operations", {"a": a, "b": b}, expressions), [a, b])


@pytest.mark.parametrize(
    "dtype", [DType.INT8, DType.UINT16, *INTEGERS[2:4], *INTEGERS[6:]], ids=str
)
def test_division_of_awkward_pairs_without_the_instruction_equals_interpreter(
    dtype, elementwise_function, pairs, check_in_software
):
    a, b = pairs(dtype)
    expressions = {
        f"{op.value}_": lambda x, y, i, op=op: Binary(op, x, y)
        for op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD)
    }
    check_in_software(elementwise_function("divisions", {"a": a, "b": b}, expressions), [a, b])


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_comparison_of_awkward_pairs_equals_interpreter(dtype, elementwise_function, pairs, check):
    a, b = pairs(dtype)
    expressions = {op.value: lambda x, y, i, op=op: Compare(op, x, y) for op in CompareOp}
    check(elementwise_function("comparisons", {"a": a, "b": b}, expressions), [a, b])


@pytest.mark.parametrize("source", list(DType), ids=str)
def test_cast_of_awkward_values_equals_interpreter(source, elementwise_function, values, check):
    a = values(source)
    expressions = {f"to_{d}": lambda x, i, d=d: Cast(d, x) for d in DType}
    check(elementwise_function("casts", {"a": a}, expressions), [a])


@pytest.mark.parametrize("source", [DType.INT64, DType.UINT64], ids=str)
def test_cast_of_64_bits_at_rounding_boundaries_equals_interpreter(
    source, elementwise_function, check_all_ways
):
    rng = np.random.default_rng(2)
    shifts = rng.integers(0, 63, 2000)
    near = (np.uint64(1) << shifts.astype(np.uint64)) + rng.integers(-2, 3, 2000).astype(np.uint64)
    halves = near | (np.uint64(1) << rng.integers(0, 63, 2000).astype(np.uint64))
    a = np.concatenate([near, halves]).view(source.numpy)
    expressions = {f"to_{d}": lambda x, i, d=d: Cast(d, x) for d in FLOATS}
    check_all_ways(elementwise_function("casts", {"a": a}, expressions), [a])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("kind", [LoopKind.SERIAL, LoopKind.VECTORIZED])
def test_floats_of_16_bits_equal_the_interpreter_in_every_way_to_compute_them(
    dtype, kind, elementwise_function, pairs, check_all_ways
):
    """All operations at once: a chain of them must round after each."""
    bits = np.random.default_rng(5).integers(0, 1 << 16, (2, 800)).astype(np.uint16)
    a, b = (np.concatenate(both) for both in zip(pairs(dtype), bits.view(dtype.numpy), strict=True))
    made = {f"{op.value}_": lambda x, y, i, op=op: Binary(op, x, y) for op in operations_of(dtype)}
    made["chain"] = lambda x, y, i: (x * y + x) * const(0.1, dtype) - y
    made["square_root"] = lambda x, y, i: Math(MathOp.SQRT, x * y)
    made["moved"] = lambda x, y, i: x
    made["reduced"] = lambda x, y, i: (x.astype("float32") * y.astype("float32")).astype(dtype)
    made["less"] = lambda x, y, i: Compare(CompareOp.LT, x, y)
    made["whole"] = lambda x, y, i: Cast(DType.INT16, x)
    check_all_ways(elementwise_function("halves", {"a": a, "b": b}, made, kind), [a, b])


@pytest.mark.parametrize("source", WIDE, ids=str)
def test_cast_to_16_bits_at_rounding_boundaries_equals_interpreter(
    source, elementwise_function, check_all_ways
):
    """Around each tie between floats of 16 bits that lie at random, and at ends and beyond them."""
    rng = np.random.default_rng(8)
    wide = np.array([], np.float64)
    for half in HALVES:
        bits = rng.integers(0, 1 << 15, 700).astype(np.uint16)
        low, high = (b.view(half.numpy).astype(np.float64) for b in (bits, bits + 1))
        low, high = (v[np.isfinite(low) & np.isfinite(high)] for v in (low, high))
        ties = (low + high) / 2
        wide = np.concatenate(
            [wide, ties, *(ties * (1 + d * 2.0**-e) for d in (1, -1) for e in (52, 23))]
        )
    wide = np.concatenate([wide, -wide, [3.3961775e38, 65520.0, 65519.99999999999, 1e300, 5e-324]])
    if source.is_float:
        with np.errstate(all="ignore"):
            a = wide.astype(source.numpy)
    else:
        whole = [int(v) + d for v in wide if abs(v) < 2**64 for d in (-1, 0, 1)]
        a = np.array([v for v in whole if source.min <= v <= source.max], source.numpy)
    expressions = {f"to_{d}": lambda x, i, d=d: Cast(d, x) for d in HALVES}
    check_all_ways(elementwise_function("casts", {"a": a}, expressions), [a])
    check_all_ways(
        elementwise_function("casts", {"a": a[:999]}, expressions, LoopKind.VECTORIZED), [a[:999]]
    )


@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_cast_of_floats_around_integer_limits_equals_interpreter(
    source, elementwise_function, check_all_ways
):
    limits = [float(n) for d in INTEGERS for n in (d.min, d.max, d.max + 1, d.max // 2)]
    with np.errstate(over="ignore"):
        steps = [np.array(limits, source.numpy)]
    for towards in (np.inf, -np.inf):
        last = steps[0]
        for _ in range(3):
            last = np.nextafter(last, source.numpy.type(towards))
            steps.append(last)
    steps += [steps[0] + source.numpy.type(fraction) for fraction in (0.5, -0.5, 1, -1, 0.75)]
    a = np.concatenate(steps)
    expressions = {f"to_{d}": lambda x, i, d=d: Cast(d, x) for d in INTEGERS}
    check_all_ways(elementwise_function("casts", {"a": a}, expressions), [a])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_division_by_constant_equals_interpreter(dtype, elementwise_function, values, check):
    a = values(dtype)
    divisors = (1, 3, 8, 100, 0, -1, -7, dtype.min)
    expressions = {}
    for number, divisor in enumerate(d for d in divisors if dtype.min <= d <= dtype.max):
        for op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD):
            name = f"{op.value}_{number}"
            expressions[name] = lambda x, i, op=op, d=divisor: Binary(op, x, const(d, dtype))
    check(elementwise_function("divisions", {"a": a}, expressions), [a])


def test_division_of_bounded_loop_variable_equals_interpreter(elementwise_function, check_all_ways):
    a = np.arange(700, dtype=np.int64)
    shift = const(-350, "int64")
    expressions = {
        "plain": lambda x, i: i // 7 + i % 7 * 1000,
        "shifted": lambda x, i: (i + shift) // 9 + (i + shift) % 9 * 1000,
        "by_variable": lambda x, i: x // (i + 1) + x % (i - 3),
        "beyond_32_bits": lambda x, i: (i * (1 << 40)) // 1000003 + (i * (1 << 40)) % (1 << 33),
    }
    check_all_ways(elementwise_function("divisions", {"a": a}, expressions), [a])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_exact_functions_of_awkward_values_equal_interpreter(
    dtype, elementwise_function, values, check_all_ways
):
    rng = np.random.default_rng(4)
    a = np.concatenate([values(dtype), (rng.standard_normal(500) * 100).astype(dtype.numpy)])
    expressions = {op.value: lambda x, i, op=op: Math(op, x) for op in (MathOp.FLOOR, MathOp.SQRT)}
    check_all_ways(elementwise_function("functions", {"a": a}, expressions), [a])


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_select_of_awkward_pairs_equals_interpreter(dtype, elementwise_function, pairs, check):
    a, b = pairs(dtype)
    expressions = {
        "of_loads": lambda x, y, i: select(Compare(CompareOp.LT, x, y), x, y),
        "of_constants": lambda x, y, i: select(
            Compare(CompareOp.LE, y, x), const(1, dtype), const(0, dtype)
        ),
        "negated": lambda x, y, i: select(~Compare(CompareOp.EQ, y, x), x, const(1, dtype)),
    }
    check(elementwise_function("selects", {"a": a, "b": b}, expressions), [a, b])


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_constant_of_every_awkward_value_is_stored_exactly(
    dtype, elementwise_function, values, check
):
    a = np.zeros(1, np.int8)
    known = [value for value in values(dtype).tolist() if value == value][:32]
    expressions = {
        f"c{number}": lambda x, i, v=value: Const(v, dtype) for number, value in enumerate(known)
    }
    check(elementwise_function("constants", {"a": a}, expressions), [a])


def test_nan_and_infinite_constants_are_stored(elementwise_function, check):
    a = np.zeros(1, np.int8)
    expressions = {
        f"{name}_{dtype}": lambda x, i, v=value, d=dtype: const(v, d)
        for name, value in (("nan", np.nan), ("inf", np.inf), ("minus", -np.inf))
        for dtype in FLOATS
    }
    check(elementwise_function("constants", {"a": a}, expressions), [a])


def test_sums_and_products_are_not_contracted(elementwise_function, check):
    rng = np.random.default_rng(5)
    for dtype in (np.float32, np.float64):
        a, b, c = (rng.standard_normal(4096).astype(dtype) for _ in range(3))
        expressions = {"d": lambda x, y, z, i: x * y + z, "e": lambda x, y, z, i: z - x * y}
        function = elementwise_function("fused", {"a": a, "b": b, "c": c}, expressions)
        check(function, [a, b, c])


def test_bool_in_memory_other_than_one_counts_as_true(elementwise_function, run):
    a = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    function = elementwise_function("casts", {"a": a}, {"b": lambda x, i: x.astype("int32")})
    assert run(function, [a])[0].tolist() == [0, 1, 1, 1]
