"""Pooling over windows of images, ``[n, channels, height, width]``.

Owns: largest and mean values. Types: the result has the operand's.
"""

from __future__ import annotations

from collections.abc import Sequence

import farm.te as te
from farm.ir.expr import Const, Expr, const
from farm.ops.checks import computed_in, floats, padded_extent, pair, positive, rank, refuse
from farm.ops.shape import pad
from farm.te import Tensor


def _windows(
    name: str,
    x: Tensor,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] | None,
    padding: int | Sequence[int],
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]:
    rank(name, x, 4)
    size = pair(name, "kernel", kernel)
    step = size if stride is None else pair(name, "stride", stride)
    border = pair(name, "padding", padding)
    positive(name, "kernel and stride", *size, *step)
    if any(not 0 <= b < k for b, k in zip(border, size, strict=True)):
        raise refuse(name, f"padding {border}; use 0 to less than the kernel {size}")
    rows, columns = (
        padded_extent(name, x.shape[2 + i], size[i], step[i], (border[i], border[i]), 1)
        for i in (0, 1)
    )
    return size, step, border, (rows, columns)


def max_pool2d(
    x: Tensor,
    kernel: int | Sequence[int],
    *,
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
) -> Tensor:
    """Return the largest value of each window; padding never counts. The stride is the kernel unless given."""
    (kh, kw), (sh, sw), (ph, pw), (oh, ow) = _windows("max_pool2d", x, kernel, stride, padding)
    lowest = Const(float("-inf"), x.dtype) if x.dtype.is_float else const(x.dtype.min, x.dtype)
    source = pad(x, [(0, 0), (0, 0), (ph, ph), (pw, pw)], lowest) if ph or pw else x
    r, s = te.reduce_axis(kh, "r"), te.reduce_axis(kw, "s")
    return te.compute(
        (*x.shape[:2], oh, ow),
        lambda n, c, i, j: te.max(source[n, c, i * sh + r, j * sw + s], (r, s)),
        name="max_pool2d",
    )


def avg_pool2d(
    x: Tensor,
    kernel: int | Sequence[int],
    *,
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
) -> Tensor:
    """Return the mean of each window of floats; padding counts as zeros. The stride is the kernel unless given."""
    floats("avg_pool2d", x)
    (kh, kw), (sh, sw), (ph, pw), (oh, ow) = _windows("avg_pool2d", x, kernel, stride, padding)
    source = pad(x, [(0, 0), (0, 0), (ph, ph), (pw, pw)]) if ph or pw else x
    r, s = te.reduce_axis(kh, "r"), te.reduce_axis(kw, "s")

    def total(n: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        return te.sum(source[n, c, i * sh + r, j * sw + s].astype(computed_in(x.dtype)), (r, s))

    sums = te.compute((*x.shape[:2], oh, ow), total, name="window_sum")

    def mean(*at: Expr) -> Expr:
        return (sums[at] * (1.0 / (kh * kw))).astype(x.dtype)

    return te.compute(sums.shape, mean, name="avg_pool2d")
