"""Every rule of the verifier, tripped once, with what its message must say."""

from __future__ import annotations

import pytest

from farm.errors import InvalidFunction
from farm.ir.buffer import Buffer
from farm.ir.dtype import DType
from farm.ir.expr import Expr, Load, Var, const, select
from farm.ir.function import Function, Param, Role
from farm.ir.stmt import Allocate, Block, Call, For, If, Span, Stmt, Store
from farm.ir.verifier import MAX_DEPTH, verify

A = Buffer("a", DType.INT32, (4,), 4)
OUT = Buffer("out", DType.INT32, (4,), 4)
TMP = Buffer("tmp", DType.INT32, (4,), 4)
X, Y = Var("i"), Var("j")
SPAN = Span("user.py", 7)
ZERO, ONE = const(0, "int64"), const(1, "int32")


def function(body: Stmt, *params: Param) -> Function:
    given = params or (Param(A, Role.INPUT), Param(OUT, Role.OUTPUT))
    return Function("f", given, body)


def store(index: Expr = ZERO, value: Expr = ONE, buffer: Buffer = OUT) -> Store:
    return Store(buffer, (index,), value, span=SPAN)


def loop(body: Stmt, var: Var = X, extent: int = 4) -> For:
    return For(var, extent, body, span=SPAN)


def message(made: Function) -> str:
    with pytest.raises(InvalidFunction) as error:
        verify(made)
    return error.value.message


def test_verify_function_that_keeps_the_rules_passes() -> None:
    copy = loop(store(X, Load(A, (X,))))
    verify(function(copy))
    verify(
        function(Allocate(TMP, Block((loop(store(X, ONE, TMP)), store(ZERO, Load(TMP, (ZERO,)))))))
    )
    verify(function(If(ZERO < 1, copy, loop(store(Y, Load(A, (Y,))), Y))))
    verify(function(Call("other", (A, OUT))))


@pytest.mark.parametrize("count", [0, 65])
def test_verify_impossible_number_of_parameters_is_refused(count: int) -> None:
    params = tuple(Param(Buffer(f"p{i}", DType.INT32, (4,), 4), Role.OUTPUT) for i in range(count))
    made = Function("f", params, Block(()))
    assert message(made) == f"function f: {count} parameters; use 1 to 64"


def test_verify_no_output_is_refused() -> None:
    made = function(Block(()), Param(A, Role.INPUT))
    assert message(made) == "function f: no output parameter; list a computed buffer"


def test_verify_output_never_written_is_refused() -> None:
    expected = "function f: output out is never written; drop it or store to it"
    assert message(function(Block(()))) == expected


BAD_STATEMENTS: dict[str, tuple[Stmt, str]] = {
    "extent of zero": (
        loop(store(), extent=0),
        "loop i: extent 0; use 1 to 9223372036854775807",
    ),
    "extent beyond int64": (
        loop(store(), extent=2**63),
        "loop i: extent 9223372036854775808; use 1 to 9223372036854775807",
    ),
    "name twice in a nest": (
        loop(loop(store())),
        "name i is declared twice; rename one",
    ),
    "name twice one after the other": (
        Block((loop(store()), loop(store()))),
        "name i is declared twice; rename one",
    ),
    "loop named like a parameter": (
        loop(store(), Var("a")),
        "name a is declared twice; rename one",
    ),
    "inner buffer named like a parameter": (
        Allocate(A, store(), span=SPAN),
        "name a is declared twice; rename one",
    ),
    "store of another type": (
        store(value=const(1, "int8")),
        "out holds int32 but int8 is stored; use .astype('int32')",
    ),
    "store to an input": (
        store(buffer=A),
        "input a is written; make it an inout or store elsewhere",
    ),
    "condition of another type": (
        If(ONE, store(), span=SPAN),
        "if: condition is int32; compare something",
    ),
    "buffer passed twice": (
        Call("g", (A, OUT, A), span=SPAN),
        "call g: a buffer is passed twice (a, out, a); copy it first",
    ),
    "call with a buffer from nowhere": (
        Call("g", (TMP, OUT), span=SPAN),
        "buffer tmp is not in scope; list it in te.function's buffers",
    ),
    "store to a buffer from nowhere": (
        store(buffer=TMP),
        "buffer tmp is not in scope; list it in te.function's buffers",
    ),
    "inner buffer after its scope": (
        Block((Allocate(TMP, store()), store(buffer=TMP))),
        "buffer tmp is not in scope; list it in te.function's buffers",
    ),
    "buffer that differs from its declaration": (
        store(buffer=Buffer("out", DType.INT32, (8,), 4)),
        "buffer out is not in scope; list it in te.function's buffers",
    ),
    "too few indices": (
        Store(OUT, (), ONE, span=SPAN),
        "out has rank 1 but 0 indices",
    ),
    "index of another type": (
        store(index=const(0, "int32")),
        "out: index 0 is int32; use .astype('int64')",
    ),
    "index above": (
        loop(store(X + 1)),
        "out: index 0 is (i + 1), from 1 to 4, outside 0 to 3; guard it with te.where, or clamp it",
    ),
    "index below": (
        store(const(-1, "int64")),
        "out: index 0 is -1, from -1 to -1, outside 0 to 3; guard it with te.where, or clamp it",
    ),
    "load outside": (
        loop(store(X, Load(A, (X * 2,)))),
        "a: index 0 is (i * 2), from 0 to 6, outside 0 to 3; guard it with te.where, or clamp it",
    ),
    "variable outside its loop": (
        Block((loop(store(X)), store(X))),
        "variable i is used outside its loop",
    ),
    "inner buffer read before it is written": (
        Allocate(TMP, store(value=Load(TMP, (ZERO,)))),
        "tmp is read before anything is written to it",
    ),
    "output read before it is written": (
        store(value=Load(OUT, (ZERO,))),
        "out is read before anything is written to it",
    ),
}


@pytest.mark.parametrize("name", BAD_STATEMENTS)
def test_verify_broken_rule_is_refused_with_place_and_remedy(name: str) -> None:
    body, problem = BAD_STATEMENTS[name]
    assert message(function(body)) == f"function f at user.py:7: {problem}"


def test_verify_statement_without_span_names_the_function_only() -> None:
    assert message(function(Store(OUT, (), ONE))) == "function f: out has rank 1 but 0 indices"


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "é", "a" * 256])
def test_verify_bad_name_is_refused_wherever_it_stands(name: str) -> None:
    advice = f"bad name ({name[:80]!r}); use letters, digits and _, no digit first"
    assert message(function(loop(store(), Var(name)))) == f"name: {advice}"
    assert message(function(Call(name, (OUT,)))) == f"callee: {advice}"
    for make in (
        lambda: Function(name, (), Block(())),
        lambda: Buffer(name, DType.INT8, (1,), 1),
    ):
        with pytest.raises(InvalidFunction) as error:
            make()
        assert error.value.message.endswith(advice)


@pytest.mark.parametrize("shape", [(0,), (-1,), (4, 0), (2**41,), (2**21, 2**20)])
def test_buffer_impossible_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidFunction) as error:
        Buffer("b", DType.INT8, shape, 1)
    assert error.value.message == (
        f"buffer b: impossible shape {shape}; each extent is at least 1 "
        f"and their product at most 2**40"
    )


@pytest.mark.parametrize("align", [0, -4, 2, 3, 12, 8192])
def test_buffer_impossible_alignment_is_refused(align: int) -> None:
    with pytest.raises(InvalidFunction) as error:
        Buffer("b", DType.INT32, (1,), align)
    expected = f"buffer b: alignment {align}; use a power of two from 4 to 4096"
    assert error.value.message == expected


def test_buffer_rank_over_the_limit_is_refused() -> None:
    with pytest.raises(InvalidFunction, match=r"^buffer b: rank 17; use at most 16$"):
        Buffer("b", DType.INT8, (1,) * 17, 1)
    assert Buffer("b", DType.INT32, (), 4).size_bytes == 4


def test_verify_facts_of_a_guard_hold_on_its_side_only() -> None:
    guard = X < 3
    inside, outside = Load(A, (X + 1,)), const(0, "int32")
    verify(function(loop(store(X, select(guard, inside, outside)))))
    verify(function(loop(store(X, select(~guard, outside, inside)))))
    verify(function(loop(If(guard, store(X + 1), store(X)))))
    for wrong in (
        loop(store(X, select(guard, outside, inside))),
        loop(If(guard, store(X), store(X + 1))),
        loop(Block((If(guard, store(X + 1)), store(X + 1)))),
    ):
        assert "index 0 is (i + 1), from " in message(function(wrong))


def test_verify_guard_on_a_loaded_value_teaches_nothing_about_it() -> None:
    loaded = Load(A, (ZERO,)).astype("int64")
    guarded = If((loaded >= 0) & (loaded < 4), store(loaded))
    assert "is cast(int64, a[0]), from -2147483648" in message(function(guarded))


def test_verify_condition_does_not_guard_its_own_operands() -> None:
    test = (X < 3) & Load(A, (X + 1,)).eq(0)
    assert "from 1 to 4" in message(function(loop(If(test, store(X)))))


def nested_loops(count: int) -> Stmt:
    body: Stmt = Call("g", (OUT,))
    for depth in range(count):
        body = For(Var(f"v{depth}"), 1, body)
    return body


def test_verify_nesting_over_the_limit_is_refused() -> None:
    verify(function(nested_loops(MAX_DEPTH)))
    expected = "function f: too large (over 200000 nodes or nested over 48 deep); split it"
    assert message(function(nested_loops(MAX_DEPTH + 1))) == expected
    assert message(function(nested_loops(900))) == expected


def test_verify_too_many_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.ir.verifier.MAX_NODES", 100)
    calls = (Call("g", (OUT,)),) * 100
    expected = "function f: too large (over 100 nodes or nested over 48 deep); split it"
    assert message(function(Block(calls))) == expected
    verify(function(Block(calls[1:])))


def test_verify_huge_index_is_cut_in_the_message() -> None:
    index: Expr = X + 1
    for _ in range(7):
        index = index + index
    text = message(function(loop(store(index))))
    assert "from 128 to 512, outside 0 to 3; guard it with te.where" in text
    assert len(text) < 500


def test_verify_conditions_nested_in_conditions_take_time_in_proportion() -> None:
    index: Expr = X
    for level in range(20):
        index = select(index < 3, level % 4, const(2, "int64"))
    verify(function(loop(store(index))))  # doubling with every level would take hours
