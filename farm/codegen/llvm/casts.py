"""Conversions between element types.

Owns: wrap-around, saturation, correct rounding, and conversions of 64-bit integers in software.

Invariant: a conversion is total and never undefined: floats that do not fit saturate, NaN gives 0.
"""

from __future__ import annotations

from llvmlite import ir

from farm.codegen.llvm.halves import rounded, to_odd
from farm.codegen.llvm.types import F32, F64, I32, I64, element_of, shaped, value_type
from farm.codegen.llvm.unit import Software, Unit
from farm.ir.dtype import DType

_LOW_BITS = (1 << 11) - 1  # of 64, those that a float64 has no room for


def emit_cast(
    unit: Unit, builder: ir.IRBuilder, value: ir.Value, source: DType, dtype: DType
) -> ir.Value:
    """Return `value` of type `source` converted to `dtype`."""
    if source is dtype:
        return value
    kind = shaped(value_type(dtype), value)
    if dtype is DType.BOOL:
        return _truth(builder, value, source)
    if dtype.is_half:
        return rounded(unit, builder, _to_single(unit, builder, value, source, dtype), dtype)
    if source.is_float:
        if not dtype.is_float:
            return _to_integer(unit, builder, value, dtype)
        if value.type == kind:
            return value
        return (
            builder.fpext(value, kind) if dtype is DType.FLOAT64 else builder.fptrunc(value, kind)
        )
    if dtype.is_float:
        return _to_float(unit, builder, value, source, dtype)
    if dtype.bits <= source.bits and source is not DType.BOOL:
        return builder.trunc(value, kind) if dtype.bits < source.bits else value
    return builder.sext(value, kind) if source.is_signed else builder.zext(value, kind)


def _to_single(
    unit: Unit, builder: ir.IRBuilder, value: ir.Value, source: DType, dtype: DType
) -> ir.Value:
    """Return a value as a float32 that may be rounded once more to a float of 16 bits."""
    if source is DType.FLOAT64:
        return to_odd(builder, value)
    if source.is_float:
        return value
    if dtype is DType.FLOAT16 or source.bits <= 16:  # what float32 rounds is infinity in float16
        return _to_float(unit, builder, value, source, DType.FLOAT32)
    if source.bits == 64:
        value = _odd_integer(builder, value, signed=source.is_signed)
    return to_odd(builder, _to_float(unit, builder, value, source, DType.FLOAT64))


def _odd_integer(builder: ir.IRBuilder, value: ir.Value, *, signed: bool) -> ir.Value:
    """Round 64 bits that float64 has no room for to odd."""
    kind, limit = value.type, 1 << 53
    lost = builder.icmp_unsigned(
        "!=", builder.and_(value, ir.Constant(kind, _LOW_BITS)), ir.Constant(kind, 0)
    )
    sticky = builder.shl(builder.zext(lost, kind), ir.Constant(kind, 11))
    odd = builder.or_(builder.and_(value, ir.Constant(kind, ~_LOW_BITS)), sticky)
    moved = builder.add(value, ir.Constant(kind, limit)) if signed else value
    most = ir.Constant(kind, 2 * limit if signed else limit)
    return builder.select(builder.icmp_unsigned(">", moved, most), odd, value)


def _truth(builder: ir.IRBuilder, value: ir.Value, source: DType) -> ir.Value:
    zero = ir.Constant(value.type, 0)
    if source.is_float:
        return builder.fcmp_unordered("!=", value, zero)  # NaN is true
    return builder.icmp_unsigned("!=", value, zero)


def _to_integer(unit: Unit, builder: ir.IRBuilder, value: ir.Value, dtype: DType) -> ir.Value:
    if dtype.bits == 64 and Software.CONVERSION_64 in unit.software:
        return _to_wide(unit, builder, value, dtype)
    name = "llvm.fptosi.sat" if dtype.is_signed else "llvm.fptoui.sat"
    return _saturating(unit, builder, name, value, shaped(value_type(dtype), value))


def _saturating(
    unit: Unit, builder: ir.IRBuilder, name: str, value: ir.Value, kind: ir.Type
) -> ir.Value:
    return builder.call(unit.intrinsic(name, [kind, value.type], kind, [value.type]), [value])


def _to_float(
    unit: Unit, builder: ir.IRBuilder, value: ir.Value, source: DType, dtype: DType
) -> ir.Value:
    kind = shaped(value_type(dtype), value)
    if source.bits == 64 and Software.CONVERSION_64 in unit.software:
        return _from_wide(builder, value, signed=source.is_signed, kind=kind)
    return builder.sitofp(value, kind) if source.is_signed else builder.uitofp(value, kind)


def _from_wide(builder: ir.IRBuilder, value: ir.Value, *, signed: bool, kind: ir.Type) -> ir.Value:
    """Convert 64 bits as two halves, with one rounding.

    Notes
    -----
    Each half and the scaled upper half are exact in float64, so only their sum rounds. For float32 the bits that
    float64 would round are first folded into the lowest bit that it keeps ("rounding to odd"; Boldo and Melquiond,
    "Emulation of FMA and correctly rounded sums", 2008), so that the second rounding is correct.
    """
    wide, narrow, double = (shaped(part, value) for part in (I64, I32, F64))
    zero = ir.Constant(wide, 0)
    magnitude, negative = value, None
    if signed:
        negative = builder.icmp_signed("<", value, zero)
        magnitude = builder.select(negative, builder.sub(zero, value), value)
    if element_of(kind) == F32:
        lost = builder.icmp_unsigned(
            "!=", builder.and_(magnitude, ir.Constant(wide, _LOW_BITS)), zero
        )
        sticky = builder.shl(builder.zext(lost, wide), ir.Constant(wide, 11))
        odd = builder.or_(builder.and_(magnitude, ir.Constant(wide, ~_LOW_BITS)), sticky)
        large = builder.icmp_unsigned(">=", magnitude, ir.Constant(wide, 1 << 53))
        magnitude = builder.select(large, odd, magnitude)
    high = builder.uitofp(
        builder.trunc(builder.lshr(magnitude, ir.Constant(wide, 32)), narrow), double
    )
    low = builder.uitofp(builder.trunc(magnitude, narrow), double)
    result = builder.fadd(builder.fmul(high, ir.Constant(double, 2.0**32)), low)
    if element_of(kind) == F32:
        result = builder.fptrunc(result, kind)
    return (
        builder.select(negative, builder.fneg(result), result) if negative is not None else result
    )


def _to_wide(unit: Unit, builder: ir.IRBuilder, value: ir.Value, dtype: DType) -> ir.Value:
    """Truncate to 64 bits as two halves; scaling by powers of two and their difference are exact."""
    wide, narrow, double = (shaped(part, value) for part in (I64, I32, F64))
    if value.type != double:
        value = builder.fpext(value, double)
    magnitude = builder.call(unit.intrinsic("llvm.fabs", [double], double, [double]), [value])
    scaled = builder.fmul(magnitude, ir.Constant(double, 2.0**-32))
    high = _saturating(unit, builder, "llvm.fptoui.sat", scaled, narrow)
    whole = builder.fmul(builder.uitofp(high, double), ir.Constant(double, 2.0**32))
    low = _saturating(unit, builder, "llvm.fptoui.sat", builder.fsub(magnitude, whole), narrow)
    bits = builder.or_(
        builder.shl(builder.zext(high, wide), ir.Constant(wide, 32)), builder.zext(low, wide)
    )
    negative = builder.fcmp_ordered("<", value, ir.Constant(double, 0.0))
    if dtype.is_signed:
        bits = builder.select(negative, builder.sub(ir.Constant(wide, 0), bits), bits)
    limits = (dtype.min, dtype.max if dtype.is_signed else -1)
    least = builder.fcmp_ordered("<=", value, ir.Constant(double, float(dtype.min)))
    most = builder.fcmp_ordered(">=", value, ir.Constant(double, float(dtype.max)))
    bits = builder.select(least, ir.Constant(wide, limits[0]), bits)
    bits = builder.select(most, ir.Constant(wide, limits[1]), bits)
    nan = builder.fcmp_unordered("uno", value, value)
    return builder.select(nan, ir.Constant(wide, 0), bits)
