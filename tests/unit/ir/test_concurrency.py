"""Loop kinds, annotations and scopes: what the verifier and the nodes themselves refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from farm.api.v1 import ir_pb2 as pb
from farm.errors import InvalidFunction
from farm.ir import Buffer, DType, Function, LoopKind, Param, Role, Scope, interpret, parse, verify
from farm.ir.expr import Expr, Load, Var, const
from farm.ir.stmt import Allocate, Block, Call, For, If, Stmt, Store
from farm.ir.wire import to_proto

A = Buffer("a", DType.INT32, (4, 4), 4)
OUT = Buffer("out", DType.INT32, (4, 4), 4)
TMP = Buffer("tmp", DType.INT32, (4,), 4)
X, J, K = Var("i"), Var("j"), Var("k")
ONE = const(1, "int32")
LOCKSTEP = [LoopKind.PARALLEL, LoopKind.VECTORIZED]


def function(body: Stmt) -> Function:
    return Function("f", (Param(A, Role.INPUT), Param(OUT, Role.INOUT)), body)


def message(body: Stmt) -> str:
    with pytest.raises(InvalidFunction) as error:
        verify(function(body))
    return error.value.message


def store(i: Expr = X, j: Expr = J, value: Expr = ONE) -> Store:
    return Store(OUT, (i, j), value)


@pytest.mark.parametrize("kind", LoopKind)
def test_every_kind_takes_independent_iterations(kind: LoopKind) -> None:
    verify(function(For(X, 4, For(J, 4, store(value=Load(A, (J, X)))), kind)))
    verify(function(For(X, 4, For(J, 4, store(), kind))))
    verify(function(For(X, 4, For(J, 4, If(J.eq(2), store(j=const(0, "int64"))), kind))))


@pytest.mark.parametrize("kind", LOCKSTEP)
@pytest.mark.parametrize(
    "body",
    [store(j=const(1, "int64")), For(K, 4, store(j=K)), If(X < 2, store(j=X))],
    ids=["one element", "a row", "if of another loop"],
)
def test_iterations_that_store_to_the_same_elements_are_refused(kind: LoopKind, body: Stmt) -> None:
    expected = (
        f"function f: loop j is {kind.value} but each iteration stores to the same elements of out; "
        f"make it serial, or give each iteration its own elements"
    )
    assert message(For(X, 4, For(J, 4, body, kind))) == expected
    verify(function(For(X, 4, For(J, 1, body, kind))))
    verify(function(For(X, 4, For(J, 4, body, LoopKind.UNROLLED))))


def test_buffer_of_an_iteration_is_its_own() -> None:
    fill = For(J, 4, Store(TMP, (J,), ONE))
    use = For(K, 4, store(j=K, value=Load(TMP, (K,))))
    verify(function(For(X, 4, Allocate(TMP, Block((fill, use))), LoopKind.PARALLEL)))
    found = message(Allocate(TMP, For(X, 4, Block((fill, use)), LoopKind.PARALLEL)))
    assert "stores to the same elements of tmp" in found


@pytest.mark.parametrize(
    ("kind", "body", "what"),
    [
        (LoopKind.VECTORIZED, Call("g", (OUT,)), "a call"),
        (LoopKind.PARALLEL, Call("g", (OUT,)), "a call"),
        (LoopKind.VECTORIZED, Allocate(TMP, store(j=X)), "a buffer"),
        (LoopKind.VECTORIZED, For(J, 4, store(), LoopKind.PARALLEL), "a parallel loop"),
        (LoopKind.PARALLEL, For(J, 4, store(), LoopKind.PARALLEL), "a parallel loop"),
        (LoopKind.VECTORIZED, For(J, 4, store(), LoopKind.VECTORIZED), "a vectorized loop"),
    ],
)
def test_what_cannot_stand_inside_is_refused(kind: LoopKind, body: Stmt, what: str) -> None:
    expected = (
        f"function f: loop i is {kind.value} but has {what} inside; "
        f"move it out, or make the loop serial"
    )
    assert message(For(X, 4, body, kind)) == expected


@pytest.mark.parametrize("kind", [LoopKind.VECTORIZED, LoopKind.UNROLLED])
def test_too_many_copies_are_refused(kind: LoopKind) -> None:
    wide = Buffer("wide", DType.INT8, (2048,), 1)

    def made(extent: int) -> Function:
        return Function("f", (Param(wide, Role.OUTPUT),), For(X, extent, fill, kind))

    fill = Store(wide, (X,), const(0, "int8"))
    verify(made(1024))
    with pytest.raises(InvalidFunction) as error:
        verify(made(1025))
    assert error.value.message == (
        f"function f: loop i is {kind.value} with extent 1025; use at most 1024: split it first"
    )


def test_parameter_with_a_scope_is_refused() -> None:
    made = Function("f", (Param(replace(OUT, scope=Scope.STACK), Role.OUTPUT),), Block(()))
    with pytest.raises(InvalidFunction) as error:
        verify(made)
    assert error.value.message == (
        "function f: parameter out has scope stack; only inner buffers have one"
    )


@pytest.mark.parametrize(("scope", "most"), [(Scope.STACK, 1 << 16), (Scope.REGISTER, 1 << 12)])
def test_buffer_too_large_for_its_scope_is_refused(scope: Scope, most: int) -> None:
    assert Buffer("b", DType.INT8, (most,), 1, scope).size_bytes == most
    with pytest.raises(InvalidFunction) as error:
        Buffer("b", DType.INT8, (most + 1,), 1, scope)
    assert error.value.message == (
        f"buffer b: {most + 1} bytes in scope {scope.value}; use at most {most}, or scope global"
    )


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ((("A", 1),), "loop i: annotation 'A'; use each key once, of a-z, 0-9, _ and ."),
        ((("a", 1), ("a", 2)), "loop i: annotation 'a'; use each key once, of a-z, 0-9, _ and ."),
        ((("a", 1 << 63),), "loop i: annotation a is '9223372036854775808'; use an integer of 64"),
        ((("a", True),), "loop i: annotation a is 'True'; use an integer of 64 bits or a text of"),
        ((("a", "x" * 257),), "loop i: annotation a is 'xxx"),
        (tuple((f"a{n}", n) for n in range(17)), "loop i: 17 annotations; use at most 16"),
    ],
)
def test_impossible_annotation_is_refused(
    annotations: tuple[tuple[str, int | str], ...], expected: str
) -> None:
    with pytest.raises(InvalidFunction) as error:
        For(X, 4, Block(()), annotations=annotations)
    assert error.value.message.startswith(expected)


def test_unknown_numbers_on_the_wire_are_refused() -> None:
    body = Allocate(TMP, For(X, 4, Store(TMP, (X,), ONE)))

    def spoiled(change: str) -> bytes:
        message = to_proto(function(Block((body, For(J, 4, store(J, J))))))
        allocate = message.body.block.stmts[0].allocate
        loop = allocate.body.for_loop
        match change:
            case "scope":
                allocate.buffer.scope = 9  # type: ignore[assignment]
            case "kind":
                loop.kind = 9  # type: ignore[assignment]
            case _:
                loop.annotations.append(pb.Annotation(key="a"))
        return message.SerializeToString()

    for change, expected in (
        ("scope", r"buffer tmp: unknown scope \(9\); update the farm"),
        ("kind", r"loop i: unknown kind \(9\); update the farm"),
        ("value", "loop i: annotation 'a' without a value; give one"),
    ):
        with pytest.raises(InvalidFunction, match=expected):
            parse(spoiled(change))


ROW = const(0, "int64")


@pytest.mark.parametrize("kind", LOCKSTEP)
@pytest.mark.parametrize(
    "body",
    [
        store(ROW, (X + 1) % 4, Load(OUT, (ROW, X))),
        Store(OUT, (ROW, X), Load(OUT, (ROW, (X + 1) % 4))),
        store(ROW, X // 2),
        Block((store(ROW, X), store(const(1, "int64"), X, Load(OUT, (ROW, const(0, "int64")))))),
    ],
    ids=["load then store", "store then load", "stores", "load of another"],
)
def test_interpreter_finds_iterations_that_meet(kind: LoopKind, body: Stmt) -> None:
    arrays = [np.zeros((4, 4), np.int32), np.ones((4, 4), np.int32)]
    made = function(For(X, 4, body, kind))
    interpret(made, arrays)
    with pytest.raises(InvalidFunction, match=f"iterations of {kind.value} loop i meet in out"):
        interpret(made, arrays, check_conflicts=True)
    serial = function(For(X, 4, body, LoopKind.SERIAL))
    interpret(serial, arrays, check_conflicts=True)


def test_interpreter_lets_iterations_have_elements_and_buffers_of_their_own() -> None:
    fill = For(J, 4, Store(TMP, (J,), Load(A, (X, J))))
    use = For(K, 4, store(j=K, value=Load(TMP, (K,))), LoopKind.VECTORIZED)
    made = function(For(X, 4, Allocate(TMP, Block((fill, use))), LoopKind.PARALLEL))
    verify(made)
    a = np.arange(16, dtype=np.int32).reshape(4, 4)
    (found,) = interpret(made, [a, np.zeros((4, 4), np.int32)], check_conflicts=True)
    np.testing.assert_array_equal(found, a)
