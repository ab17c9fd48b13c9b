"""Random expressions over all types, compiled and interpreted."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farm.ir import DType, LoopKind
from farm.ir.expr import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Math,
    MathOp,
    const,
    select,
)

OPERATIONS = {
    "bool": (BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR),
    "float": (
        *(BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV),
        *(BinaryOp.MIN, BinaryOp.MAX),
    ),
    "int": tuple(op for op in BinaryOp if op is not BinaryOp.DIV),
}
DTYPES = st.sampled_from(list(DType))


@st.composite
def constants(draw, dtype):
    if dtype.is_float:
        return const(draw(st.floats(width=dtype.bits)), dtype)
    return const(draw(st.integers(dtype.min, dtype.max)), dtype)


@st.composite
def trees(draw, dtype, loads, variable, depth):
    """An expression of a type over the loads, the loop variable and constants."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        kind = draw(st.integers(0, 4))
        if kind == 0:
            return draw(constants(dtype))
        return Cast(dtype, variable) if kind == 1 else loads[dtype]

    def below(wanted=dtype):
        return draw(trees(wanted, loads, variable, depth - 1))

    kind = draw(st.integers(0, 5))
    if kind == 0:
        return select(below(DType.BOOL), below(), below())
    if kind == 1:
        return Cast(dtype, below(draw(DTYPES)))
    if dtype is DType.BOOL and kind < 4:
        other = draw(DTYPES)
        return Compare(draw(st.sampled_from(list(CompareOp))), below(other), below(other))
    if dtype.is_float and kind == 2:
        return Math(draw(st.sampled_from([MathOp.FLOOR, MathOp.SQRT])), below())
    family = "float" if dtype.is_float else "bool" if dtype is DType.BOOL else "int"
    return Binary(draw(st.sampled_from(OPERATIONS[family])), below(), below())


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_expressions_equal_interpreter(data, elementwise_function, values, check):
    kind = data.draw(st.sampled_from([LoopKind.VECTORIZED, LoopKind.UNROLLED, LoopKind.SERIAL]))
    size = data.draw(st.sampled_from([24, 2, 37])) if kind is LoopKind.VECTORIZED else 24
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    arrays = {f"in_{dtype}": rng.choice(values(dtype), size) for dtype in DType}

    def make(*elements):
        loads = dict(zip(DType, elements[:-1], strict=True))
        return data.draw(trees(data.draw(DTYPES), loads, elements[-1], 4))

    expressions = {f"out_{number}": make for number in range(5)}
    function = elementwise_function("random", arrays, expressions, kind)
    check(function, list(arrays.values()))
