"""Running functions: elements never written, calls, arrays that do not fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from farm.errors import InvalidArguments, InvalidFunction, UndefinedReference
from farm.ir.buffer import Buffer
from farm.ir.dtype import DType
from farm.ir.expr import Compare, CompareOp, Expr, Load, Var, const, select
from farm.ir.function import Function, Param, Role
from farm.ir.interpreter import interpret
from farm.ir.stmt import Allocate, Block, Call, For, If, Stmt, Store

A = Buffer("a", DType.INT32, (2, 3), 4)
OUT = Buffer("out", DType.INT32, (2, 3), 4)
TMP = Buffer("tmp", DType.INT32, (2, 3), 4)
X, Y = Var("x"), Var("y")
ARRAY = np.arange(6, dtype=np.int32).reshape(2, 3)


def nest(body: Stmt) -> Stmt:
    return For(X, 2, For(Y, 3, body))


def function(body: Stmt, name: str = "f", out: Role = Role.OUTPUT) -> Function:
    return Function(name, (Param(A, Role.INPUT), Param(OUT, out)), body)


def add(amount: int, name: str) -> Function:
    return function(nest(Store(OUT, (X, Y), Load(A, (X, Y)) + amount)), name)


def run(made: Function, *arrays: np.ndarray[Any, Any], library: Sequence[Function] = ()) -> Any:
    found = interpret(made, arrays, {each.name: each for each in library})
    return [array.tolist() for array in found]


def test_interpret_loop_nest_gives_new_arrays_and_keeps_the_inputs() -> None:
    (found,) = interpret(add(1, "f"), [ARRAY])
    assert (found.dtype, found.tolist()) == (np.dtype("int32"), [[1, 2, 3], [4, 5, 6]])
    assert ARRAY.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_interpret_strided_input_is_read_by_its_indices() -> None:
    assert run(add(0, "f"), np.arange(6, dtype=np.int32).reshape(3, 2).T) == [
        [[0, 2, 4], [1, 3, 5]]
    ]


def test_interpret_inout_starts_from_the_given_array() -> None:
    given = ARRAY.copy()
    made = function(
        Store(OUT, (const(1, "int64"), const(0, "int64")), const(9, "int32")), out=Role.INOUT
    )
    assert run(made, ARRAY, given) == [[[0, 1, 2], [9, 4, 5]]]
    assert given.tolist() == ARRAY.tolist()


def test_interpret_branches_run_one_side() -> None:
    one, two = Store(OUT, (X, Y), const(1, "int32")), Store(OUT, (X, Y), const(2, "int32"))
    assert run(function(nest(If(X < Y, one, two))), ARRAY) == [[[2, 1, 1], [2, 2, 1]]]
    with pytest.raises(InvalidFunction, match=r"out element 0 \(flat\) is never written"):
        run(function(nest(If(X < Y, one))), ARRAY)


def test_interpret_select_evaluates_only_the_side_it_takes() -> None:
    guarded = select(Y >= 1, Load(A, (X, Y - 1)), 0)
    body = nest(Store(OUT, (X, Y), guarded))
    assert run(function(body), ARRAY) == [[[0, 0, 1], [0, 3, 4]]]


def test_interpret_element_never_written_is_refused_when_returned() -> None:
    made = function(For(X, 2, Store(OUT, (X, const(1, "int64")), const(0, "int32"))))
    with pytest.raises(InvalidFunction) as error:
        run(made, ARRAY)
    assert error.value.message == (
        "function f: out element 0 (flat) is never written; make its loops cover the buffer"
    )


def test_interpret_element_never_written_is_refused_when_read() -> None:
    fill = Store(TMP, (const(0, "int64"), const(0, "int64")), const(0, "int32"))
    body = Allocate(TMP, Block((fill, nest(Store(OUT, (X, Y), Load(TMP, (X, Y)))))))
    with pytest.raises(InvalidFunction) as error:
        run(function(body), ARRAY)
    assert error.value.message == "function f: reads tmp element 1 (flat) before it is written"


def test_interpret_inner_buffer_starts_undefined_on_every_entry() -> None:
    zero = (const(0, "int64"), const(0, "int64"))
    first = If(X.eq(0), Store(TMP, zero, const(5, "int32")))
    use = For(Y, 3, Store(OUT, (X, Y), Load(TMP, zero)))
    with pytest.raises(InvalidFunction, match=r"^function f: reads tmp element 0 \(flat\) before"):
        run(function(For(X, 2, Allocate(TMP, Block((first, use))))), ARRAY)
    outside = Allocate(TMP, For(X, 2, Block((first, use))))
    assert run(function(outside), ARRAY) == [[[5, 5, 5], [5, 5, 5]]]


def test_interpret_calls_go_through_the_library() -> None:
    body = Allocate(TMP, Block((Call("first", (A, TMP)), Call("second", (TMP, OUT)))))
    library = [add(1, "first"), function(Call("first", (A, OUT)), "second")]
    assert run(function(body), ARRAY, library=library) == [[[2, 3, 4], [5, 6, 7]]]


def test_interpret_absent_callee_is_refused() -> None:
    with pytest.raises(UndefinedReference) as error:
        run(function(Call("other", (A, OUT))), ARRAY)
    assert error.value.message == "function f: calls other, which is not there; add it"


def test_interpret_cycle_of_calls_is_refused_with_its_path() -> None:
    library = [function(Call("h", (A, OUT)), "g"), function(Call("g", (A, OUT)), "h")]
    with pytest.raises(UndefinedReference) as error:
        run(function(Call("g", (A, OUT))), ARRAY, library=library)
    expected = "function g: calls itself (f -> g -> h -> g); break the cycle"
    assert error.value.message == expected


@pytest.mark.parametrize("wrong", [("int8", (2, 3)), ("int32", (3, 2)), ("int32", (6,))])
def test_interpret_callee_with_other_types_is_refused(wrong: tuple[str, tuple[int, ...]]) -> None:
    dtype, shape = DType(wrong[0]), wrong[1]
    other = Buffer("a", dtype, shape, dtype.size_bytes)
    callee = Function("g", (Param(other, Role.INPUT), Param(OUT, Role.OUTPUT)), Block(()))
    with pytest.raises(InvalidFunction) as error:
        run(function(Call("g", (A, OUT))), ARRAY, library=[callee])
    assert error.value.message == (
        f"function f: call g passes int32[2, 3], int32[2, 3]; "
        f"it takes {dtype}{list(shape)}, int32[2, 3]"
    )


@pytest.mark.parametrize("count", [0, 2])
def test_interpret_wrong_number_of_arrays_is_refused(count: int) -> None:
    expected = f"f: {count} arrays; pass 1 (inputs and inouts)"
    with pytest.raises(InvalidArguments, match=f"^{re.escape(expected)}$"):
        run(add(1, "f"), *[ARRAY] * count)


@pytest.mark.parametrize(
    "array",
    [ARRAY.astype("int64"), ARRAY.astype(">i4"), ARRAY.T, ARRAY.reshape(-1), ARRAY[None]],
)
def test_interpret_array_of_another_type_is_refused_with_both(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(InvalidArguments) as error:
        run(add(1, "f"), array)
    assert error.value.message == (
        f"f: argument a is {array.dtype}{list(array.shape)}; pass int32[2, 3]"
    )


@pytest.mark.parametrize("op", CompareOp)
def test_interpret_comparison_compares(
    op: CompareOp, store_function: Callable[[Expr], Function]
) -> None:
    oracle = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal"} | {
        "gt": "greater",
        "ge": "greater_equal",
    }
    values = (-1.0, -0.0, 0.0, 2.5, float("nan"))
    for a in values:
        for b in values:
            made = store_function(Compare(op, const(a, "float32"), const(b, "float32")))
            assert run(made) == [[bool(getattr(np, oracle[op.value])(a, b))]]


@pytest.mark.parametrize("shape", [(), (4,), (2, 2, 2), (1, 2, 1, 2)])
def test_interpret_buffer_of_any_rank_is_row_major(shape: tuple[int, ...]) -> None:
    source, out = (Buffer(name, DType.FLOAT32, shape, 4) for name in ("s", "o"))
    axes = tuple(Var(f"v{axis}") for axis in range(len(shape)))
    body: Stmt = Store(out, axes, Load(source, axes) * 2)
    for var, extent in reversed(list(zip(axes, shape, strict=True))):
        body = For(var, extent, body)
    made = Function("f", (Param(source, Role.INPUT), Param(out, Role.OUTPUT)), body)
    array = np.random.default_rng(0).random(shape, dtype=np.float32)
    (found,) = interpret(made, [np.asarray(array, np.float32)])
    np.testing.assert_array_equal(found, array * 2, strict=True)
