"""Default schedules: they compute the same, and use vectors and registers where they should."""

from __future__ import annotations

import doctest
from collections.abc import Callable

import numpy as np
import pytest
from fuzz.oracle import arguments

import farm.ops as ops
import farm.ops.schedules
import farm.te as te
from farm.ir import Function, interpret
from farm.ops.schedules import default_schedule, scheduled
from farm.schedule import Trace

X86 = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3"


def product(m: int, n: int, depth: int) -> Function:
    a, b = te.placeholder((m, depth), name="a"), te.placeholder((depth, n), name="b")
    return te.function("product", [a, b, ops.matmul(a, b)])


def rows(operator: Callable[..., te.Tensor], *shape: int) -> Function:
    x = te.placeholder(shape, name="x")
    more = [te.placeholder(shape[-1:], name=n) for n in "gb"] * (operator is ops.layer_norm)
    return te.function("rows", [x, *more, operator(x, *more)])


CASES = {
    "product": (lambda: product(12, 16, 5), {"register", "vectorized", "unrolled"}),
    "product with a tail": (lambda: product(15, 32, 3), {"register", "vectorized", "unrolled"}),
    "product of odd extents": (lambda: product(7, 5, 3), set()),
    "relu": (lambda: rows(ops.relu, 3, 70), {"vectorized"}),
    "sum": (lambda: rows(lambda x: ops.sum(x, -1), 3, 64), {"register", "vectorized"}),
    "softmax": (lambda: rows(ops.softmax, 2, 64), {"register", "vectorized"}),
    "layer norm": (lambda: rows(ops.layer_norm, 2, 64), {"register", "vectorized"}),
    "transpose": (lambda: rows(ops.transpose, 5, 9), set()),
}


@pytest.mark.parametrize("name", CASES)
def test_default_schedule_computes_the_same(name: str) -> None:
    make, wanted = CASES[name]
    function = make()
    schedule = default_schedule(function, X86)
    inputs = arguments(function, 3)
    found = interpret(schedule.function, inputs, check_conflicts=True)
    for a, b in zip(found, interpret(function, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    words = set(str(schedule.function).replace("(", " ").split())
    assert wanted <= words
    assert Trace.from_json(schedule.trace.to_json()).apply(function).function == schedule.function


def test_target_without_recipes_gets_the_function_as_it_is() -> None:
    function = product(8, 8, 8)
    assert scheduled(function, "ea -config=ea16") == function


def test_example_in_the_documentation_runs() -> None:
    assert doctest.testmod(farm.ops.schedules).failed == 0
