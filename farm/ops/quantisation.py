"""Between floats and small integers.

Owns: affine quantisation, ``real = scale * (integer - zero_point)``, and rescaling of sums in integers.
"""

from __future__ import annotations

from collections.abc import Sequence

import farm.te as te
from farm.ir.dtype import DType, as_dtype
from farm.ir.expr import Expr, const
from farm.ops.checks import axis_of, computed_in, floats, refuse
from farm.te import Tensor


def quantize(
    x: Tensor,
    scale: float | Tensor,
    zero_point: int | Tensor = 0,
    dtype: str | DType = "int8",
    *,
    axis: int = -1,
) -> Tensor:
    """Return ``clip(floor(x / scale + 0.5) + zero_point)`` in an integer type: halves are rounded up.

    Parameters
    ----------
    scale, zero_point
        Numbers; or tensors of the types of `x` and of the result, of shape ``()`` or with one for each place on `axis`.
    """
    floats("quantize", x)
    kind = _integer("quantize", dtype, 0 if isinstance(zero_point, Tensor) else zero_point)
    step, zero = _per_channel("quantize", x, axis, scale, zero_point, kind)

    def body(*at: Expr) -> Expr:
        wide = computed_in(x.dtype)
        scaled = x[at].astype(wide) / step(at, wide).astype(wide)
        rounded = te.floor(scaled + 0.5) + zero(at, wide).astype(wide)
        return te.clip(rounded, float(kind.min), float(kind.max)).astype(kind)

    return te.compute(x.shape, body, name="quantize")


def dequantize(
    x: Tensor,
    scale: float | Tensor,
    zero_point: int | Tensor = 0,
    dtype: str | DType = "float32",
    *,
    axis: int = -1,
) -> Tensor:
    """Return ``(x - zero_point) * scale`` in a float type; `scale` and `zero_point` as in `quantize`."""
    kind = as_dtype(dtype)
    if not x.dtype.is_integer or not kind.is_float:
        raise refuse("dequantize", f"from {x.dtype} to {kind}; use an integer and a float type")
    step, zero = _per_channel("dequantize", x, axis, scale, zero_point, x.dtype, real=kind)

    def body(*at: Expr) -> Expr:
        moved = x[at].astype("int64") - zero(at, DType.INT64).astype("int64")
        wide = computed_in(kind)
        return (moved.astype(wide) * step(at, wide).astype(wide)).astype(kind)

    return te.compute(x.shape, body, name="dequantize")


def requantize(
    x: Tensor,
    multiplier: Tensor,
    shift: Tensor,
    zero_point: int = 0,
    dtype: str | DType = "int8",
    *,
    axis: int = -1,
) -> Tensor:
    """Return int32 sums rescaled by ``multiplier / 2**shift`` of an axis (see `farm.te.requantize`), clipped."""
    kind = _integer("requantize", dtype, zero_point)
    for tensor in (x, multiplier, shift):
        if tensor.dtype is not DType.INT32:
            raise refuse("requantize", f"{tensor.name} is {tensor.dtype}; use int32")
    if not x.shape:
        raise refuse("requantize", f"{x.name} is a scalar; use one dimension or more")
    channel = axis_of("requantize", x, axis)
    extents = (x.shape[channel],)
    if multiplier.shape != extents or shift.shape != extents:
        which = "last" if channel == len(x.shape) - 1 else f"axis {channel}'s"
        raise refuse(
            "requantize",
            f"multiplier {multiplier.shape}, shift {shift.shape}; use the {which} extent of {x.shape}",
        )

    def body(*at: Expr) -> Expr:
        scaled = te.requantize(x[at], multiplier[at[channel]], shift[at[channel]])
        # clipped before the zero point is added, so that 32 bits are enough
        inside = te.clip(scaled, kind.min - zero_point, kind.max - zero_point)
        return (inside + zero_point if zero_point else inside).astype(kind)

    return te.compute(x.shape, body, name="requantize")


def _integer(name: str, dtype: str | DType, zero_point: int) -> DType:
    kind = as_dtype(dtype)
    if not kind.is_integer or kind.bits > 16 or not kind.min <= zero_point <= kind.max:
        raise refuse(
            name,
            f"{kind} with zero point {zero_point}; use an integer type of 8 or 16 bits, and one of its values",
        )
    return kind


class _Channel:
    """A number that is the same everywhere, or one for each place on an axis."""

    def __init__(self, value: float | Tensor, axis: int) -> None:
        self._value, self._axis = value, axis

    def __call__(self, at: Sequence[Expr], dtype: DType) -> Expr:
        """Return it at some indices, as an expression of a type."""
        if not isinstance(self._value, Tensor):
            return const(self._value, dtype)
        return self._value[(at[self._axis],) if self._value.shape else ()]


def _per_channel(
    name: str,
    x: Tensor,
    axis: int,
    scale: float | Tensor,
    zero_point: int | Tensor,
    kind: DType,
    *,
    real: DType | None = None,
) -> tuple[_Channel, _Channel]:
    """Check scale and zero point against `x`, the integer type and the float type."""
    channel = axis_of(name, x, axis) if x.shape else 0
    if not isinstance(scale, Tensor) and not scale > 0:
        raise refuse(name, f"scale {scale}; use a positive number")
    for what, tensor, wanted in (
        ("scale", scale, real or x.dtype),
        ("zero point", zero_point, kind),
    ):
        if not isinstance(tensor, Tensor):
            continue
        if tensor.dtype is not wanted:
            raise refuse(name, f"{what} {tensor.name} is {tensor.dtype}; use {wanted}")
        if tensor.shape not in ((), x.shape[channel : channel + 1]):
            raise refuse(
                name,
                f"{what} has shape {tensor.shape}; use () or the extent of axis {channel} of {x.shape}",
            )
    return _Channel(scale, channel), _Channel(zero_point, channel)
