"""The nearest float of each format.

Owns: rounding to nearest, ties to even, of Python's floats and integers. Does not own: arithmetic.

Invariant: each value is rounded once; what is too large becomes infinity.
"""

from __future__ import annotations

import math
import struct

from farm.ir.dtype import DType

_STRUCTS = {DType.FLOAT16: struct.Struct("<e"), DType.FLOAT32: struct.Struct("<f")}
_BFLOAT16_BITS = 8  # of the significand
_BFLOAT16_LEAST = -133  # exponent of the smallest number
_BFLOAT16_END = 2.0**128
_EXACT_BITS = 53


def round_float(value: float, dtype: DType) -> float:
    """Return the float of `dtype` nearest to `value`."""
    if dtype is DType.FLOAT64:
        return value
    if dtype is DType.BFLOAT16:
        return _round_bfloat16(value)
    code = _STRUCTS[dtype]
    try:
        rounded: float = code.unpack(code.pack(value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def round_integer(value: int, dtype: DType) -> float:
    """Return the float of `dtype` nearest to an integer of 64 bits."""
    if dtype is DType.FLOAT64:
        return float(value)
    beyond = abs(value).bit_length() - _EXACT_BITS
    if (
        beyond > 0
    ):  # rounded to odd, so that the second rounding is right (Boldo and Melquiond, 2008)
        kept = value >> beyond
        value = (kept | (kept << beyond != value)) << beyond
    return round_float(float(value), dtype)


def _round_bfloat16(value: float) -> float:
    if not math.isfinite(value) or value == 0:
        return value
    if abs(value) >= _BFLOAT16_END:
        return math.copysign(math.inf, value)
    step = max(math.frexp(value)[1] - _BFLOAT16_BITS, _BFLOAT16_LEAST)
    rounded = math.copysign(math.ldexp(round(math.ldexp(value, -step)), step), value)
    return rounded if abs(rounded) < _BFLOAT16_END else math.copysign(math.inf, value)
