"""Whether a scheduled function gives what the original gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from farm.core.elements import is_float
from farm.ir import Function, Role, interpret, parse, serialise
from farm.ir.canonical import canonicalise
from farm.ir.expr import Expr, Math
from farm.ir.expr import walk as walk_expr
from farm.ir.stmt import expressions, walk
from farm.schedule import Schedule, Trace

Arrays = list[np.ndarray[Any, Any]]


def arguments(function: Function, seed: int) -> Arrays:
    """Return random inputs: small whole numbers, so that sums of floats are exact in any order."""
    rng = np.random.default_rng(seed)
    inputs = [p.buffer for p in function.params if p.role is not Role.OUTPUT]
    return [
        rng.integers(0 if str(b.dtype).startswith("u") else -4, 5, b.shape).astype(b.dtype.numpy)
        for b in inputs
    ]


def assert_same(
    function: Function, found: tuple[Any, ...], wanted: tuple[Any, ...], *, exact: bool = True
) -> None:
    """Compare results: bit for bit, within rounding where the function allows other orders.

    Parameters
    ----------
    exact
        Whether functions such as exp give the interpreter's value.
    """
    loose = function.fast_math.reassociate or function.fast_math.contract
    loose |= not exact and any(isinstance(x, Math) for x in _expressions(function))
    for a, b in zip(found, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if loose and is_float(a.dtype):
            wide = (np.asarray(each, np.float64) for each in (a, b))
            rtol = 1e-5 if a.dtype.itemsize >= 4 else 1e-2
            np.testing.assert_allclose(*wide, rtol=rtol, atol=1e-6)
        else:
            np.testing.assert_array_equal(a, b)


def _expressions(function: Function) -> Iterator[Expr]:
    for stmt in walk(function.body):
        for expr in expressions(stmt):
            yield from walk_expr(expr)


def check_schedule(original: Function, schedule: Schedule, seed: int) -> None:
    """Compare a schedule's function with the original by the interpreter, and what its trace gives."""
    scheduled = schedule.function
    inputs = arguments(original, seed)
    wanted = interpret(original, inputs)
    assert_same(scheduled, interpret(scheduled, inputs, check_conflicts=True), wanted)
    trace = schedule.trace
    assert Trace.from_json(trace.to_json()).apply(original).function == scheduled
    assert Trace.from_text(str(trace)) == trace
    assert parse(serialise(scheduled)) == canonicalise(scheduled)
