"""Arithmetic on Python numbers, as the IR defines it.

Owns: what each operation, conversion and function of `farm.ir.expr` gives for every operand.
Does not own: loops, buffers and evaluation order (`farm.ir.interpreter`).

Invariant: total: no operand makes an operation raise; every result is a value of its type.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from farm.ir.dtype import DType, Kind
from farm.ir.expr import BinaryOp, MathOp, Scalar
from farm.ir.rounding import round_float, round_integer


def wrap(value: int, dtype: DType) -> int:
    """Return the value of an integer type that equals `value` modulo 2**bits."""
    low = value & ((1 << dtype.bits) - 1)
    return low - (1 << dtype.bits) if dtype.kind is Kind.INT and low >> (dtype.bits - 1) else low


_INTEGER: dict[BinaryOp, Callable[[int, int], int]] = {
    BinaryOp.ADD: operator.add,
    BinaryOp.SUB: operator.sub,
    BinaryOp.MUL: operator.mul,
    BinaryOp.FLOORDIV: lambda a, b: a // b if b else 0,
    BinaryOp.FLOORMOD: lambda a, b: a % b if b else 0,
    BinaryOp.AND: operator.and_,
    BinaryOp.OR: operator.or_,
    BinaryOp.XOR: operator.xor,
}


def _divide(a: float, b: float) -> float:
    if b:
        return a / b
    if a == 0 or math.isnan(a) or math.isnan(b):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


_FLOAT: dict[BinaryOp, Callable[[float, float], float]] = {
    BinaryOp.ADD: operator.add,
    BinaryOp.SUB: operator.sub,
    BinaryOp.MUL: operator.mul,
    BinaryOp.DIV: _divide,
}


def binary_function(op: BinaryOp, dtype: DType) -> Callable[[Any, Any], Scalar]:
    """Return the operation on Python numbers.

    Notes
    -----
    Results of narrower floats are computed in float64 and rounded once: for these operations that equals their
    arithmetic (Figueroa, "When is double rounding innocuous?", 1995).
    """
    if op is BinaryOp.MIN:
        return lambda a, b: a if a < b else b
    if op is BinaryOp.MAX:
        return lambda a, b: a if a > b else b
    if dtype.is_float:
        function = _FLOAT[op]
        return (
            function if dtype is DType.FLOAT64 else lambda a, b: round_float(function(a, b), dtype)
        )
    mask = dtype.bits - 1
    if op is BinaryOp.SHL:
        return lambda a, b: wrap(a << (b & mask), dtype)
    if op is BinaryOp.SHR:
        return lambda a, b: a >> (b & mask)
    exact = _INTEGER[op]
    if dtype is DType.BOOL:
        return exact
    low, high = dtype.min, dtype.max

    def wrapped(a: int, b: int) -> int:
        value = exact(a, b)
        return value if low <= value <= high else wrap(value, dtype)

    return wrapped


def caster(source: DType, dtype: DType) -> Callable[[Any], Scalar]:
    """Return the conversion of Python numbers of `source` to `dtype`."""
    if dtype is DType.BOOL:
        return bool
    if dtype.is_float:
        if source.is_float:
            return lambda value: round_float(value, dtype)
        return lambda value: round_integer(int(value), dtype)
    if source.is_float:
        low, high = dtype.min, dtype.max
        return lambda value: _saturate(value, low, high)
    return lambda value: wrap(int(value), dtype)


def _saturate(value: float, low: int, high: int) -> int:
    if math.isnan(value):
        return 0
    return low if value <= low else high if value >= high else int(value)


_MATH: dict[MathOp, Callable[[float], float]] = {
    MathOp.EXP: math.exp,
    MathOp.SQRT: math.sqrt,
    MathOp.TANH: math.tanh,
    MathOp.FLOOR: math.floor,
}


def math_function(op: MathOp, dtype: DType) -> Callable[[float], float]:
    """Return the function on Python floats: computed in float64, rounded once."""
    function = _MATH[op]

    def compute(value: float) -> float:
        if math.isnan(value) or (op is MathOp.FLOOR and (math.isinf(value) or value == 0)):
            return value
        if op is MathOp.SQRT and value < 0:
            return math.nan
        try:
            return round_float(float(function(value)), dtype)
        except OverflowError:
            return math.inf

    return compute
