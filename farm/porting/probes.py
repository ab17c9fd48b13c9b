"""Functions and arrays that accelerators are checked with: usual ones, odd ones, and ones that nobody should take.

Owns: the selection. Does not own: what any accelerator does with them.

Invariant: the same seed gives the same functions and arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from farm import ops, te
from farm.ir import Function, Role
from farm.te import Tensor

Array = npt.NDArray[Any]

_Both = int | tuple[int, int]
_Convolution = tuple[int, int, int, int, int, tuple[int, int], _Both, _Both]

DENSE = (
    *((1, 1, 1), (8, 8, 8), (16, 16, 16), (7, 9, 13), (17, 31, 5)),
    *((1, 37, 40), (33, 1, 64), (3, 65, 1), (9, 8, 130)),
)
CONVOLUTIONS: tuple[_Convolution, ...] = (  # n h w c o, kernel, stride, padding
    (1, 5, 5, 1, 1, (3, 3), 1, 0),
    (1, 4, 4, 8, 8, (1, 1), 1, 0),
    (1, 6, 7, 3, 5, (3, 2), 2, 1),
    (2, 7, 5, 4, 9, (2, 3), (1, 2), (0, 1)),
    (1, 3, 3, 16, 2, (3, 3), 1, 1),
)
RANDOM_SHAPES = 6
MOST = 24


def probes(seed: int) -> Iterator[tuple[str, Function]]:
    """Yield functions with a label for each."""
    rng = np.random.default_rng(seed)
    random = [tuple(map(int, rng.integers(1, MOST, 3))) for _ in range(RANDOM_SHAPES)]
    for m, n, k in (*DENSE, *random):
        yield from _dense(m, n, k)
    for number, shape in enumerate(CONVOLUTIONS):
        yield from _convolutions(number, *shape)
    yield from _others()


def _dense(m: int, n: int, k: int) -> Iterator[tuple[str, Function]]:
    x = te.placeholder((m, k), "int8", name="x")
    w, turned = te.placeholder((k, n), "int8", name="w"), te.placeholder((n, k), "int8", name="w")
    name = f"dense {m}x{n}x{k}"
    yield name, te.function("probe", [x, w, ops.matmul(x, w)])
    yield f"{name} transposed", te.function("probe", [turned, x, ops.dense(x, turned)])
    bias = te.placeholder((n,), "int16", name="bias")
    product = ops.dense(x, turned)
    wide = te.compute(
        (m, n), lambda i, j: te.maximum(product[i, j] + bias[j].astype("int32"), 0), name="relu"
    )
    yield f"{name} bias relu", te.function("probe", [x, turned, bias, wide])
    yield f"{name} to int8", te.function("probe", [x, turned, bias, _narrowed(product, bias)])


def _narrowed(product: Tensor, bias: Tensor) -> Tensor:
    def body(*at: Any) -> Any:  # noqa: ANN401 - indices and a value
        shifted = (product[at] + bias[at[-1]].astype("int32")) >> 5
        return te.clip(shifted, -128, 127).astype("int8")

    return te.compute(product.shape, body, name="narrow")


def _convolutions(
    number: int,
    n: int,
    h: int,
    w: int,
    c: int,
    o: int,
    kernel: tuple[int, int],
    stride: int | tuple[int, int],
    padding: int | tuple[int, int],
) -> Iterator[tuple[str, Function]]:
    for layout in ("NHWC", "NCHW"):
        last = layout == "NHWC"
        x = te.placeholder((n, h, w, c) if last else (n, c, h, w), "int8", name="x")
        k = te.placeholder((*kernel, c, o) if last else (o, c, *kernel), "int8", name="k")
        y = ops.conv2d(x, k, stride=stride, padding=padding, layout=layout)
        yield f"conv2d {number} {layout}", te.function("probe", [x, k, y])
        if last:
            bias = te.placeholder((o,), "int8", name="bias")
            yield f"conv2d {number} to int8", te.function("probe", [x, k, bias, _narrowed(y, bias)])


def _others() -> Iterator[tuple[str, Function]]:
    v, f = te.placeholder((13,), "int32", name="v"), te.placeholder((4, 5), "float32", name="f")
    g = te.placeholder((5, 3), "float32", name="g")
    yield (
        "element-wise",
        te.function("probe", [v, te.compute((13,), lambda i: v[i] * 3 - 7, name="y")]),
    )
    yield "float dense", te.function("probe", [f, g, ops.matmul(f, g)])
    yield "softmax", te.function("probe", [f, ops.softmax(f)])
    k = te.reduce_axis(13, "k")
    yield (
        "maximum",
        te.function("probe", [v, te.compute((1,), lambda i: te.max(v[k], k), name="y")]),
    )


def inputs_of(function: Function, kind: str, seed: int) -> list[Array]:
    """Return arrays for a function's inputs: ``random``, ``extreme`` (least and greatest values only) or ``zero``."""
    rng = np.random.default_rng(seed)
    made = []
    for param in function.params:
        buffer = param.buffer
        if param.role is Role.OUTPUT:
            continue
        if buffer.dtype.is_float:
            made.append(rng.standard_normal(buffer.shape).astype(buffer.dtype.numpy))
            continue
        low, high = int(buffer.dtype.min), int(buffer.dtype.max)
        if kind == "zero":
            made.append(np.zeros(buffer.shape, buffer.dtype.numpy))
        elif kind == "extreme":
            made.append(rng.choice(np.array([low, high], buffer.dtype.numpy), buffer.shape))
        else:
            made.append(
                rng.integers(low, high, buffer.shape, dtype=buffer.dtype.numpy, endpoint=True)
            )
    return made


KINDS = ("random", "extreme", "zero")
