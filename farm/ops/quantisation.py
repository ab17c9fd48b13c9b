"""Between floats and small integers.

Owns: affine quantisation, ``real = scale * (integer - zero_point)``, and rescaling of sums in integers.
"""

from __future__ import annotations

import farm.te as te
from farm.ir.dtype import DType, as_dtype
from farm.ir.expr import Expr, const
from farm.ops.checks import floats, refuse
from farm.te import Tensor


def quantize(x: Tensor, scale: float, zero_point: int = 0, dtype: str | DType = "int8") -> Tensor:
    """Return ``clip(floor(x / scale + 0.5) + zero_point)`` in an integer type: halves are rounded up."""
    floats("quantize", x)
    kind = _integer("quantize", dtype, zero_point)
    if not scale > 0:
        raise refuse("quantize", f"scale {scale}; use a positive number")

    def body(*at: Expr) -> Expr:
        rounded = te.floor(x[at] / const(scale, x.dtype) + 0.5) + float(zero_point)
        return te.clip(rounded, float(kind.min), float(kind.max)).astype(kind)

    return te.compute(x.shape, body, name="quantize")


def dequantize(
    x: Tensor, scale: float, zero_point: int = 0, dtype: str | DType = "float32"
) -> Tensor:
    """Return ``(x - zero_point) * scale`` in a float type."""
    kind = as_dtype(dtype)
    if not x.dtype.is_integer or not kind.is_float:
        raise refuse("dequantize", f"from {x.dtype} to {kind}; use an integer and a float type")

    def body(*at: Expr) -> Expr:
        return (x[at].astype("int64") - zero_point).astype(kind) * scale

    return te.compute(x.shape, body, name="dequantize")


def requantize(
    x: Tensor, multiplier: Tensor, shift: Tensor, zero_point: int = 0, dtype: str | DType = "int8"
) -> Tensor:
    """Return int32 sums rescaled by ``multiplier / 2**shift`` of the last axis (see `farm.te.requantize`), clipped."""
    kind = _integer("requantize", dtype, zero_point)
    for tensor in (x, multiplier, shift):
        if tensor.dtype is not DType.INT32:
            raise refuse("requantize", f"{tensor.name} is {tensor.dtype}; use int32")
    if not x.shape or multiplier.shape != x.shape[-1:] or shift.shape != x.shape[-1:]:
        raise refuse(
            "requantize",
            f"multiplier {multiplier.shape}, shift {shift.shape}; use the last extent of {x.shape}",
        )

    def body(*at: Expr) -> Expr:
        scaled = te.requantize(x[at], multiplier[at[-1]], shift[at[-1]])
        moved = scaled.astype("int64") + zero_point
        return te.clip(moved, kind.min, kind.max).astype(kind)

    return te.compute(x.shape, body, name="requantize")


def _integer(name: str, dtype: str | DType, zero_point: int) -> DType:
    kind = as_dtype(dtype)
    if not kind.is_integer or kind.bits > 16 or not kind.min <= zero_point <= kind.max:
        raise refuse(
            name,
            f"{kind} with zero point {zero_point}; use an integer type of 8 or 16 bits, and one of its values",
        )
    return kind
