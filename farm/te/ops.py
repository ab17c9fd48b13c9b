"""Functions that combine expressions; names as in TVM.

Owns: their names and what they are made of. Does not own: arithmetic itself (`farm.ir.expr`).

Invariant: nothing is widened or converted silently.
"""

from __future__ import annotations

from collections.abc import Sequence

from farm.errors import InvalidFunction
from farm.ir.dtype import DType
from farm.ir.expr import (
    BinaryOp,
    Expr,
    Math,
    MathOp,
    Scalar,
    Value,
    binary,
    select,
)
from farm.ir.expr import const as _const
from farm.te.tensor import Axis, Reduce, Reducer


def const(value: Scalar, dtype: str | DType) -> Expr:
    """Return a constant of a type."""
    return _const(value, dtype)


def sum(value: Expr, axis: Axis | Sequence[Axis]) -> Expr:  # noqa: A001 - TVM's name
    """Return the sum over axes, in the value's own type (use `astype` to widen first)."""
    return _reduce(Reducer.SUM, value, axis)


def max(value: Expr, axis: Axis | Sequence[Axis]) -> Expr:  # noqa: A001 - TVM's name
    """Return the largest value over axes."""
    return _reduce(Reducer.MAX, value, axis)


def min(value: Expr, axis: Axis | Sequence[Axis]) -> Expr:  # noqa: A001 - TVM's name
    """Return the smallest value over axes."""
    return _reduce(Reducer.MIN, value, axis)


def _reduce(reducer: Reducer, value: Expr, axis: Axis | Sequence[Axis]) -> Expr:
    axes = tuple(axis) if isinstance(axis, list | tuple) else (axis,)
    for each in axes:
        if not isinstance(each, Axis):
            raise InvalidFunction(
                f"{reducer.value}: over {each!r:.80}; pass axes that te.reduce_axis gave"
            )
    if not axes or value.dtype is DType.BOOL:
        raise InvalidFunction(
            f"{reducer.value}: of {value.dtype} over {len(axes)} axes; use numbers, one axis"
        )
    if len(set(axes)) < len(axes):
        names = ", ".join(each.name for each in axes)
        raise InvalidFunction(f"{reducer.value}: an axis twice ({names}); name each once")
    return Reduce(reducer, value, axes)


def maximum(a: Value, b: Value) -> Expr:
    """Return ``a if a > b else b``."""
    return binary(BinaryOp.MAX, a, b)


def minimum(a: Value, b: Value) -> Expr:
    """Return ``a if a < b else b``."""
    return binary(BinaryOp.MIN, a, b)


def clip(value: Expr, low: Scalar, high: Scalar) -> Expr:
    """Return the value, at least `low` and at most `high`."""
    return minimum(maximum(value, low), high)


def where(condition: Expr, if_true: Value, if_false: Value) -> Expr:
    """Return one side or the other; only the side taken is evaluated, so it may guard an index."""
    return select(condition, if_true, if_false)


def exp(value: Expr) -> Expr:
    """Return e to the power of a float."""
    return Math(MathOp.EXP, value)


def sqrt(value: Expr) -> Expr:
    """Return the square root of a float; NaN for negative ones."""
    return Math(MathOp.SQRT, value)


def tanh(value: Expr) -> Expr:
    """Return the hyperbolic tangent of a float."""
    return Math(MathOp.TANH, value)


def floor(value: Expr) -> Expr:
    """Return the largest whole number not above a float."""
    return Math(MathOp.FLOOR, value)


def saturating_add(a: Value, b: Value) -> Expr:
    """Return ``a + b`` of integers, the type's limit where that does not fit; CPUs have instructions for it.

    Raises
    ------
    InvalidFunction
        The type is bool, a float or has 64 bits.
    """
    return _saturating("saturating_add", BinaryOp.ADD, a, b)


def saturating_sub(a: Value, b: Value) -> Expr:
    """Return ``a - b`` of integers, the type's limit where that does not fit; raises as `saturating_add`."""
    return _saturating("saturating_sub", BinaryOp.SUB, a, b)


def _saturating(name: str, op: BinaryOp, a: Value, b: Value) -> Expr:
    plain = binary(op, a, b)  # checks the types; its sides have one
    dtype = plain.dtype
    if not dtype.is_integer or dtype.bits == 64:
        raise InvalidFunction(f"{name}: not defined for {dtype}; use integers of 8 to 32 bits")
    wide = DType(f"int{2 * dtype.bits}")
    exact = binary(op, *(side.astype(wide) for side in plain.children()))
    return clip(exact, dtype.min, dtype.max).astype(dtype)


def requantize(value: Expr, multiplier: Expr, shift: Expr) -> Expr:
    """Scale an int32 by ``multiplier / 2**shift``, rounding halves up, saturating.

    Parameters
    ----------
    value, multiplier, shift
        int32. Only the low six bits of the shift count.

    Notes
    -----
    TOSA 1.0, ``apply_scale_32`` without double rounding: ``(value * multiplier + (1 << (shift - 1))) >> shift`` in
    64 bits. TOSA leaves results over 32 bits and shifts outside 2 to 62 undefined; here the result saturates and a
    shift of 0 rounds nothing, as the accelerator's ``rq`` does.
    """
    amount = shift.astype("int64")
    half = ((_const(1, DType.UINT64) << amount.astype("uint64")) >> 1).astype("int64")
    scaled = (value.astype("int64") * multiplier.astype("int64") + half) >> amount
    return clip(scaled, DType.INT32.min, DType.INT32.max).astype("int32")
