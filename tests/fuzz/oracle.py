"""Whether a scheduled function gives what the original gives."""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.ir import Function, Role, interpret, parse, serialise
from farm.ir.canonical import canonicalise
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


def assert_same(function: Function, found: tuple[Any, ...], wanted: tuple[Any, ...]) -> None:
    """Compare results: bit for bit, within rounding where the function allows other orders."""
    for a, b in zip(found, wanted, strict=True):
        if function.fast_math.reassociate or function.fast_math.contract:
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(a, b)


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
