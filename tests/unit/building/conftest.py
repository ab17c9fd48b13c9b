"""Small functions to build."""

from __future__ import annotations

import pytest

from farm import te


@pytest.fixture
def make():
    """Return a maker of functions ``y = x + amount`` over int32."""

    def function(name="f", amount=1, size=8, **options):
        x = te.placeholder((size,), "int32", name="x")
        y = te.compute((size,), lambda i: x[i] + amount, name="y")
        return te.function(name, [x, y], **options)

    return function


@pytest.fixture
def make_caller():
    """Return a maker of functions that call others, each on the result of the one before."""

    def function(name, *callees, size=8):
        tensors = [te.placeholder((size,), "int32", name=f"t{i}") for i in range(len(callees) + 1)]
        calls = [te.call(c, a, b) for c, a, b in zip(callees, tensors, tensors[1:], strict=False)]
        return te.sequence(name, [tensors[0]], [tensors[-1]], calls)

    return function
