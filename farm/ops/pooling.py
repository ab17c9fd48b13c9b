"""Pooling over windows of images, in both layouts.

Owns: largest and mean values. Types: the result has the operand's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import farm.te as te
from farm.ir.dtype import DType
from farm.ir.expr import Const, Expr, const
from farm.ops.checks import LAYOUTS, computed_in, padded_extent, pair, positive, rank, refuse
from farm.ops.shape import pad
from farm.te import Tensor

MAX_WINDOW = 1 << 16
"""Integers of 16 bits whose sum fits 32 bits."""


@dataclass(frozen=True, slots=True)
class _Windows:
    """Windows of a tensor of images: sizes, and where they are."""

    shape: tuple[int, ...]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    around: list[tuple[int, int]]
    last: bool

    @property
    def padded(self) -> bool:
        """Whether anything is around the images."""
        return any(map(any, self.around))

    def at(self, source: Tensor, places: Sequence[Expr], tap: tuple[Expr, Expr]) -> Expr:
        """Return the element of one tap of the window at some indices of the result."""
        b, *rest = places
        i, j, c = rest if self.last else (rest[1], rest[2], rest[0])
        (sh, sw), (r, s) = self.stride, tap
        row, column = i * sh + r, j * sw + s
        return source[(b, row, column, c) if self.last else (b, c, row, column)]


def _windows(
    name: str,
    x: Tensor,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] | None,
    padding: int | Sequence[int],
    layout: str,
) -> _Windows:
    rank(name, x, 4)
    if layout not in LAYOUTS:
        raise refuse(name, f"layout {layout!r}; use one of {', '.join(LAYOUTS)}")
    size = pair(name, "kernel", kernel)
    step = size if stride is None else pair(name, "stride", stride)
    border = pair(name, "padding", padding)
    positive(name, "kernel and stride", *size, *step)
    if any(not 0 <= b < k for b, k in zip(border, size, strict=True)):
        raise refuse(name, f"padding {border}; use 0 to less than the kernel {size}")
    first = 1 if layout == "NHWC" else 2
    places = [
        padded_extent(name, x.shape[first + i], size[i], step[i], (border[i], border[i]), 1)
        for i in (0, 1)
    ]
    shape, around = list(x.shape), [(0, 0)] * 4
    for i in (0, 1):
        shape[first + i], around[first + i] = places[i], (border[i], border[i])
    return _Windows(tuple(shape), size, step, around, layout == "NHWC")


def max_pool2d(
    x: Tensor,
    kernel: int | Sequence[int],
    *,
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    layout: str = "NCHW",
) -> Tensor:
    """Return the largest value of each window; padding never counts. The stride is the kernel unless given."""
    windows = _windows("max_pool2d", x, kernel, stride, padding, layout)
    lowest = Const(float("-inf"), x.dtype) if x.dtype.is_float else const(x.dtype.min, x.dtype)
    source = pad(x, windows.around, lowest) if windows.padded else x
    r, s = (te.reduce_axis(n, axis) for n, axis in zip(windows.kernel, "rs", strict=True))

    def body(i0: Expr, i1: Expr, i2: Expr, i3: Expr) -> Expr:
        return te.max(windows.at(source, (i0, i1, i2, i3), (r, s)), (r, s))

    return te.compute(windows.shape, body, name="max_pool2d")


def avg_pool2d(
    x: Tensor,
    kernel: int | Sequence[int],
    *,
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    layout: str = "NCHW",
) -> Tensor:
    """Return the mean of each window; padding counts as zeros. The stride is the kernel unless given.

    Notes
    -----
    Of integers of 8 or 16 bits the mean is rounded to the nearest, halves away from zero: the sum in int32, rescaled
    by TOSA's reciprocal of the window's size.
    """
    name = "avg_pool2d"
    windows = _windows(name, x, kernel, stride, padding, layout)
    count = windows.kernel[0] * windows.kernel[1]
    whole = x.dtype.is_integer and x.dtype.bits <= 16
    if not (whole or x.dtype.is_float) or (whole and count > MAX_WINDOW):
        raise refuse(
            name,
            f"{x.name} is {x.dtype}, with a window of {count}; use floats, or integers of 8 or 16 bits and at most "
            f"{MAX_WINDOW} of them",
        )
    source = pad(x, windows.around) if windows.padded else x
    r, s = (te.reduce_axis(n, axis) for n, axis in zip(windows.kernel, "rs", strict=True))
    wide = DType.INT32 if whole else computed_in(x.dtype)

    def total(i0: Expr, i1: Expr, i2: Expr, i3: Expr) -> Expr:
        return te.sum(windows.at(source, (i0, i1, i2, i3), (r, s)).astype(wide), (r, s))

    sums = te.compute(windows.shape, total, name="window_sum")

    def mean(*at: Expr) -> Expr:
        if not whole:
            return (sums[at] * (1.0 / count)).astype(x.dtype)
        scaled = te.requantize(sums[at], *(const(n, DType.INT32) for n in _reciprocal(count)))
        return te.clip(scaled, x.dtype.min, x.dtype.max).astype(x.dtype)

    return te.compute(sums.shape, mean, name=name)


def _reciprocal(count: int) -> tuple[int, int]:
    """Return TOSA's multiplier and shift of ``1 / count``."""
    bits = (count - 1).bit_length()
    return (((1 << 30) + 1) << bits) // count, 30 + bits
