"""Convolutions.

Owns: strides, padding, dilation, groups, both layouts. Types: as in `matmul`.
"""

from __future__ import annotations

from collections.abc import Sequence

import farm.te as te
from farm.ir.expr import Expr
from farm.ops.checks import (
    LAYOUTS,
    accumulator,
    padded_extent,
    pair,
    positive,
    rank,
    refuse,
    same_type,
)
from farm.ops.shape import pad, reshape
from farm.te import Tensor


def conv2d(
    x: Tensor,
    w: Tensor,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
) -> Tensor:
    """Return a convolution (a correlation, as everybody means by it), with zeros around.

    Parameters
    ----------
    x
        ``[n, channels, height, width]``, or ``[n, height, width, channels]`` for NHWC.
    w
        ``[outputs, channels / groups, kernel height, kernel width]``; for NHWC
        ``[kernel height, kernel width, channels / groups, outputs]``.
    padding
        Of both sides: one number, or one for each axis.
    groups
        As many as channels: a depthwise convolution.

    Returns
    -------
    Tensor
        In the layout of `x`.
    """
    name = "conv2d"
    rank(name, x, 4)
    rank(name, w, 4)
    same_type(name, x, w)
    if layout not in LAYOUTS:
        raise refuse(name, f"layout {layout!r}; use one of {', '.join(LAYOUTS)}")
    (sh, sw), (dh, dw) = pair(name, "stride", stride), pair(name, "dilation", dilation)
    (ph, pw) = pair(name, "padding", padding)
    positive(name, "stride, dilation and groups", sh, sw, dh, dw, groups)
    last = layout == "NHWC"
    n, channels, height, width = (x.shape[i] for i in ((0, 3, 1, 2) if last else (0, 1, 2, 3)))
    outputs, each, kh, kw = (w.shape[i] for i in ((3, 2, 0, 1) if last else (0, 1, 2, 3)))
    if channels != each * groups or outputs % groups:
        raise refuse(
            name,
            f"{channels} channels and {outputs} outputs in {groups} groups with weights {w.shape}; "
            f"each group has channels / groups and divides the outputs",
        )
    oh = padded_extent(name, height, kh, sh, (ph, ph), dh)
    ow = padded_extent(name, width, kw, sw, (pw, pw), dw)
    around = [(0, 0), (ph, ph), (pw, pw), (0, 0)] if last else [(0, 0), (0, 0), (ph, ph), (pw, pw)]
    source = pad(x, around) if ph or pw else x
    r, s = te.reduce_axis(kh, "r"), te.reduce_axis(kw, "s")
    c = te.reduce_axis(each, "c")
    wide = accumulator(x.dtype)
    per_group = outputs // groups

    def value(b: Expr, o: Expr, i: Expr, j: Expr) -> Expr:
        group = o // per_group if per_group > 1 else o
        first = 0 if groups == 1 else group * each
        inner = first if each == 1 else first + c
        row, column = i * sh + r * dh, j * sw + s * dw
        pixel = source[(b, row, column, inner) if last else (b, inner, row, column)]
        at = 0 if each == 1 else c
        weight = w[(r, s, at, o) if last else (o, at, r, s)]
        axes = (r, s) if each == 1 else (c, r, s)
        return te.sum(pixel.astype(wide) * weight.astype(wide), axes)

    if last:
        return te.compute((n, oh, ow, outputs), lambda b, i, j, o: value(b, o, i, j), name=name)
    return te.compute((n, outputs, oh, ow), value, name=name)


def conv1d(
    x: Tensor,
    w: Tensor,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Tensor:
    """Return a convolution along one axis: ``[n, channels, width]`` with ``[outputs, channels / groups, kernel]``."""
    rank("conv1d", x, 3)
    rank("conv1d", w, 3)
    rows, kernels = (reshape(t, (*t.shape[:2], 1, t.shape[2])) for t in (x, w))
    y = conv2d(
        rows,
        kernels,
        stride=(1, stride),
        padding=(0, padding),
        dilation=(1, dilation),
        groups=groups,
    )
    return reshape(y, (y.shape[0], y.shape[1], y.shape[3]))
