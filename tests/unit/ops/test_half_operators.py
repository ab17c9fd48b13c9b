"""Operators on floats of 16 bits: computed in float32, rounded once at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import farm.ops as ops
import farm.te as te
from farm.core.elements import numpy_dtype
from farm.ir import DType, interpret
from farm.ops.schedules import scheduled

Array = np.ndarray[Any, Any]
HALVES = ("float16", "bfloat16")
X = np.random.default_rng(3).standard_normal((2, 3, 8, 8))
OPERATORS: dict[str, tuple[Callable[..., te.Tensor], tuple[tuple[int, ...], ...]]] = {
    "softmax": (ops.softmax, ((4, 9),)),
    "layer_norm": (ops.layer_norm, ((4, 9), (9,), (9,))),
    "gelu": (ops.gelu, ((3, 5),)),
    "sigmoid": (ops.sigmoid, ((3, 5),)),
    "exp": (ops.exp, ((3, 5),)),
    "sum": (lambda x: ops.sum(x, 1), ((3, 64),)),
    "mean": (lambda x: ops.mean(x, 1, keepdims=True), ((3, 64),)),
    "avg_pool2d": (lambda x: ops.avg_pool2d(x, 2), ((1, 2, 4, 4),)),
}


def run(operator: Callable[..., te.Tensor], arrays: list[Array]) -> Array:
    tensors = [te.placeholder(a.shape, a.dtype.name, f"in{n}") for n, a in enumerate(arrays)]
    (found,) = interpret(te.function("f", [*tensors, operator(*tensors)]), arrays)
    return found


def operands(shapes: tuple[tuple[int, ...], ...], dtype: str) -> list[Array]:
    rng = np.random.default_rng(11)
    return [rng.standard_normal(shape).astype(numpy_dtype(dtype)) for shape in shapes]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", OPERATORS)
def test_operator_is_that_of_float32_rounded_once(name: str, dtype: str) -> None:
    operator, shapes = OPERATORS[name]
    arrays = operands(shapes, dtype)
    wanted = run(operator, [a.astype(np.float32) for a in arrays])
    found = run(operator, arrays)
    assert found.dtype == numpy_dtype(dtype)
    assert found.tobytes() == wanted.astype(numpy_dtype(dtype)).tobytes()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("target", ["llvm", "llvm -mtriple=aarch64-linux-gnu", "opencl"])
def test_sums_of_products_are_kept_in_float32_under_every_schedule(dtype: str, target: str) -> None:
    a, b = (te.placeholder((16, 16), dtype, name=name) for name in "ab")
    function = te.function("product", [a, b, ops.matmul(a, b)])
    assert function.params[-1].buffer.dtype is DType.FLOAT32
    arrays = operands(((16, 16), (16, 16)), dtype)
    for each in (function, scheduled(function, target)):
        (found,) = interpret(each, arrays)
        np.testing.assert_array_equal(found, interpret(function, arrays)[0])
    exact = arrays[0].astype(np.float64) @ arrays[1].astype(np.float64)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", HALVES)
def test_convolution_gives_float32_and_relu_its_own_type(dtype: str) -> None:
    x, w = operands(((1, 2, 5, 5), (3, 2, 3, 3)), dtype)
    wide = [each.astype(np.float32) for each in (x, w)]
    np.testing.assert_array_equal(run(ops.conv2d, [x, w]), run(ops.conv2d, wide))
    assert run(ops.relu, [x]).dtype == x.dtype
    restored = run(lambda t: ops.dequantize(ops.quantize(t, 0.5), 0.5, dtype=dtype), [x])
    assert np.abs(restored.astype(np.float64) - x.astype(np.float64)).max() <= 0.25
