"""What operations mean, value by value, against numpy for every operation and type."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.core.elements import is_float
from farm.ir.arithmetic import binary_function, caster, math_function, round_float, wrap
from farm.ir.dtype import DType
from farm.ir.expr import BinaryOp, MathOp

INTEGERS = [dtype for dtype in DType if dtype.is_integer]
HALVES = [DType.FLOAT16, DType.BFLOAT16]
FLOATS = [*HALVES, DType.FLOAT32, DType.FLOAT64]
Array = np.ndarray[Any, Any]
MIN_MAX = {
    BinaryOp.MIN: lambda a, b: np.where(a < b, a, b),
    BinaryOp.MAX: lambda a, b: np.where(a > b, a, b),
}


def samples(dtype: DType) -> Array:
    """Adversarial values of a type: its ends, powers of two and their neighbours, odd ones."""
    if dtype is DType.BOOL:
        return np.array([False, True])
    if dtype.is_float:
        info = ml_dtypes.finfo(dtype.numpy)
        magnitudes = [0.0, info.tiny, info.smallest_subnormal, info.eps, 0.1, 0.5, 1.0, 1.5, 2.5]
        magnitudes += [3.0, 7.7, 127.5, 2.0**24 + 2, 2.0**31, 2.0**63, info.max, math.inf]
        with np.errstate(over="ignore"):
            return np.array([*magnitudes, *(-m for m in magnitudes), math.nan], dtype.numpy)
    powers = {1 << bit for bit in range(0, dtype.bits, 3)} | {dtype.max, 3, 7, 100}
    near = {sign * p + d for p in powers for d in (-1, 0, 1) for sign in (1, -1)} | {dtype.min}
    return np.array(sorted(v for v in near if dtype.min <= v <= dtype.max), dtype.numpy)


BITS = np.arange(1 << 16, dtype=np.uint16)
FINITE = {
    DType.FLOAT16: np.unique(BITS[BITS & 0x7C00 != 0x7C00].view(np.float16)).astype(np.float64),
    DType.BFLOAT16: np.unique((BITS[BITS & 0x7F80 != 0x7F80].astype("u4") << 16).view("f4")).astype(
        np.float64
    ),
}
"""All values of a type of 16 bits, sorted."""


def nearest(value: Fraction, dtype: DType) -> float:
    """The value of a type that is nearest: of two equally near ones that with the even significand."""
    finite = FINITE[dtype]
    beyond = Fraction(finite[-1]) + (Fraction(finite[-1]) - Fraction(finite[-2])) / 2
    if abs(value) >= beyond:
        return math.inf if value > 0 else -math.inf
    at = int(np.searchsorted(finite, float(value)))
    around = [Fraction(x) for x in finite[max(at - 2, 0) : at + 2].tolist()]
    least = min(abs(x - value) for x in around)
    best = [x for x in around if abs(x - value) == least]
    bits = [int(np.array(float(x), dtype.numpy).view(np.uint16)) for x in best]
    return float(best[bits.index(min(bits, key=lambda b: b & 1))])


def pairs(dtype: DType) -> tuple[Array, Array]:
    a, b = np.meshgrid(samples(dtype), samples(dtype))
    return a.reshape(-1), b.reshape(-1)


def shift_right(a: Array, b: Array) -> Array:
    return np.right_shift(a, b & (a.dtype.itemsize * 8 - 1))


def shift_left(a: Array, b: Array) -> Array:
    return np.left_shift(a, b & (a.dtype.itemsize * 8 - 1))


INTEGER_ORACLES = MIN_MAX | {
    BinaryOp.ADD: np.add,
    BinaryOp.SUB: np.subtract,
    BinaryOp.MUL: np.multiply,
    BinaryOp.FLOORDIV: np.floor_divide,
    BinaryOp.FLOORMOD: np.remainder,
    BinaryOp.AND: np.bitwise_and,
    BinaryOp.OR: np.bitwise_or,
    BinaryOp.XOR: np.bitwise_xor,
    BinaryOp.SHL: shift_left,
    BinaryOp.SHR: shift_right,
}
FLOAT_ORACLES = MIN_MAX | {
    BinaryOp.ADD: np.add,
    BinaryOp.SUB: np.subtract,
    BinaryOp.MUL: np.multiply,
    BinaryOp.DIV: np.divide,
}


def assert_same_bits(found: list[Any], expected: Array, *operands: Array) -> None:
    """Compare with the sign of zero; any NaN equals any NaN."""
    got = np.array(found, expected.dtype)
    with np.errstate(invalid="ignore"):  # bfloat16 says it of a NaN
        same = got == expected
        if is_float(got.dtype):
            same = (same & (np.signbit(got) == np.signbit(expected))) | (
                np.isnan(got) & np.isnan(expected)
            )
    wrong = np.flatnonzero(~same)[:5]
    assert not wrong.size, [(*(x[i] for x in operands), got[i], expected[i]) for i in wrong]


def apply(function: Any, *operands: Array) -> list[Any]:
    return [function(*values) for values in zip(*(x.tolist() for x in operands), strict=True)]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", INTEGER_ORACLES)
def test_integer_operation_equals_numpy(op: BinaryOp, dtype: DType) -> None:
    a, b = pairs(dtype)
    with np.errstate(all="ignore"):
        expected = INTEGER_ORACLES[op](a, b)
    found = apply(binary_function(op, dtype), a, b)
    assert all(type(value) is int and dtype.min <= value <= dtype.max for value in found)
    assert_same_bits(found, expected, a, b)


def test_integer_division_by_zero_gives_zero_and_signs_follow_the_floor() -> None:
    divide = binary_function(BinaryOp.FLOORDIV, DType.INT8)
    modulo = binary_function(BinaryOp.FLOORMOD, DType.INT8)
    assert [divide(5, 0), modulo(5, 0), modulo(-128, 0), divide(-128, -1)] == [0, 0, 0, -128]
    assert [(divide(a, b), modulo(a, b)) for a, b in ((7, 2), (-7, 2), (7, -2), (-7, -2))] == [
        (3, 1),
        (-4, 1),
        (-4, -1),
        (3, -1),
    ]


def test_shift_beyond_the_width_takes_the_amount_modulo_it() -> None:
    left = binary_function(BinaryOp.SHL, DType.INT8)
    right = binary_function(BinaryOp.SHR, DType.INT8)
    assert [left(1, 7), left(1, 8), left(1, 9), left(3, 7), left(1, -1)] == [-128, 1, 2, -128, -128]
    assert [right(-128, 7), right(-128, 8), right(-1, 9), right(64, -2)] == [-1, -128, -1, 1]
    assert binary_function(BinaryOp.SHR, DType.UINT8)(255, 9) == 127


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", FLOAT_ORACLES)
def test_float_operation_equals_numpy_bit_for_bit(op: BinaryOp, dtype: DType) -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**dtype.bits, (2, 3000), dtype=f"uint{dtype.bits}")
    random = bits.view(dtype.numpy)
    a, b = (np.concatenate(both) for both in zip(pairs(dtype), random, strict=True))
    with np.errstate(all="ignore"):
        expected = FLOAT_ORACLES[op](a, b)
    assert_same_bits(apply(binary_function(op, dtype), a, b), expected, a, b)


@pytest.mark.parametrize("dtype", FLOATS)
def test_minimum_and_maximum_of_nan_and_zeros_give_the_second(dtype: DType) -> None:
    for op in (BinaryOp.MIN, BinaryOp.MAX):
        function = binary_function(op, dtype)
        assert function(math.nan, 1.0) == 1.0
        assert math.isnan(function(1.0, math.nan))
        assert math.copysign(1, function(0.0, -0.0)) == -1
        assert math.copysign(1, function(-0.0, 0.0)) == 1


@pytest.mark.parametrize("op", [BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR])
def test_logic_of_bools_equals_numpy(op: BinaryOp) -> None:
    a, b = pairs(DType.BOOL)
    found = apply(binary_function(op, DType.BOOL), a, b)
    assert all(type(value) is bool for value in found)
    assert_same_bits(found, INTEGER_ORACLES[op](a, b), a, b)


@pytest.mark.parametrize("dtype", DType)
def test_cast_from_integers_equals_numpy(dtype: DType) -> None:
    for source in (*INTEGERS, DType.BOOL):
        values = samples(source)
        found = apply(caster(source, dtype), values)
        with np.errstate(over="ignore"):
            assert_same_bits(found, values.astype(dtype.numpy), values)


@pytest.mark.parametrize("dtype", HALVES)
@given(value=st.integers(-(2**63), 2**64 - 1) | st.integers(-70_000, 70_000))
def test_cast_of_integer_to_a_float_of_16_bits_is_the_nearest(dtype: DType, value: int) -> None:
    source = DType.INT64 if value < 2**63 else DType.UINT64
    assert caster(source, dtype)(value) == nearest(Fraction(value), dtype)


@pytest.mark.parametrize("dtype", HALVES)
@given(bits=st.integers(0, 2**16 - 2), part=st.sampled_from([0, 1, 2, 3]), near=st.integers(-2, 2))
def test_rounding_to_16_bits_around_every_tie_is_the_nearest(
    dtype: DType, bits: int, part: int, near: int
) -> None:
    ends = np.array([bits, bits + 1], np.uint16).view(dtype.numpy).astype(np.float64)
    if np.isfinite(ends).all():
        value = float(ends[0] + (ends[1] - ends[0]) * part / 4) * (1 + near * 2.0**-52)
        assert round_float(value, dtype) == nearest(Fraction(value), dtype)


@pytest.mark.parametrize("dtype", HALVES)
@given(value=st.floats())
def test_rounding_of_any_float_to_16_bits_is_the_nearest(dtype: DType, value: float) -> None:
    rounded = round_float(value, dtype)
    if math.isfinite(value):
        assert rounded == nearest(Fraction(value), dtype)
        assert math.copysign(1, rounded) == math.copysign(1, value)
    else:
        assert repr(rounded) == repr(value)


@pytest.mark.parametrize("source", FLOATS)
def test_cast_from_floats_to_float_and_bool_equals_numpy(source: DType) -> None:
    values = samples(source)
    with np.errstate(all="ignore"):
        for dtype in (*FLOATS, DType.BOOL):
            found = apply(caster(source, dtype), values)
            assert_same_bits(found, values.astype(dtype.numpy), values)


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_cast_from_float_to_integer_truncates_and_saturates(source: DType, dtype: DType) -> None:
    cast = caster(source, dtype)
    assert [cast(math.nan), cast(math.inf), cast(-math.inf)] == [0, dtype.max, dtype.min]
    for value in samples(source)[np.isfinite(samples(source))].tolist():
        exact = math.trunc(Fraction(value))
        assert cast(value) == min(max(exact, dtype.min), dtype.max)
    assert [cast(2.9), cast(-0.9)] == [2, 0]


@given(st.integers(-(2**63), 2**64 - 1))
def test_cast_of_wide_integer_to_float32_rounds_once(value: int) -> None:
    source = DType.INT64 if value < 2**63 else DType.UINT64
    expected = np.array([value], source.numpy).astype(np.float32)[0]
    assert caster(source, DType.FLOAT32)(value) == float(expected)


def test_cast_of_integer_just_above_a_tie_rounds_up() -> None:
    # through float64 this would become the tie 2**60 + 2**36, and go down to the even 2**60
    assert caster(DType.INT64, DType.FLOAT32)(2**60 + 2**36 + 1) == 2.0**60 + 2.0**37


@pytest.mark.parametrize("dtype", FLOATS)
def test_square_root_and_floor_equal_numpy_bit_for_bit(dtype: DType) -> None:
    bits = np.random.default_rng(2).integers(0, 2**dtype.bits, 3000, dtype=f"uint{dtype.bits}")
    values = np.concatenate([samples(dtype), bits.view(dtype.numpy)])
    for op, oracle in ((MathOp.SQRT, np.sqrt), (MathOp.FLOOR, np.floor)):
        with np.errstate(all="ignore"):
            assert_same_bits(apply(math_function(op, dtype), values), oracle(values), values)


@pytest.mark.parametrize("op", [MathOp.EXP, MathOp.TANH])
def test_exponential_and_tangent_are_near_numpy_and_total(op: MathOp) -> None:
    oracle = {MathOp.EXP: np.exp, MathOp.TANH: np.tanh}[op]
    for dtype in HALVES:
        values = np.concatenate([samples(dtype), np.linspace(-110, 90, 999).astype(dtype.numpy)])
        with np.errstate(all="ignore"):
            expected = oracle(values.astype(np.float64)).astype(dtype.numpy)
        assert_same_bits(apply(math_function(op, dtype), values), expected, values)
    for dtype in (DType.FLOAT32, DType.FLOAT64):
        values = np.concatenate([samples(dtype), np.linspace(-110, 90, 999, dtype=dtype.numpy)])
        with np.errstate(all="ignore"):
            expected = oracle(values)
        found = np.array(apply(math_function(op, dtype), values), dtype.numpy)
        np.testing.assert_array_max_ulp(found[:-1], expected[:-1], 4)


@given(st.integers(-(2**70), 2**70), st.sampled_from(INTEGERS))
def test_wrap_gives_the_congruent_value_in_range(value: int, dtype: DType) -> None:
    wrapped = wrap(value, dtype)
    assert dtype.min <= wrapped <= dtype.max
    assert (wrapped - value) % 2**dtype.bits == 0


@given(st.floats())
def test_round_float_equals_numpy(value: float) -> None:
    with np.errstate(all="ignore"):
        expected = np.array([np.float32(value)])
    assert_same_bits([round_float(value, DType.FLOAT32)], expected)
