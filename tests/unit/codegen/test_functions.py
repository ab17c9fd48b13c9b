"""exp and tanh against numpy in a higher precision, in units in the last place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from farm.codegen.llvm.functions import MAX_ULPS
from farm.ir import FastMath
from farm.ir.expr import Math, MathOp

SIZE = 1 << 16
REFERENCES = {MathOp.EXP: np.exp, MathOp.TANH: np.tanh}
# Where exp leaves the finite numbers, the normal ones, and everything.
EXP_LIMITS = {
    "float32": (88.72284, -87.33655, -103.97208),
    "float64": (709.782712893384, -708.396418532, -745.1332191019412),
}
HALF_LN2 = 0.34657359027997264


def arguments_of(op, dtype):
    """Random arguments of every size, and all floats next to where the algorithms change."""
    rng = np.random.default_rng(1)
    overflow, _, zero = EXP_LIMITS[dtype]
    parts = [
        rng.uniform(-1, 1, SIZE),
        rng.uniform(0.5, 1.0, SIZE),
        rng.uniform(zero * 1.01, overflow * 1.01, SIZE),
        rng.uniform(zero, zero * 0.8, SIZE),
        rng.standard_normal(SIZE) * 10.0 ** rng.uniform(-40, 3, SIZE),
    ]
    kind = np.dtype(dtype).type
    points = [*EXP_LIMITS[dtype], 0.0, 0.625, -0.625, HALF_LN2, -HALF_LN2]
    points += [n * 2 * HALF_LN2 for n in range(-160, 130)] + [
        (n + 0.5) * 2 * HALF_LN2 for n in range(-160, 130)
    ]
    near = [np.array(points, kind)]
    for towards in (kind(np.inf), kind(-np.inf)):
        last = near[0]
        for _ in range(20):
            last = np.nextafter(last, towards)
            near.append(last)
    return np.concatenate([part.astype(kind) for part in parts] + near)


def ulps(actual, exact, dtype):
    """Distance from the exact values in units in the last place of their nearest floats."""
    with np.errstate(over="ignore"):
        nearest = exact.astype(dtype)
    finite = np.isfinite(nearest) & np.isfinite(actual)
    unit = np.spacing(np.abs(nearest[finite])).astype(np.longdouble)
    return np.abs(actual[finite].astype(np.longdouble) - exact[finite]) / unit, finite, nearest


@pytest.mark.parametrize("contract", [False, True], ids=["exact", "contract"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", list(REFERENCES), ids=lambda op: op.value)
def test_function_of_many_arguments_is_within_its_bound(
    op, dtype, contract, elementwise_function, run
):
    x = arguments_of(op, dtype)
    function = elementwise_function("compute", {"x": x}, {"y": lambda x, i: Math(op, x)})
    function = replace(function, fast_math=FastMath(contract=contract))
    y = run(function, [x])[0]
    with np.errstate(all="ignore"):
        exact = REFERENCES[op](x.astype(np.longdouble))
    error, finite, nearest = ulps(y, exact, np.dtype(dtype))
    assert error.max() <= MAX_ULPS
    assert np.array_equal(y[~finite], nearest[~finite], equal_nan=True)
    assert finite.sum() > 4 * SIZE


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exp_of_special_values_is_exact(dtype, elementwise_function, run):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e4, -1e4, 5e-324, -5e-324], dtype)
    function = elementwise_function("compute", {"x": x}, {"y": lambda x, i: Math(MathOp.EXP, x)})
    y = run(function, [x])[0]
    expected = np.array([1.0, 1.0, np.inf, 0.0, np.nan, np.inf, 0.0, 1.0, 1.0], dtype)
    assert np.array_equal(y, expected, equal_nan=True)
    assert not np.signbit(y[3])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tanh_of_special_values_is_exact_with_its_sign(dtype, elementwise_function, run):
    tiny = float(np.finfo(dtype).smallest_subnormal)
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 50.0, -50.0, tiny, -tiny, 3 * tiny], dtype)
    function = elementwise_function("compute", {"x": x}, {"y": lambda x, i: Math(MathOp.TANH, x)})
    y = run(function, [x])[0]
    expected = np.array([0.0, -0.0, 1, -1, np.nan, 1, -1, tiny, -tiny, 3 * tiny], dtype)
    assert np.array_equal(y, expected, equal_nan=True)
    assert np.array_equal(np.signbit(y[:2]), [False, True])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", list(REFERENCES), ids=lambda op: op.value)
def test_function_never_falls_where_its_argument_rises_much(op, dtype, elementwise_function, run):
    x = np.linspace(-100, 100, 40001).astype(dtype)
    function = elementwise_function("compute", {"x": x}, {"y": lambda x, i: Math(op, x)})
    y = run(function, [x])[0]
    assert np.all(np.diff(y[y < np.inf]) >= -2 * np.spacing(np.abs(y[y < np.inf][1:])))
