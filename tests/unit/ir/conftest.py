"""Random functions: small loop nests with affine indices, guards, selects and loads, right and wrong ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import strategies as st

from farm.ir.buffer import Buffer, Scope
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
from farm.ir.function import FastMath, Function, Param, Role
from farm.ir.stmt import Allocate, Block, For, If, LoopKind, Span, Stmt, Store, map_children

SOURCE = Buffer("source", DType.INT64, (3, 4), 8)
FLOATS = Buffer("floats", DType.FLOAT32, (5,), 16)
RESULT = Buffer("result", DType.INT64, (4, 3), 8)
INNER = Buffer("inner", DType.INT64, (6,), 8)
INTEGER_OPS = [
    op for op in BinaryOp if op not in (BinaryOp.DIV, BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR)
]


class _Maker:
    """Makes nodes from a seed: far faster than composed strategies, so that many examples fit in a second."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def span(self) -> Span | None:
        """Return a place in a source, or none."""
        return self.random.choice([None, Span("a.py", self.random.randint(1, 99))])

    def comparison(self, names: tuple[str, ...], depth: int) -> Expr:
        """Return a condition."""
        kind = self.random.randrange(5)
        if kind == 0:
            return Binary(BinaryOp.XOR, self.comparison(names, depth), const(True, "bool"))
        if kind == 1:
            logic = self.random.choice([BinaryOp.AND, BinaryOp.OR])
            return Binary(logic, self.comparison(names, depth), self.comparison(names, depth))
        op = self.random.choice(list(CompareOp))
        return Compare(op, self.integer(names, depth), self.integer(names, depth))

    def integer(self, names: tuple[str, ...], depth: int) -> Expr:
        """Return an int64 expression of loop variables, small constants and loads."""
        if depth == 0 and names and self.random.random() < 0.7:
            return Var(self.random.choice(names))
        if depth == 0:
            return const(self.random.randint(-4, 6), "int64")
        kind = self.random.randrange(8)
        a, b = self.integer(names, depth - 1), self.integer(names, depth - 1)
        if kind <= 3:
            return Binary(self.random.choice(INTEGER_OPS), a, b)
        if kind == 4:
            return Select(self.comparison(names, depth - 1), a, b)
        if kind == 5:
            return Load(SOURCE, (_clamp(a, 3), self.index(names, 4)))
        if kind == 6:
            narrow = self.random.choice([DType.INT8, DType.UINT8, DType.UINT64])
            return Cast(DType.INT64, Cast(narrow, a))
        op = self.random.choice(list(MathOp))
        return Cast(DType.INT64, Math(op, Load(FLOATS, (_clamp(a, 5),))))

    def index(self, names: tuple[str, ...], extent: int) -> Expr:
        """Return an index that is often, but not always, inside."""
        value = self.integer(names, self.random.randrange(2))
        inside = (_clamp(value, extent), Binary(BinaryOp.FLOORMOD, value, const(extent, "int64")))
        return self.random.choice([value, *inside])

    def guarded(self, names: tuple[str, ...], buffer: Buffer) -> Stmt:
        """Return a store behind a guard of its own indices, which may be a wrong one."""
        indices = tuple(self.integer(names, self.random.randrange(2)) for _ in buffer.shape)
        test: Expr = const(0, "int64") <= indices[0]
        for index, extent in zip(indices, buffer.shape, strict=True):
            slack = self.random.choice([0, 0, 0, 0, 1])
            test = test & (index >= 0) & (index < extent + slack)
        return If(test, Store(buffer, indices, self.integer(names, 2)), span=self.span())

    def stmt(self, names: tuple[str, ...], depth: int, inner: bool, path: str = "") -> Stmt:
        """Return a statement; the path to it makes its loop variable unique."""
        kind = self.random.randrange(7) if depth else 0
        if kind in (1, 2, 3):
            body = self.stmt((*names, f"v{path}"), depth - 1, inner, f"{path}0")
            kinds = [LoopKind.SERIAL] * 4 + list(LoopKind)
            notes = self.random.choice([(), (), (("b", self.random.randint(-9, 9)), ("a", "text"))])
            return For(
                Var(f"v{path}"),
                self.random.randint(1, 5),
                body,
                self.random.choice(kinds),
                notes,
                span=self.span(),
            )
        if kind == 4:
            then = self.stmt(names, depth - 1, inner, f"{path}0")
            otherwise = self.random.choice([None, self.stmt(names, depth - 1, inner, f"{path}1")])
            return If(self.comparison(names, 1), then, otherwise, span=self.span())
        if kind == 5:
            count = self.random.randint(1, 3)
            parts = (self.stmt(names, depth - 1, inner, f"{path}{i}") for i in range(count))
            return Block(tuple(parts), span=self.span())
        buffer = self.random.choice([RESULT, INNER] if inner else [RESULT])
        if kind == 6:
            return self.guarded(names, buffer)
        indices = tuple(self.index(names, extent) for extent in buffer.shape)
        return Store(buffer, indices, self.integer(names, 2), span=self.span())

    def function(self) -> Function:
        """Return a function whose two inputs and one inout have fixed types."""
        inner = self.random.random() < 0.3
        body = self.stmt((), 5, inner)
        if inner:
            scope = self.random.choice(list(Scope))
            body = Allocate(INNER, body, span=self.span())
            body = _in_scope(body, replace(INNER, scope=scope))
        roles = ((SOURCE, Role.INPUT), (FLOATS, Role.INPUT), (RESULT, Role.INOUT))
        params = tuple(Param(buffer, role) for buffer, role in roles)
        fast = FastMath(self.random.random() < 0.2, self.random.random() < 0.2)
        return Function("random", params, body, span=self.span(), fast_math=fast)


def _in_scope(stmt: Stmt, buffer: Buffer) -> Stmt:
    """Return a statement with the inner buffer replaced by the same in another scope."""
    match stmt:
        case Allocate(_, body):
            return replace(stmt, buffer=buffer, body=_in_scope(body, buffer))
        case Store(target) if target.name == buffer.name:
            return replace(stmt, buffer=buffer)
        case _:
            return map_children(stmt, lambda child: _in_scope(child, buffer))


def _clamp(index: Expr, extent: int) -> Expr:
    low = Binary(BinaryOp.MAX, index, const(0, "int64"))
    return Binary(BinaryOp.MIN, low, const(extent - 1, "int64"))


SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="session")
def functions() -> st.SearchStrategy[Function]:
    """Return a strategy of functions; about half of them keep the verifier's rules."""
    return SEEDS.map(lambda seed: _Maker(seed).function())


@pytest.fixture(scope="session")
def integers() -> Callable[[tuple[str, ...], int], st.SearchStrategy[Expr]]:
    """Return a maker of strategies of int64 expressions, from loop variables and a depth."""
    return lambda names, depth: SEEDS.map(lambda seed: _Maker(seed).integer(names, depth))


@pytest.fixture
def store_function() -> Callable[..., Function]:
    """Return a maker of the function that stores a value, a constant by default, to ``out``."""

    def make(value: Expr, *inputs: Buffer) -> Function:
        out = Buffer("out", value.dtype, (1,), value.dtype.size_bytes)
        params = (*(Param(each, Role.INPUT) for each in inputs), Param(out, Role.OUTPUT))
        return Function("store", params, Store(out, (Const(0, DType.INT64),), value))

    return make
