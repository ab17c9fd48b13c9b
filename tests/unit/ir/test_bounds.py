"""Interval analysis against brute force: no value, and no element that a verified function touches, is outside."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.errors import InvalidFunction
from farm.ir.bounds import Interval, assume, interval
from farm.ir.buffer import Buffer
from farm.ir.dtype import DType
from farm.ir.expr import Binary, BinaryOp, Compare, CompareOp, Expr, Var, const
from farm.ir.function import Function, Role
from farm.ir.interpreter import _Compiler, interpret
from farm.ir.stmt import Block
from farm.ir.verifier import verify

X, Y = Var("x"), Var("y")
FACTS = {X: Interval(0, 4), Y: Interval(0, 2)}
NARROW = [DType.INT8, DType.UINT8, DType.INT16, DType.INT64, DType.UINT64]
OPS = [op for op in BinaryOp if op is not BinaryOp.DIV]


def narrow_integers(dtype: DType, depth: int) -> st.SearchStrategy[Expr]:
    """Expressions of a type that may wrap around, from casts of loop variables."""
    return st.integers(0, 2**32 - 1).map(lambda seed: _narrow(random.Random(seed), dtype, depth))


def _narrow(rng: random.Random, dtype: DType, depth: int) -> Expr:
    if depth == 0:
        number = rng.choice([rng.randint(dtype.min, dtype.max), rng.randint(0, 9), dtype.max])
        return rng.choice([X.astype(dtype), Y.astype(dtype), const(number, dtype)])
    if rng.random() < 0.25:
        return _narrow(rng, rng.choice(NARROW), depth - 1).astype(dtype)
    a, b = _narrow(rng, dtype, depth - 1), _narrow(rng, dtype, depth - 1)
    return Binary(rng.choice(OPS), a, b)


class _Endless:
    """A buffer without end that holds something at every offset, since these loads were not verified."""

    def __getitem__(self, offset: int) -> int:
        return offset * 7919 % 23 - 11


class _Watched(_Compiler):
    """The interpreter, but every index is checked on its own axis, so that no offset hides a mistake."""

    def _offset(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Callable[[dict[str, int]], Any]:
        plain = super()._offset(buffer, indices)
        thunks = [self.expr(index) for index in indices]

        def offset(env: dict[str, int]) -> Any:
            for thunk, extent in zip(thunks, buffer.shape, strict=True):
                assert 0 <= thunk(env) < extent, f"{buffer.name} {indices}"
            return plain(env)

        return offset


def evaluate(expr: Expr, env: dict[str, int], memory: dict[str, Any] | None = None) -> Any:
    """Return the value of an expression as the interpreter computes it."""
    nothing = Function("f", (), Block(()))
    return _Compiler(nothing, memory or {}, {}, ()).expr(expr)(env)


def environments() -> list[dict[str, int]]:
    return [{"x": x, "y": y} for x, y in itertools.product(range(5), range(3))]


@given(st.data())
def test_interval_of_random_expression_holds_every_value(
    integers: Callable[[tuple[str, ...], int], st.SearchStrategy[Expr]], data: st.DataObject
) -> None:
    expr = data.draw(integers(("x", "y"), 3))
    found = interval(expr, FACTS)
    memory: dict[str, Any] = {"source": _Endless(), "floats": _Endless()}
    for env in environments():
        assert found.low <= evaluate(expr, env, memory) <= found.high


@given(st.data(), st.sampled_from(NARROW))
def test_interval_of_expression_that_wraps_holds_every_value(
    data: st.DataObject, dtype: DType
) -> None:
    expr = data.draw(narrow_integers(dtype, 3))
    found = interval(expr, FACTS)
    for env in environments():
        assert found.low <= evaluate(expr, env) <= found.high
    assert dtype.min <= found.low <= found.high <= dtype.max


@settings(max_examples=60)
@given(st.data(), st.sampled_from(NARROW))
def test_assume_facts_hold_wherever_the_condition_does(data: st.DataObject, dtype: DType) -> None:
    sides = narrow_integers(dtype, 2)
    tests = st.builds(Compare, st.sampled_from(CompareOp), sides, sides)
    logic = st.sampled_from([BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR])
    condition = data.draw(
        tests | st.builds(Binary, logic, tests, tests | st.just(const(True, "bool")))
    )
    for env, holds in itertools.product(environments(), (True, False)):
        if evaluate(condition, env) is holds:
            for expr, known in assume(condition, FACTS, holds=holds).items():
                assert known.low <= evaluate(expr, env) <= known.high


@settings(max_examples=200)
@given(st.data())
def test_verified_function_never_leaves_a_buffer_on_any_axis(
    functions: st.SearchStrategy[Function], data: st.DataObject
) -> None:
    function = data.draw(functions)
    try:
        verify(function)
    except InvalidFunction:
        return
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "source": rng.integers(-9, 9, (3, 4)),
        "floats": np.array([np.nan, np.inf, -1e30, 2.5, -0.0], np.float32),
        "result": rng.integers(-(2**63), 2**63 - 1, (4, 3)),
    }
    memory = {name: array.reshape(-1).tolist() for name, array in arrays.items()}
    try:
        _Watched(function, memory, {}, ()).stmt(function.body)({})
    except InvalidFunction:  # it reads an element of its own buffer that it has not written
        return
    (result,) = interpret(function, list(arrays.values()))
    assert result.reshape(-1).tolist() == memory["result"]
    assert function.params[2].role is Role.INOUT


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (X * 16 + Y, (0, 66)),
        (X // 2, (0, 2)),
        (X % 3, (0, 2)),
        (X % 8, (0, 4)),
        ((X - 7) % 3, (0, 2)),
        (X - Y, (-2, 4)),
        ((X - 2) * (Y - 1), (-2, 2)),
        (X & 3, (0, 3)),
        (X >> 1, (0, 2)),
        ((X - 9) // 2, (-5, -3)),
        ((X + 127).astype("int8"), (-128, 127)),
        ((X + 123).astype("int8"), (123, 127)),
        (X.astype("float32").astype("int8"), (-128, 127)),
        ((X < 2).astype("int64"), (0, 1)),
    ],
)
def test_interval_of_common_index_is_tight(expr: Expr, expected: tuple[int, int]) -> None:
    assert interval(expr, FACTS) == Interval(*expected)


def test_assume_conjunction_narrows_what_it_speaks_of() -> None:
    facts = assume((X + Y < 5) & (X > 1), FACTS)
    assert (facts[X + Y], facts[X]) == (Interval(0, 4), Interval(2, 4))
    negated = assume((X + Y >= 5) | (X <= 1), FACTS, holds=False)
    assert (negated[X + Y], negated[X]) == (Interval(0, 4), Interval(2, 4))
    assert assume((X < 1) | (X > 3), FACTS) == FACTS


@pytest.mark.parametrize("op", OPS)
def test_interval_where_conditions_contradict_each_other_is_of_no_use_but_no_error(
    op: BinaryOp,
) -> None:
    x = X
    every = [x >= low for low in range(7)] + [x < high for high in range(-2, 5)]
    for one, other in itertools.product(every, repeat=2):
        facts = assume(one & other, FACTS)
        for a, b in itertools.product((X, Y, const(7, "int64"), X - Y), repeat=2):
            interval(Binary(op, a, b), facts)
