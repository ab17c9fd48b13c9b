"""The wire form: round trips, the canonical form, digests, the deepest function."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.api.v1 import ir_pb2 as pb
from farm.core.digest import digest_of
from farm.errors import InvalidFunction
from farm.ir.buffer import Buffer, Scope
from farm.ir.canonical import canonicalise
from farm.ir.dtype import DType
from farm.ir.expr import Const, Expr, Load, Var, const, select
from farm.ir.function import FastMath, Function, Param, Role
from farm.ir.stmt import (
    Allocate,
    Block,
    Call,
    For,
    If,
    LoopKind,
    Span,
    Stmt,
    Store,
    map_children,
    walk,
)
from farm.ir.verifier import MAX_DEPTH, verify
from farm.ir.wire import from_proto, function_digest, parse, serialise, to_proto

OUT = Buffer("out", DType.INT64, (4,), 64)
TMP = Buffer("tmp", DType.INT64, (4,), 8)


def function(body: Stmt) -> Function:
    return Function("f", (Param(OUT, Role.OUTPUT),), body)


def sample(var: str = "x", tmp: str = "tmp", line: int = 3) -> Function:
    """Return one function; the arguments change what must not count."""
    inner, x, span = replace(TMP, name=tmp), Var(var), Span("a.py", line)
    fill = Store(inner, (x,), select(x < 2, x * 3, -1), span=span)
    use = Store(OUT, (Var(var + "2"),), Load(inner, (Var(var + "2"),)), span=span)
    body = Allocate(inner, Block((For(x, 4, fill), For(Var(var + "2"), 4, use))), span=span)
    return replace(function(body), span=span)


def spans(made: Function) -> list[Span | None]:
    return [made.span, *(stmt.span for stmt in walk(made.body))]


@given(st.data())
def test_message_of_random_function_reads_back_equal_with_its_spans(
    functions: st.SearchStrategy[Function], data: st.DataObject
) -> None:
    made = data.draw(functions)
    made = replace(made, target=data.draw(st.sampled_from([None, "ea -config=ea16"])))
    back = from_proto(pb.Function.FromString(to_proto(made).SerializeToString()))
    assert back == made
    assert spans(back) == spans(made)


@given(st.data())
def test_canonical_form_of_random_function_is_a_fixed_point(
    functions: st.SearchStrategy[Function], data: st.DataObject
) -> None:
    made = data.draw(functions)
    once = canonicalise(made)
    assert canonicalise(once) == once
    assert serialise(once) == serialise(made)
    assert spans(once) == [None] * len(spans(made))


@given(st.data())
def test_parse_of_serialised_function_gives_the_canonical_form_or_refuses(
    functions: st.SearchStrategy[Function], data: st.DataObject
) -> None:
    made = data.draw(functions)
    try:
        verify(made)
    except InvalidFunction:
        with pytest.raises(InvalidFunction):
            parse(serialise(made))
    else:
        assert parse(serialise(made)) == canonicalise(made)


@pytest.mark.parametrize("dtype", DType)
def test_constant_of_every_type_and_extreme_reads_back(
    dtype: DType, store_function: Callable[[Expr], Function]
) -> None:
    numbers: list[float] = [dtype.min, dtype.max]
    if dtype.is_float:
        numbers = [0.0, -0.0, 0.1, float("inf"), float("-inf"), float("nan"), 1e-45]
    for number in numbers:
        made = store_function(const(number, dtype))
        assert parse(serialise(made)) == made


def test_parse_private_placed_function_keeps_both() -> None:
    made = replace(sample(), private=True).on("ea")
    back = parse(serialise(made))
    assert (back.private, back.target) == (True, "ea -config=ea16")
    assert function_digest(made) != function_digest(sample())


def retold(made: Function, kind: LoopKind) -> Function:
    """Return the function with all its loops of a kind."""

    def change(stmt: Stmt) -> Stmt:
        stmt = map_children(stmt, change)
        return replace(stmt, kind=kind) if isinstance(stmt, For) else stmt

    return replace(made, body=change(made.body))


def annotated(made: Function, *annotations: tuple[str, int | str]) -> Function:
    """Return the function with all its loops annotated."""

    def change(stmt: Stmt) -> Stmt:
        stmt = map_children(stmt, change)
        return replace(stmt, annotations=annotations) if isinstance(stmt, For) else stmt

    return replace(made, body=change(made.body))


def test_digest_does_not_depend_on_the_order_of_annotations() -> None:
    one, other = (
        annotated(sample(), *pairs) for pairs in ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)])
    )
    assert one != other
    assert function_digest(one) == function_digest(other)


@pytest.mark.parametrize("scope", Scope)
def test_scope_of_an_inner_buffer_counts_and_reads_back(scope: Scope) -> None:
    made = function(Allocate(replace(TMP, scope=scope), Call("g", (OUT,))))
    verify(made)
    assert parse(serialise(made)) == canonicalise(made)
    plain = function(Allocate(TMP, Call("g", (OUT,))))
    assert (function_digest(made) == function_digest(plain)) is (scope is Scope.GLOBAL)


def test_digest_ignores_inner_names_and_spans_only() -> None:
    same = function_digest(sample())
    assert function_digest(sample("y", "buffer", 99)) == same
    assert function_digest(sample("i1", "t7")) == same == digest_of(serialise(sample()))
    others = [
        replace(sample(), name="g"),
        replace(sample(), private=True),
        replace(sample(), fast_math=FastMath(contract=True)),
        replace(sample(), fast_math=FastMath(reassociate=True)),
        *(retold(sample(), kind) for kind in LoopKind if kind is not LoopKind.SERIAL),
        annotated(sample(), ("a", 1)),
        annotated(sample(), ("a", "1")),
        annotated(sample(), ("b", 1)),
        function(Call("g", (OUT,))),
        function(Call("h", (OUT,))),
        function(Store(OUT, (const(0, "int64"),), const(0, "int64"))),
        function(Store(OUT, (const(0, "int64"),), const(1, "int64"))),
        Function("f", (Param(OUT, Role.INOUT),), sample().body),
    ]
    assert len({function_digest(made) for made in others} | {same}) == len(others) + 1


def test_digest_tells_zeros_apart(store_function: Callable[[Expr], Function]) -> None:
    plus, minus = (store_function(Const(value, DType.FLOAT32)) for value in (0.0, -0.0))
    assert function_digest(plus) != function_digest(minus)


def test_canonical_form_steps_around_names_of_parameters() -> None:
    taken = Buffer("i0", DType.INT64, (4,), 8)
    made = Function(
        "f", (Param(taken, Role.OUTPUT),), For(Var("k"), 4, Store(taken, (Var("k"),), Var("k")))
    )
    assert canonicalise(made).body == For(Var("i1"), 4, Store(taken, (Var("i1"),), Var("i1")))


def test_digest_does_not_depend_on_the_hash_seed() -> None:
    code = """
import farm.te as te
from farm.ir import function_digest
a = te.placeholder((4,), "float32", name="a")
b = te.compute((4,), lambda i: te.exp(a[i]) + 1.5, name="b")
c = te.compute((4,), lambda i: b[i] * b[3 - i], name="c")
print(function_digest(te.function("f", [a, c])))
"""
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=180,
        ).stdout
        for seed in ("1", "4242")
    ]
    assert found[0] == found[1]
    assert found[0].startswith("sha256:")


def chain(levels: int, leaf: Expr) -> Function:
    """Return a function whose deepest expression is `levels` below its store."""
    value = leaf
    for _ in range(levels - 1):
        value = value + 1
    return function(Store(OUT, (const(0, "int64"),), value))


def nest(levels: int) -> Function:
    """Return a function of `levels` allocations around a call."""
    body: Stmt = Call("g", (OUT,))
    for level in range(levels):
        body = Allocate(replace(TMP, name=f"b{level}"), body, span=Span("a.py", 1))
    return function(body)


@pytest.mark.parametrize(
    "make",
    [lambda n: chain(n, const(1, "int64")), nest, lambda n: nest_if(n)],
    ids=["chain", "alloc", "if"],
)
def test_deepest_function_that_verifies_also_reads_back(make: Callable[[int], Function]) -> None:
    deepest = make(MAX_DEPTH)
    verify(deepest)
    assert parse(serialise(deepest)) == canonicalise(deepest)
    assert from_proto(pb.Function.FromString(to_proto(deepest).SerializeToString())) == deepest
    with pytest.raises(InvalidFunction, match="nested over 48 deep"):
        verify(make(MAX_DEPTH + 1))
    with pytest.raises(InvalidFunction, match="nested over 48 deep"):
        from_proto(to_proto(make(MAX_DEPTH + 1)))


def nest_if(levels: int) -> Function:
    body: Stmt = Store(OUT, (const(0, "int64"),), const(0, "int64"))
    for _ in range(levels - 1):
        body = If(const(True, "bool"), body)
    return function(body)
