"""The same function in float64."""

from __future__ import annotations

import numpy as np
import pytest

from farm import te
from farm.errors import UnsupportedFunction
from farm.ir import DType, Function, interpret, verify
from farm.ir.declaration import functions_of
from farm.ir.stmt import expressions, walk
from farm.ir.widen import widened
from farm.schedule import Schedule


def product(dtype="float32"):
    a, b = te.placeholder((6, 8), dtype, name="a"), te.placeholder((8, 4), dtype, name="b")
    k = te.reduce_axis(8, "k")
    c = te.compute((6, 4), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    d = te.compute((6, 4), lambda i, j: te.maximum(te.exp(c[i, j] * 0.125), 0.0), name="d")
    return te.function("product", [a, b, d])


def test_widened_function_is_what_numpy_says_in_float64():
    wide = widened(product())
    verify(wide)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(6, 8)), rng.normal(size=(8, 4))
    (found,) = interpret(wide, [a, b])
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, np.exp(a @ b * 0.125), rtol=1e-12)


def test_widened_schedule_with_small_buffers_is_valid_and_computes_the_same():
    schedule = Schedule(product())
    result = schedule.cache_write("c", 0, "register")
    schedule.reverse_compute_at(result, schedule.get_loops(schedule.get_block("c"))[0])
    wide = widened(schedule.function)
    verify(wide)
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(6, 8)), rng.normal(size=(8, 4))
    np.testing.assert_allclose(interpret(wide, [a, b])[0], np.exp(a @ b * 0.125), rtol=1e-12)


def test_integers_stay():
    x = te.placeholder((4,), "int8", name="x")
    y = te.compute((4,), lambda i: x[i].astype("int32") * 3, name="y")
    function = te.function("f", [x, y])
    assert widened(function) == function


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_nothing_of_a_narrower_float_is_left(dtype):
    x = te.placeholder((4,), "int32", name="x")
    y = te.compute((4,), lambda i: x[i].astype(dtype) / 3.0, name="y")
    wide = widened(te.function("f", [x, y]))
    kinds = {expr.dtype for stmt in walk(wide.body) for expr in expressions(stmt)}
    assert DType(dtype) not in kinds
    assert [it.buffer.dtype for it in wide.params] == [DType.INT32, DType.FLOAT64]


def test_body_of_another_language_is_refused():
    text = b"// farm: f(x: float32[4] inout)\nvoid f(float *x) { x[0] = 1; }\n"
    (function,) = functions_of("f.c", text)
    assert isinstance(function, Function)
    with pytest.raises(UnsupportedFunction, match="reference"):
        widened(function)
