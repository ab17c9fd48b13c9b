"""What users get wrong, and where the message and the spans point."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import farm.te as te
from farm.errors import InvalidFunction
from farm.ir.stmt import walk

A = te.placeholder((4,), "int32", name="a")
F = te.placeholder((4, 4), "float32", name="f")
K = te.reduce_axis(4, name="k")


def deep(i: Any) -> Any:
    value = A[i]
    for _ in range(60):
        value = value + 1
    return value


def wide(i: Any) -> Any:
    value = A[i]
    for _ in range(40):  # a tree of 2**40 nodes
        value = value + value
    return value


def leaking() -> Any:
    first = te.compute((1,), lambda i: te.sum(A[K], K), name="first")
    second = te.compute((1,), lambda i: first[i] + A[K], name="second")
    return te.function("g", [A, second])


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "rank": (lambda: F[0], "tensor f: 1 indices; it has rank 2"),
    "index dtype": (lambda: A[F[0, 0]], "index: float32; use an integer"),
    "index fraction": (lambda: A[0.5], "constant: 0.5 is no int64; use"),
    "dtypes": (
        lambda: te.compute((4,), lambda i: A[i] + F[i, i]),
        "add: int32 with float32; convert one side with .astype('int32')",
    ),
    "arity": (
        lambda: te.compute((4, 4), lambda i: A[i], name="c"),
        "compute c: the body takes 1 indices; the shape has 2",
    ),
    "no expression": (
        lambda: te.compute((4,), lambda i: 0, name="c"),
        "compute c: the body gives 0; return an expression (te.const)",
    ),
    "reduction inside": (
        lambda: te.compute((4,), lambda i: te.sum(A[K], K) + 1, name="c"),
        "compute c: a reduction inside an expression; give it its own compute",
    ),
    "reduction in a reduction": (
        lambda: te.compute((4,), lambda i: te.max(te.sum(A[K], K), K), name="c"),
        "compute c: a reduction inside an expression; give it its own compute",
    ),
    "reduction in an index": (
        lambda: te.compute((4,), lambda i: A[te.sum(A[K], K)], name="c"),
        "compute c: a reduction inside an expression; give it its own compute",
    ),
    "own axis": (
        lambda: te.compute((4,), lambda i: te.sum(A[i], i), name="c"),
        "compute c: reduces over its own axis i; use a te.reduce_axis",
    ),
    "axis twice": (lambda: te.sum(F[K, K], (K, K)), "sum: an axis twice (k, k); name each once"),
    "no such axis": (
        lambda: te.sum(A[K], "k"),
        "sum: over 'k'; pass axes that te.reduce_axis gave",
    ),
    "no axis": (lambda: te.min(A[K], ()), "min: of int32 over 0 axes; use numbers, one axis"),
    "bools": (lambda: te.max(A[K] < 1, K), "max: of bool over 1 axes; use numbers, one axis"),
    "extent": (lambda: te.reduce_axis(0), "axis k: extent 0; use at least 1"),
    "axis name": (lambda: te.reduce_axis(2, "a b"), "axis: bad name ('a b'); use letters"),
    "shape": (lambda: te.placeholder((4, 0), name="p"), "buffer p: impossible shape (4, 0);"),
    "computed shape": (lambda: te.compute((0,), lambda i: A[i]), "axis i: extent 0; use at least"),
    "rank limit": (
        lambda: te.compute((1,) * 17, lambda *i: A[0], name="c"),
        "compute c: rank 17; use at most 16",
    ),
    "dtype": (lambda: te.placeholder((4,), "int7"), "dtype: unknown ('int7'); use one of bool,"),
    "alignment": (
        lambda: te.placeholder((4,), "int32", name="p", align_bytes=2),
        "buffer p: alignment 2; use a power of two from 4 to 4096",
    ),
    "too deep": (
        lambda: te.compute((4,), deep, name="c"),
        "compute c: too large (over 200000 nodes or nested over 48 deep); split it into several",
    ),
    "too wide": (lambda: te.compute((4,), wide, name="c"), "compute c: too large (over 200000"),
    "placeholder": (
        lambda: te.function("g", [te.compute((4,), lambda i: A[i] + 1)]),
        "function g: placeholder a is used; list it in buffers",
    ),
    "listed twice": (
        lambda: te.function("g", [A, A]),
        "function g: a is listed twice; rename or drop one",
    ),
    "two of a name": (
        lambda: te.function("g", [A, te.placeholder((2,), name="a")]),
        "function g: a is listed twice; rename or drop one",
    ),
    "no output": (lambda: te.function("g", [A]), "function g: no output parameter; list a"),
    "axis outside its reduction": (
        lambda: te.function("g", [A, te.compute((1,), lambda i: A[K], name="c")]),
        "function g: axis k is used outside a reduction over it",
    ),
    "axis of a reduction before": (leaking, "function g: axis k is used outside a reduction over"),
    "call of a tensor twice": (
        lambda: te.sequence("g", [A], [F], [te.call("h", A, F, A)]),
        f"function g at {__file__}:",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_te_mistake_is_refused_with_what_to_do(name: str) -> None:
    make, problem = WRONG[name]
    with pytest.raises(InvalidFunction) as error:
        make()
    assert error.value.message.startswith(problem)


def here() -> int:
    """Return the caller's line."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_span_of_every_statement_is_the_line_of_its_compute() -> None:
    line = here()
    b = te.compute((4,), lambda i: A[i] + 1, name="b")
    c = te.compute((4,), lambda i: te.sum(b[K], K), name="c")
    made = te.function("g", [A, c])
    assert str(made.span) == f"{__file__}:{line + 3}"
    spans = [str(stmt.span) for stmt in walk(made.body) if stmt.span]
    assert set(spans) == {f"{__file__}:{line + 1}", f"{__file__}:{line + 2}"}
    assert spans[0] == f"{__file__}:{line + 1}"


def test_index_outside_is_refused_at_the_line_of_its_compute() -> None:
    line = here() + 1
    b = te.compute((4,), lambda i: A[i + 1], name="b")
    with pytest.raises(InvalidFunction) as error:
        te.function("g", [A, b])
    assert error.value.message == (
        f"function g at {__file__}:{line}: a: index 0 is (i + 1), from 1 to 4, outside 0 to 3; "
        "guard it with te.where, or clamp it"
    )


@pytest.mark.parametrize("module", ["farm.testing.sample", "farm.tesla", "user"])
def test_span_of_a_module_beside_te_is_its_own(module: str) -> None:
    code = compile("\n\nmade = te.placeholder((1,))", "sample.py", "exec")
    scope: dict[str, Any] = {"__name__": module, "te": te}
    exec(code, scope)
    assert str(scope["made"].span) == "sample.py:3"
