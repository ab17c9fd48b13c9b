"""Reductions over axes.

Owns: sums, means, largest and smallest values. Types: the result has the operand's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import farm.te as te
from farm.ir.expr import Expr
from farm.ops.checks import axis_of, computed_in, floats, refuse
from farm.te import Tensor

Axes = int | Sequence[int] | None


def _reduce(
    name: str, x: Tensor, axes: Axes, keepdims: bool, combine: Callable[..., Expr]
) -> Tensor:
    given = range(len(x.shape)) if axes is None else [axes] if isinstance(axes, int) else axes
    chosen = [axis_of(name, x, axis) for axis in given]
    if not chosen or len(set(chosen)) < len(chosen):
        raise refuse(name, f"axes {axes!r} of shape {x.shape}; name each once, at least one")
    steps = {axis: te.reduce_axis(x.shape[axis], f"k{axis}") for axis in chosen}
    kept = [axis for axis in range(len(x.shape)) if axis not in steps]
    shape = tuple(
        1 if axis in steps else size
        for axis, size in enumerate(x.shape)
        if keepdims or axis not in steps
    )

    def body(*at: Expr) -> Expr:
        own = [at[axis] for axis in kept] if keepdims else list(at)
        index: dict[int, Expr] = {**dict(zip(kept, own, strict=True)), **steps}
        return combine(x[tuple(index[i] for i in range(len(x.shape)))], tuple(steps.values()))

    return te.compute(shape, body, name=name)


def sum(x: Tensor, axes: Axes = None, *, keepdims: bool = False) -> Tensor:  # noqa: A001 - numpy's name
    """Return the sum over some axes, or all; of floats of 16 bits it is kept in float32 and rounded at the end."""
    total = _sum(x, axes, keepdims)
    if total.dtype is x.dtype:
        return total
    return te.compute(total.shape, lambda *at: total[at].astype(x.dtype), name="sum_rounded")


def _sum(x: Tensor, axes: Axes, keepdims: bool) -> Tensor:
    wide = computed_in(x.dtype)
    return _reduce("sum", x, axes, keepdims, lambda value, over: te.sum(value.astype(wide), over))


def max(x: Tensor, axes: Axes = None, *, keepdims: bool = False) -> Tensor:  # noqa: A001 - numpy's name
    """Return the largest value over some axes, or all."""
    return _reduce("max", x, axes, keepdims, te.max)


def min(x: Tensor, axes: Axes = None, *, keepdims: bool = False) -> Tensor:  # noqa: A001 - numpy's name
    """Return the smallest value over some axes, or all."""
    return _reduce("min", x, axes, keepdims, te.min)


def mean(x: Tensor, axes: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Return the mean of floats over some axes, or all."""
    floats("mean", x)
    total = _sum(x, axes, keepdims)
    count = math.prod(x.shape) // math.prod(total.shape)

    def body(*at: Expr) -> Expr:
        return (total[at] * (1.0 / count)).astype(x.dtype)

    return te.compute(total.shape, body, name="mean")
