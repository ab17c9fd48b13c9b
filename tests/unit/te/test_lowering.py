"""What tensor expressions compute, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import farm.te as te
from farm.errors import InvalidFunction
from farm.ir import Role, interpret
from farm.ir.expr import Expr
from farm.ir.stmt import Allocate, Store, walk

RNG = np.random.default_rng(3)
Array = np.ndarray[Any, Any]


def run(tensors: list[te.Tensor], *arrays: Array) -> list[Array]:
    return list(interpret(te.function("f", tensors), arrays))


def test_matmul_equals_numpy() -> None:
    a, b = te.placeholder((3, 5), "int8", name="a"), te.placeholder((5, 4), "int8", name="b")
    k = te.reduce_axis(5)
    c = te.compute(
        (3, 4), lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), k)
    )
    x, y = (
        RNG.integers(-128, 128, (3, 5)).astype(np.int8),
        RNG.integers(-128, 128, (5, 4)).astype(np.int8),
    )
    np.testing.assert_array_equal(run([a, b, c], x, y)[0], x.astype(np.int32) @ y, strict=True)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float32"])
@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_reduction_over_several_axes_equals_numpy(name: str, dtype: str) -> None:
    a = te.placeholder((2, 3, 4), dtype, name="a")
    k, m = te.reduce_axis(2, "k"), te.reduce_axis(4, "m")
    b = te.compute((3,), lambda i: getattr(te, name)(a[k, i, m], (k, m)), name="b")
    array = RNG.integers(-5 if dtype[0] != "u" else 0, 5, (2, 3, 4)).astype(dtype)
    expected = getattr(np, name)(array, axis=(0, 2))
    np.testing.assert_array_equal(run([a, b], array)[0], expected.astype(dtype), strict=True)


@pytest.mark.parametrize("name", ["max", "min"])
def test_reduction_of_extremes_alone_is_exact(name: str) -> None:
    for dtype, value in (("int8", -128), ("uint8", 255), ("float32", -np.inf), ("float32", np.inf)):
        a, k = te.placeholder((2,), dtype, name="a"), te.reduce_axis(2)
        b = te.compute((), lambda: getattr(te, name)(a[k], k))  # noqa: B023 - called at once
        assert run([a, b], np.array([value, value], dtype))[0] == np.array(value, dtype)


def test_softmax_equals_numpy() -> None:
    x = te.placeholder((2, 5), "float32", name="x")
    k = te.reduce_axis(5, name="k")
    top = te.compute((2,), lambda i: te.max(x[i, k], k))
    e = te.compute((2, 5), lambda i, j: te.exp(x[i, j] - top[i]))
    total = te.compute((2,), lambda i: te.sum(e[i, k], k))  # the same axis again
    y = te.compute((2, 5), lambda i, j: e[i, j] / total[i])
    array = RNG.normal(size=(2, 5)).astype(np.float32)
    shifted = np.exp(array - array.max(axis=1, keepdims=True))
    expected = shifted / shifted.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(run([x, y], array)[0], expected, rtol=1e-6)


def test_padding_with_where_reads_inside_only() -> None:
    x = te.placeholder((2, 3), "int32", name="x")
    y = te.compute(
        (4, 6),
        lambda i, j: te.where((i >= 1) & (i < 3) & (j >= 2) & (j < 5), x[i - 1, j - 2], -1),
    )
    array = RNG.integers(0, 9, (2, 3)).astype(np.int32)
    expected = np.pad(array, ((1, 1), (2, 1)), constant_values=-1)
    np.testing.assert_array_equal(run([x, y], array)[0], expected)


def test_broadcast_by_index_equals_numpy() -> None:
    a, b = te.placeholder((3,), name="a"), te.placeholder((2, 1), name="b")
    c = te.compute((2, 3), lambda i, j: a[j] + b[i, 0])
    x, y = RNG.random(3, np.float32), RNG.random((2, 1), np.float32)
    np.testing.assert_array_equal(run([a, b, c], x, y)[0], x + y, strict=True)


def test_gather_by_a_clipped_index_equals_numpy() -> None:
    table, index = te.placeholder((5,), name="table"), te.placeholder((4,), "uint8", name="index")
    out = te.compute((4,), lambda i: table[te.minimum(index[i], 4)])
    values, at = RNG.random(5, np.float32), np.array([0, 4, 200, 2], np.uint8)
    np.testing.assert_array_equal(run([table, index, out], values, at)[0], values[[0, 4, 4, 2]])


def test_diamond_computes_the_shared_tensor_once() -> None:
    a = te.placeholder((4,), "int32", name="a")
    shared = te.compute((4,), lambda i: a[i] * a[i], name="shared")
    left = te.compute((4,), lambda i: shared[i] + shared[3 - i], name="left")
    right = te.compute((4,), lambda i: shared[i] - 1, name="right")
    out = te.compute((4,), lambda i: left[i] * right[i], name="out")
    made = te.function("f", [a, out])
    stores = [stmt.buffer.name for stmt in walk(made.body) if isinstance(stmt, Store)]
    assert stores == ["shared", "left", "right", "out"]
    inner = [stmt.buffer.name for stmt in walk(made.body) if isinstance(stmt, Allocate)]
    assert inner == ["shared", "left", "right"]
    x = np.array([1, -2, 3, 4], np.int32)
    square = x * x
    assert interpret(made, [x])[0].tolist() == ((square + square[::-1]) * (square - 1)).tolist()


def test_several_outputs_come_in_the_order_listed_and_may_feed_each_other() -> None:
    a = te.placeholder((3,), "int32", name="a")
    b = te.compute((3,), lambda i: a[i] + 1, name="b")
    c = te.compute((3,), lambda i: b[i] * 2, name="c")
    made = te.function("f", [c, a, b])
    assert [(p.buffer.name, p.role) for p in made.params] == [
        ("c", Role.OUTPUT),
        ("a", Role.INPUT),
        ("b", Role.OUTPUT),
    ]
    found = interpret(made, [np.array([1, 2, 3], np.int32)])
    assert [array.tolist() for array in found] == [[4, 6, 8], [2, 3, 4]]


def test_inner_names_that_clash_are_numbered() -> None:
    a = te.placeholder((2,), "int32", name="i")
    b = te.compute((2,), lambda i: a[i] + 1, name="t")
    c = te.compute((2,), lambda i: b[i] + 1, name="t")
    d = te.compute((2,), lambda t: c[t] + 1, name="d")
    assert str(te.function("f", [a, d])) == (
        "func f(i: int32[2] input, d: int32[2] output) {\n"
        "  alloc t: int32[2] {\n"
        "    alloc t_1: int32[2] {\n"
        "      for i_1 in 2 {\n"
        "        t[i_1] = (i[i_1] + int32(1))\n"
        "      }\n"
        "      for i_2 in 2 {\n"
        "        t_1[i_2] = (t[i_2] + int32(1))\n"
        "      }\n"
        "      for t_2 in 2 {\n"
        "        d[t_2] = (t_1[t_2] + int32(1))\n"
        "      }\n"
        "    }\n"
        "  }\n"
        "}\n"
    )


def test_scalar_tensor_is_read_with_no_index() -> None:
    a = te.placeholder((), "float64", name="a")
    b = te.compute((), lambda: a[()] / 4)
    assert run([a, b], np.array(3.0))[0] == np.array(0.75)


@pytest.mark.parametrize(
    "body", [lambda *axes: axes[0] + axes[1], lambda _, __: _ + __, lambda _1, _2: _1 + _2]
)
def test_compute_body_with_unnamed_indices_gets_loop_names(body: Callable[..., Expr]) -> None:
    made = te.function("f", [te.compute((2, 2), body, name="out")])
    assert "for i0 in 2 {\n    for i1 in 2 {\n      out[i0, i1] = (i0 + i1)" in str(made)


def test_elementwise_functions_equal_numpy() -> None:
    a = te.placeholder((9,), "float64", name="a")
    x = np.array([-2.5, -1.0, -0.0, 0.0, 0.3, 1.0, 2.7, 100.0, np.inf])
    oracles: dict[str, Callable[[Array], Array]] = {
        "exp": np.exp,
        "sqrt": np.sqrt,
        "tanh": np.tanh,
        "floor": np.floor,
    }
    for name, oracle in oracles.items():
        b = te.compute((9,), lambda i: getattr(te, name)(a[i]))  # noqa: B023 - called at once
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(run([a, b], x)[0], oracle(x), rtol=1e-15)
    c = te.compute((9,), lambda i: te.clip(a[i], -1, 2.0))
    np.testing.assert_array_equal(run([a, c], x)[0], np.clip(x, -1, 2))
    d = te.compute((9,), lambda i: te.maximum(a[i], te.const(0.5, "float64")) - te.minimum(1, a[i]))
    np.testing.assert_array_equal(run([a, d], x)[0], np.maximum(x, 0.5) - np.minimum(x, 1))


INT32 = st.integers(-(2**31), 2**31 - 1)


REQUANTIZE = [te.placeholder((6,), "int32", name=name) for name in ("value", "factor", "shift")]


def requantize(rows: list[tuple[int, int, int]]) -> list[int]:
    value, factor, shift = REQUANTIZE
    out = te.compute((6,), lambda i: te.requantize(value[i], factor[i], shift[i]))
    columns = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    found: list[int] = run([*REQUANTIZE, out], *columns)[0].tolist()
    return found


@settings(max_examples=50)
@given(st.lists(st.tuples(INT32, INT32, st.integers(0, 62)), min_size=6, max_size=6))
def test_requantize_equals_exact_arithmetic_saturated(rows: list[tuple[int, int, int]]) -> None:
    exact = [(v * m + ((1 << s) >> 1)) >> s for v, m, s in rows]
    assert requantize(rows) == [min(max(each, -(2**31)), 2**31 - 1) for each in exact]
    assert requantize([(v, m, s - 64) for v, m, s in rows]) == requantize(rows)


def test_requantize_rounds_halves_up() -> None:
    found = requantize([(each, 1, 2) for each in (6, 5, 2, 1, -1, -2)])
    assert found == [2, 1, 1, 0, 0, 0]
    assert requantize([(each, 1, 2) for each in (-3, -5, -6, -7, 0, 3)]) == [-1, -1, -1, -2, 0, 1]


def test_sequence_calls_in_order_with_inner_tensors() -> None:
    x, hidden, y = (te.placeholder((2,), "int32", name=name) for name in "xhy")
    a, b = te.placeholder((2,), "int32", name="a"), te.placeholder((2,), "int32", name="b")
    double = te.function(
        "double", [a, te.compute((2,), lambda i: a[i] * 2, name="c")], private=True
    )
    plus = te.function("plus", [b, te.compute((2,), lambda i: b[i] + 1, name="c")])
    made = te.sequence("net", [x], [y], [te.call(double, x, hidden), te.call("plus", hidden, y)])
    assert (made.callees, double.private, plus.private) == (("double", "plus"), True, False)
    library = {"double": double, "plus": plus}
    assert interpret(made, [np.array([3, 4], np.int32)], library)[0].tolist() == [7, 9]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_saturating_sums_and_differences_stop_at_the_limits(dtype: str) -> None:
    limits = np.iinfo(dtype)
    values = [limits.min, limits.min + 1, limits.max - 1, limits.max, 0, 1, limits.max // 2]
    a, b = (np.array(side).ravel().astype(dtype) for side in np.meshgrid(values, values))
    x, y = (te.placeholder(a.shape, dtype, name=name) for name in "xy")
    total = te.compute(a.shape, lambda i: te.saturating_add(x[i], y[i]))
    rest = te.compute(a.shape, lambda i: te.saturating_sub(x[i], y[i]))
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    for out, exact in ((total, [p + q for p, q in pairs]), (rest, [p - q for p, q in pairs])):
        found = run([x, y, out], a, b)[0]
        assert found.tolist() == [min(max(each, limits.min), limits.max) for each in exact]


@pytest.mark.parametrize("dtype", ["bool", "int64", "uint64", "float32"])
def test_saturating_sums_of_other_types_are_refused(dtype: str) -> None:
    x = te.placeholder((2,), dtype, name="x")
    with pytest.raises(InvalidFunction):
        te.compute((2,), lambda i: te.saturating_add(x[i], x[i]))
