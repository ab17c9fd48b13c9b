"""Random functions of the shapes that people write: products, convolutions, reductions, stencils, normalisations."""

from __future__ import annotations

from collections.abc import Callable

import farm.te as te
from farm.ir import Function
from farm.ir.expr import Expr
from fuzz.chooser import Chooser

INTEGERS = ("int32", "int8", "uint8", "int16", "int64")
TYPES = ("int32", "float32", "int8", "float64", "uint8", "int64")
HALVES = ("float16", "bfloat16")
"""Their sums depend on the order unless they are kept in a wider type."""


def random_function(choose: Chooser) -> Function:
    """Return a function that verifies, small enough for the interpreter."""
    return choose.one(MAKERS)(choose)


def _wide(dtype: str) -> str:
    narrow = {"int8": "int32", "uint8": "int32", "int16": "int32"}
    return {**narrow, **dict.fromkeys(HALVES, "float32")}.get(dtype, dtype)


def _value(choose: Chooser, value: Expr) -> Expr:
    """Return a value computed from another of the same type."""
    steps: list[Callable[[], Expr]] = [
        lambda: value + 3,
        lambda: value * 2,
        lambda: te.maximum(value, 1),
        lambda: te.where(value > 2, value, value * 3),
        lambda: value - value * 2,
    ]
    return choose.one(steps)()


def elementwise(choose: Chooser) -> Function:
    """Stages over one shape, each from the one before and maybe the input."""
    rank = choose.number(1, 3)
    shape = tuple(choose.number(1, 7) for _ in range(rank))
    x = te.placeholder(shape, choose.one((*TYPES, *HALVES)), name="x")
    stages = [x]
    for number in range(choose.number(1, 3)):
        last, other = stages[-1], choose.one(stages)

        def body(*at: Expr, last: te.Tensor = last, other: te.Tensor = other) -> Expr:
            value = _value(choose, last[at])
            return value + other[at] if other is not last else value

        stages.append(te.compute(shape, body, name=f"s{number}"))
    return te.function("elementwise", [x, stages[-1]])


def product(choose: Chooser) -> Function:
    """A matrix product, maybe batched, transposed, with something done to the result."""
    m, n, depth = choose.number(1, 9), choose.number(1, 9), choose.number(1, 9)
    dtype = choose.one((*TYPES, "int16", *HALVES))
    ta, tb = choose.number(0, 1), choose.number(0, 1)
    batch = (choose.number(1, 3),) if choose.number(0, 2) == 2 else ()
    a = te.placeholder((*batch, *((depth, m) if ta else (m, depth))), dtype, name="a")
    b = te.placeholder((*batch, *((n, depth) if tb else (depth, n))), dtype, name="b")
    k = te.reduce_axis(depth, "k")

    def body(*at: Expr) -> Expr:
        *z, i, j = at
        left = a[(*z, k, i) if ta else (*z, i, k)].astype(_wide(dtype))
        right = b[(*z, j, k) if tb else (*z, k, j)].astype(_wide(dtype))
        return te.sum(left * right, k)

    c = te.compute((*batch, m, n), body, name="c")
    if choose.number(0, 1):
        d = te.compute((*batch, m, n), lambda *at: _value(choose, c[at]), name="d")
        return te.function("product", [a, b, d])
    return te.function("product", [a, b, c])


def convolution(choose: Chooser) -> Function:
    """A small convolution with padding, stride and dilation, full or depthwise."""
    channels, out = choose.number(1, 3), choose.number(1, 3)
    size, kernel = choose.number(3, 6), choose.number(1, 3)
    stride, dilation, border = choose.number(1, 2), choose.number(1, 2), choose.number(0, 1)
    reach = dilation * (kernel - 1) + 1
    if size + 2 * border < reach:
        border = 1
        kernel, dilation, reach = 1, 1, 1
    extent = (size + 2 * border - reach) // stride + 1
    dtype = choose.one(("int32", "float32", "int8", "bfloat16", "float16"))
    depthwise = choose.number(0, 1)
    x = te.placeholder((channels, size, size), dtype, name="x")
    shape = (channels, kernel, kernel) if depthwise else (out, channels, kernel, kernel)
    w = te.placeholder(shape, dtype, name="w")
    whole = size + 2 * border

    def pad(c: Expr, h: Expr, v: Expr) -> Expr:
        inside = (h >= border) & (h < size + border) & (v >= border) & (v < size + border)
        return te.where(inside, x[c, h - border, v - border], 0)

    p = te.compute((channels, whole, whole), pad, name="p") if border else x
    r, s, q = (
        te.reduce_axis(n, name) for n, name in ((kernel, "r"), (kernel, "s"), (channels, "q"))
    )

    def at(c: Expr, i: Expr, j: Expr) -> Expr:
        return p[c, i * stride + r * dilation, j * stride + s * dilation].astype(_wide(dtype))

    if depthwise:
        y = te.compute(
            (channels, extent, extent),
            lambda c, i, j: te.sum(at(c, i, j) * w[c, r, s].astype(_wide(dtype)), (r, s)),
            name="y",
        )
    else:
        y = te.compute(
            (out, extent, extent),
            lambda o, i, j: te.sum(at(q, i, j) * w[o, q, r, s].astype(_wide(dtype)), (q, r, s)),
            name="y",
        )
    return te.function("convolution", [x, w, y])


def reduction(choose: Chooser) -> Function:
    """A sum, largest or smallest value over one or two axes, and something done to it."""
    m, n = choose.number(1, 8), choose.number(1, 12)
    x = te.placeholder((m, n), choose.one(TYPES), name="x")
    combine = choose.one((te.sum, te.max, te.min))
    k, q = te.reduce_axis(n, "k"), te.reduce_axis(m, "q")
    way = choose.number(0, 2)
    if way == 0:
        t = te.compute((m,), lambda i: combine(x[i, k], k), name="t")
    elif way == 1:
        t = te.compute((n,), lambda j: combine(x[q, j], q), name="t")
    else:
        t = te.compute((), lambda: combine(x[q, k], (q, k)), name="t")
    if choose.number(0, 1) and way == 0:
        y = te.compute((m, n), lambda i, j: x[i, j] - t[i], name="y")
        return te.function("reduction", [x, y])
    return te.function("reduction", [x, t])


def stencil(choose: Chooser) -> Function:
    """Two stages that read neighbours, each."""
    m, n = choose.number(1, 6), choose.number(1, 6)
    reach = choose.number(1, 2)
    x = te.placeholder((m + 1, n + reach), choose.one((*TYPES, *HALVES)), name="x")
    h = te.compute((m + 1, n), lambda r, c: x[r, c] + x[r, c + reach], name="h")
    y = te.compute((m, n), lambda i, j: h[i, j] + h[i + 1, j], name="y")
    return te.function("stencil", [x, y])


def softmax(choose: Chooser) -> Function:
    """Four stages, two of them reductions of the same rows."""
    m, n = choose.number(1, 5), choose.number(1, 8)
    x = te.placeholder((m, n), "float32", name="x")
    k, q = te.reduce_axis(n, "k"), te.reduce_axis(n, "q")
    top = te.compute((m,), lambda i: te.max(x[i, k], k), name="top")
    e = te.compute((m, n), lambda a, b: te.exp(x[a, b] - top[a]), name="e")
    total = te.compute((m,), lambda c: te.sum(e[c, q], q), name="total")
    y = te.compute((m, n), lambda d, f: e[d, f] / total[d], name="y")
    return te.function("softmax", [x, y])


def permutation(choose: Chooser) -> Function:
    """Elements moved: transposed, flattened, turned round or looked up."""
    m, n = choose.number(1, 7), choose.number(1, 7)
    x = te.placeholder((m, n), choose.one(TYPES), name="x")
    way = choose.number(0, 3)
    if way == 0:
        t = te.compute((n, m), lambda i, j: x[j, i], name="t")
    elif way == 1:
        t = te.compute((m * n,), lambda i: x[i // n, i % n], name="t")
    elif way == 2:
        t = te.compute((m, n), lambda i, j: x[m - 1 - i, j], name="t")
    else:
        at = te.placeholder((n,), "int32", name="at")
        safe = te.compute((n,), lambda i: te.clip(at[i], 0, m - 1), name="safe")
        t = te.compute((n, n), lambda i, j: x[te.clip(safe[i], 0, m - 1), j], name="t")
        y = te.compute(t.shape, lambda p, q: _value(choose, t[p, q]), name="y")
        return te.function("permutation", [x, at, y])
    y = te.compute(t.shape, lambda *at: _value(choose, t[at]), name="y")
    return te.function("permutation", [x, y])


MAKERS: tuple[Callable[[Chooser], Function], ...] = (
    elementwise,
    product,
    reduction,
    stencil,
    permutation,
    convolution,
    softmax,
)
