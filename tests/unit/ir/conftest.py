"""Random functions: small loop nests with affine indices, guards, selects and loads, right and wrong ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from farm.ir.buffer import Buffer
from farm.ir.dtype import DType
from farm.ir.expr import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Load,
    Math,
    MathOp,
    Select,
    Var,
    const,
)
from farm.ir.function import Function, Param, Role
from farm.ir.stmt import Allocate, Block, For, If, Span, Stmt, Store

SOURCE = Buffer("source", DType.INT64, (3, 4), 8)
FLOATS = Buffer("floats", DType.FLOAT32, (5,), 16)
RESULT = Buffer("result", DType.INT64, (4, 3), 8)
INNER = Buffer("inner", DType.INT64, (6,), 8)
INTEGER_OPS = [
    op for op in BinaryOp if op not in (BinaryOp.DIV, BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR)
]
SPANS = st.none() | st.builds(Span, st.sampled_from(["a.py", "b.py"]), st.integers(1, 99))


def _comparison(integers: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    plain = st.builds(Compare, st.sampled_from(CompareOp), integers, integers)
    logic = st.sampled_from([BinaryOp.AND, BinaryOp.OR])
    return (
        plain
        | st.builds(Binary, logic, plain, plain)
        | plain.map(lambda test: Binary(BinaryOp.XOR, test, const(True, "bool")))
    )


@st.composite
def _integers(draw: st.DrawFn, names: tuple[str, ...], depth: int) -> Expr:
    """An int64 expression of loop variables, small constants and loads."""
    leaf = st.integers(-4, 6).map(lambda value: const(value, "int64"))
    if names:
        leaf = leaf | st.sampled_from(names).map(Var)
    if depth == 0:
        return draw(leaf)
    below = _integers(names, depth - 1)
    kind = draw(st.integers(0, 7))
    if kind <= 3:
        return Binary(draw(st.sampled_from(INTEGER_OPS)), draw(below), draw(below))
    if kind == 4:
        return Select(draw(_comparison(below)), draw(below), draw(below))
    if kind == 5:
        return Load(SOURCE, (_clamp(draw(below), 3), draw(below)))
    if kind == 6:
        narrow = draw(st.sampled_from([DType.INT8, DType.UINT8, DType.UINT64]))
        return Cast(DType.INT64, Cast(narrow, draw(below)))
    number = Math(draw(st.sampled_from(MathOp)), Load(FLOATS, (_clamp(draw(below), 5),)))
    return Cast(DType.INT64, number)


def _clamp(index: Expr, extent: int) -> Expr:
    low = Binary(BinaryOp.MAX, index, const(0, "int64"))
    return Binary(BinaryOp.MIN, low, const(extent - 1, "int64"))


@st.composite
def _index(draw: st.DrawFn, names: tuple[str, ...], extent: int) -> Expr:
    """An index that is often, but not always, inside."""
    value = draw(_integers(names, draw(st.integers(0, 2))))
    return draw(
        st.sampled_from(
            [
                value,
                _clamp(value, extent),
                Binary(BinaryOp.FLOORMOD, value, const(extent, "int64")),
            ]
        )
    )


@st.composite
def _stmt(draw: st.DrawFn, names: tuple[str, ...], depth: int, inner: bool, path: str = "") -> Stmt:
    kind = draw(st.integers(0, 4)) if depth else 0
    span = draw(SPANS)
    if kind in (1, 2):
        name = f"v{path}"  # the path to a statement makes it unique
        body = draw(_stmt((*names, name), depth - 1, inner, f"{path}0"))
        return For(Var(name), draw(st.integers(1, 5)), body, span=span)
    if kind == 3:
        test = draw(_comparison(_integers(names, 1)))
        then = draw(_stmt(names, depth - 1, inner, f"{path}0"))
        otherwise = draw(st.none() | _stmt(names, depth - 1, inner, f"{path}1"))
        return If(test, then, otherwise, span=span)
    if kind == 4:
        count = draw(st.integers(1, 3))
        parts = (draw(_stmt(names, depth - 1, inner, f"{path}{i}")) for i in range(count))
        return Block(tuple(parts), span=span)
    buffer = draw(st.sampled_from([RESULT, INNER] if inner else [RESULT]))
    indices = tuple(draw(_index(names, extent)) for extent in buffer.shape)
    return Store(buffer, indices, draw(_integers(names, 2)), span=span)


@st.composite
def _function(draw: st.DrawFn) -> Function:
    inner = draw(st.booleans())
    body = draw(_stmt((), 4, inner))
    if inner:
        body = Allocate(INNER, body, span=draw(SPANS))
    roles = ((SOURCE, Role.INPUT), (FLOATS, Role.INPUT), (RESULT, Role.INOUT))
    params = tuple(Param(buffer, role) for buffer, role in roles)
    return Function("random", params, body, span=draw(SPANS))


@pytest.fixture(scope="session")
def functions() -> st.SearchStrategy[Function]:
    """Return a strategy of functions; those that verify have all inputs they need."""
    return _function()


@pytest.fixture(scope="session")
def integers() -> Callable[[tuple[str, ...], int], st.SearchStrategy[Expr]]:
    """Return a maker of strategies of int64 expressions, from loop variables and a depth."""
    return _integers


@pytest.fixture
def store_function() -> Callable[..., Function]:
    """Return a maker of the function that stores a value, a constant by default, to ``out``."""

    def make(value: Expr, *inputs: Buffer) -> Function:
        out = Buffer("out", value.dtype, (1,), value.dtype.size_bytes)
        params = (*(Param(each, Role.INPUT) for each in inputs), Param(out, Role.OUTPUT))
        return Function("store", params, Store(out, (Const(0, DType.INT64),), value))

    return make
