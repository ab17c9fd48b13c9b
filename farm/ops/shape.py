"""Operators that move elements: transpose, reshape, pad, concat, resize.

Owns: where each element comes from. Types: the result has the operand's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import farm.te as te
from farm.ir.expr import Expr, Scalar, as_expr, const
from farm.ops.checks import axis_of, computed_in, floats, pair, positive, rank, refuse, same_type
from farm.te import Tensor

METHODS = ("nearest", "bilinear")


def transpose(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """Return the tensor with its axes in another order, as ``numpy.transpose`` does; turned round unless given."""
    order = list(range(len(x.shape)))[::-1] if axes is None else list(axes)
    if sorted(order) != list(range(len(x.shape))):
        raise refuse("transpose", f"axes {axes!r} of shape {x.shape}; name each once")

    def body(*at: Expr) -> Expr:
        back = dict(zip(order, at, strict=True))
        return x[tuple(back[axis] for axis in range(len(order)))]

    return te.compute(tuple(x.shape[axis] for axis in order), body, name="transpose")


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the same elements in row-major order under another shape; one extent may be -1."""
    new = list(shape)
    if new.count(-1) == 1:
        known = -math.prod(new)
        new[new.index(-1)] = math.prod(x.shape) // known if known else -1
    if math.prod(new) != math.prod(x.shape) or any(extent < 1 for extent in new):
        raise refuse("reshape", f"shape {tuple(shape)} of {x.shape}; keep the number of elements")

    def body(*at: Expr) -> Expr:
        flat: Expr = const(0, "int64")
        for index, extent in zip(at, new, strict=True):
            flat = flat * extent + index
        found: list[Expr] = []
        for extent in reversed(x.shape):
            found.append(flat % extent)
            flat = flat // extent
        return x[tuple(reversed(found))]

    return te.compute(tuple(new), body, name="reshape")


def pad(x: Tensor, around: Sequence[tuple[int, int]], value: Scalar | Expr = 0) -> Tensor:
    """Return the tensor with a value around it: as many elements before and after as each axis says."""
    if len(around) != len(x.shape) or any(min(both) < 0 for both in around):
        raise refuse("pad", f"around {around!r} of shape {x.shape}; use two numbers for each axis")
    shape = tuple(a + size + b for size, (a, b) in zip(x.shape, around, strict=True))
    outside = as_expr(value, x.dtype)

    def body(*at: Expr) -> Expr:
        inside = x[tuple(i - a if a else i for i, (a, _) in zip(at, around, strict=True))]
        tests = []
        for index, size, (a, b) in zip(at, x.shape, around, strict=True):
            tests += [index >= a] * (a > 0) + [index < a + size] * (b > 0)
        if not tests:
            return inside
        test = tests[0]
        for more in tests[1:]:
            test = test & more
        return te.where(test, inside, outside)

    return te.compute(shape, body, name="pad")


def concat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Return tensors one after the other along an axis."""
    if not tensors:
        raise refuse("concat", "no tensors; pass one or more")
    first = tensors[0]
    axis = axis_of("concat", first, axis)
    for other in tensors[1:]:
        same_type("concat", first, other)
        if [s for i, s in enumerate(other.shape) if i != axis] != [
            s for i, s in enumerate(first.shape) if i != axis
        ] or len(other.shape) != len(first.shape):
            raise refuse(
                "concat", f"shapes {first.shape} and {other.shape} differ beside axis {axis}"
            )
    starts = [sum(t.shape[axis] for t in tensors[:number]) for number in range(len(tensors))]
    whole = sum(t.shape[axis] for t in tensors)

    def body(*at: Expr) -> Expr:
        value: Expr | None = None
        for tensor, start in reversed(list(zip(tensors, starts, strict=True))):
            own = tensor[(*at[:axis], at[axis] - start if start else at[axis], *at[axis + 1 :])]
            end = start + tensor.shape[axis]
            value = own if value is None else te.where(at[axis] < end, own, value)
        assert value is not None
        return value

    return te.compute((*first.shape[:axis], whole, *first.shape[axis + 1 :]), body, name="concat")


def resize(x: Tensor, size: int | Sequence[int], *, method: str = "nearest") -> Tensor:
    """Return images ``[n, channels, height, width]`` of another size.

    Parameters
    ----------
    size
        New height and width.
    method
        ``nearest``: the element at ``floor(i * old / new)``; ``bilinear``: floats, weighted by distance between the
        centres of pixels (ONNX's half_pixel), edges repeated.
    """
    rank("resize", x, 4)
    height, width = pair("resize", "size", size)
    positive("resize", "size", height, width)
    if method not in METHODS:
        raise refuse("resize", f"method {method!r}; use one of {', '.join(METHODS)}")
    old_height, old_width = x.shape[2:]
    shape = (*x.shape[:2], height, width)
    if method == "nearest":

        def nearest(n: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
            return x[n, c, i * old_height // height, j * old_width // width]

        return te.compute(shape, nearest, name="resize")
    floats("resize", x)

    def bilinear(n: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        (top, bottom, down), (left, right, over) = (
            _between(x, i, old_height, height),
            _between(x, j, old_width, width),
        )
        wide = computed_in(x.dtype)
        one = const(1, wide)

        def at(row: Expr, column: Expr) -> Expr:
            return x[n, c, row, column].astype(wide)

        upper = at(top, left) * (one - over) + at(top, right) * over
        lower = at(bottom, left) * (one - over) + at(bottom, right) * over
        return (upper * (one - down) + lower * down).astype(x.dtype)

    return te.compute(shape, bilinear, name="resize")


def _between(x: Tensor, at: Expr, old: int, new: int) -> tuple[Expr, Expr, Expr]:
    """Return the two old indices around a new one, and how far it is from the first, 0 to 1.

    In whole numbers, ``2 * new`` to a pixel, so that no rounding decides which pixels are taken.
    """
    place = te.clip(at * (2 * old) + (old - new), 0, 2 * new * (old - 1))
    first = te.clip(place // (2 * new), 0, old - 1)
    second = te.clip(first + 1, 0, old - 1)
    return first, second, (place % (2 * new)).astype(computed_in(x.dtype)) * (1.0 / (2 * new))
