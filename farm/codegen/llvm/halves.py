"""Floats of 16 bits: float32 in registers, 16 bits in memory.

Owns: rounding to float16 and bfloat16, by instructions where a CPU has them, else in integers.

Invariant: a value in a register is one of its type, so that widening a stored one is exact; rounding is to nearest,
ties to even, and happens once. NaN stays NaN.

Notes
-----
Sums, differences, products, quotients and square roots that float32 has rounded may be rounded once more to these
types: its 24 bits are at least twice their 11 or 8 and two more (Figueroa, "When is double rounding innocuous?", 1995).
What comes from float64 or a wider integer is first rounded to odd (Boldo and Melquiond, "Emulation of FMA and correctly
rounded sums", 2008).
"""

from __future__ import annotations

from llvmlite import ir

from farm.codegen.llvm.types import F32, F64, I16, I32, shaped
from farm.codegen.llvm.unit import Software, Unit
from farm.ir.dtype import DType

_HALF = ir.HalfType()
_INFINITY = 0x7F800000  # float32's


def widen(unit: Unit, builder: ir.IRBuilder, bits: ir.Value, dtype: DType) -> ir.Value:
    """Return the float32 of 16 bits in memory."""
    kind, ints = shaped(F32, bits), shaped(I32, bits)
    if dtype is DType.BFLOAT16:
        high = builder.shl(builder.zext(bits, ints), ir.Constant(ints, 16))
        return builder.bitcast(high, kind)
    if Software.HALF not in unit.software:
        return builder.fpext(builder.bitcast(bits, shaped(_HALF, bits)), kind)
    return _widen_float16(builder, builder.zext(bits, ints))


def narrow(unit: Unit, builder: ir.IRBuilder, value: ir.Value, dtype: DType) -> ir.Value:
    """Return the 16 bits in memory of a float32, rounded."""
    half = shaped(I16, value)
    if dtype is DType.BFLOAT16:
        ints = shaped(I32, value)
        bits = builder.bitcast(_round_bfloat16(builder, value), ints)
        return builder.trunc(builder.lshr(bits, ir.Constant(ints, 16)), half)
    if Software.HALF not in unit.software:
        return builder.bitcast(builder.fptrunc(value, shaped(_HALF, value)), half)
    return builder.trunc(_narrow_float16(builder, value), half)


def rounded(unit: Unit, builder: ir.IRBuilder, value: ir.Value, dtype: DType) -> ir.Value:
    """Return the float32 that is a value of `dtype` and nearest to a float32."""
    if dtype is DType.BFLOAT16:
        return _round_bfloat16(builder, value)
    if Software.HALF not in unit.software:
        return builder.fpext(builder.fptrunc(value, shaped(_HALF, value)), value.type)
    return _widen_float16(builder, _narrow_float16(builder, value))


def to_odd(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Return the float32 next to a float64: itself, or whichever neighbour has an odd significand."""
    kind, ints, wide = shaped(F32, value), shaped(I32, value), shaped(F64, value)
    near = builder.fptrunc(value, kind)
    back, bits = builder.fpext(near, wide), builder.bitcast(near, ints)
    zero = ir.Constant(wide, 0.0)
    beyond = builder.select(
        builder.fcmp_ordered("<", value, zero),
        builder.fcmp_ordered("<", back, value),
        builder.fcmp_ordered(">", back, value),
    )
    towards = builder.sub(bits, builder.zext(beyond, ints))
    inexact = builder.zext(builder.fcmp_ordered("!=", back, value), ints)
    return builder.bitcast(builder.or_(towards, inexact), kind)


def _round_bfloat16(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    ints = shaped(I32, value)

    def constant(number: int) -> ir.Constant:
        return ir.Constant(ints, number)

    bits = builder.bitcast(value, ints)
    odd = builder.and_(builder.lshr(bits, constant(16)), constant(1))
    near = builder.add(bits, builder.add(odd, constant(0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", value, value)
    near = builder.select(is_nan, builder.or_(bits, constant(1 << 22)), near)
    return builder.bitcast(builder.and_(near, constant(-1 << 16)), value.type)


def _widen_float16(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """Return the float32 of a float16's bits in 32: what is below its normal numbers is a multiple of the least."""
    ints, kind = bits.type, shaped(F32, bits)

    def constant(number: int) -> ir.Constant:
        return ir.Constant(ints, number)

    magnitude = builder.and_(bits, constant(0x7FFF))
    shifted = builder.shl(magnitude, constant(13))
    special = builder.icmp_signed(">=", magnitude, constant(0x7C00))
    bias = builder.select(special, constant(224 << 23), constant(112 << 23))
    small = builder.fmul(builder.sitofp(magnitude, kind), ir.Constant(kind, 2.0**-24))
    is_small = builder.icmp_signed("<", magnitude, constant(0x400))
    found = builder.select(is_small, builder.bitcast(small, ints), builder.add(shifted, bias))
    sign = builder.shl(builder.and_(bits, constant(0x8000)), constant(16))
    return builder.bitcast(builder.or_(found, sign), kind)


def _narrow_float16(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Return a float16's bits in 32: adding 0.5 rounds what is below its normal numbers."""
    ints, kind = shaped(I32, value), value.type

    def constant(number: int) -> ir.Constant:
        return ir.Constant(ints, number)

    bits = builder.bitcast(value, ints)
    magnitude = builder.and_(bits, constant(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(magnitude, constant(13)), constant(1))
    near = builder.add(magnitude, builder.add(odd, constant(0xFFF)))
    near = builder.sub(builder.lshr(near, constant(13)), constant(112 << 10))
    half = builder.fadd(builder.bitcast(magnitude, kind), ir.Constant(kind, 0.5))
    small = builder.sub(builder.bitcast(half, ints), constant(126 << 23))
    found = builder.select(builder.icmp_signed("<", magnitude, constant(113 << 23)), small, near)
    large = builder.icmp_signed(">=", magnitude, constant(0x477FF000))  # 65520
    found = builder.select(large, constant(0x7C00), found)
    is_nan = builder.icmp_signed(">", magnitude, constant(_INFINITY))
    found = builder.select(is_nan, constant(0x7E00), found)
    sign = builder.and_(builder.lshr(bits, constant(16)), constant(0x8000))
    return builder.or_(found, sign)
