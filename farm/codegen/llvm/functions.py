"""Functions of one float, without any library: exp, tanh, floor, sqrt.

Owns: their algorithms and error bounds. All are free of branches, so that loops around them can be vectorised.

Invariant: NaN gives NaN, zeros keep their sign in tanh and floor, exp overflows to infinity and underflows to 0 as
the nearest float does, and results in the denormal range are rounded once.

Notes
-----
Largest errors found, in units in the last place: exp 1.00 (float32) and 0.96 (float64), where products and sums may
be fused 1.60 and 1.48; tanh 1.34 and 1.36. They are over 20 million random arguments of all sizes each, against an
extended precision, and for fused float32 over every eleventh number of both signs up to 104. sqrt and floor are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llvmlite import ir

from farm.codegen.llvm.types import (
    F32,
    F64,
    element_of,
    int_type_of,
    intrinsic_suffix,
    lanes_of,
    vector,
)
from farm.codegen.llvm.unit import Software, Unit
from farm.ir.expr import MathOp

MAX_ULPS = 2
"""Bound on the error of exp and tanh that tests hold them to."""

_LOG2_E = 1.4426950408889634
_SCALE_BIAS = 1024  # makes every exponent positive before it is halved


@dataclass(frozen=True, slots=True)
class Format:
    """A float format and how exp and tanh are computed in it.

    Attributes
    ----------
    kind
        LLVM's type; a vector computes lane by lane.
    mantissa, bias
        Explicit significand bits; exponent bias.
    ln2_high, ln2_low
        ln 2 in two parts; the product of the first with any exponent is exact.
    terms
        Degree of the Taylor polynomial of exp.
    fused
        Coefficients of exp's polynomial where operations may be fused, from that of the square on; those before are 1.
    least, most
        Arguments beyond these give 0 and infinity.
    levels
        Depth of the continued fraction of tanh.
    contract
        Whether products and sums may be fused.
    """

    kind: ir.Type
    mantissa: int
    bias: int
    ln2_high: float
    ln2_low: float
    terms: int
    fused: tuple[float, ...]
    least: float
    most: float
    levels: int
    contract: bool = False

    def constant(self, value: float) -> ir.Constant:
        """Return a constant of this format."""
        return ir.Constant(self.kind, value)


# ln 2 in two parts: Cody and Waite (float32, 9 bits first); fdlibm's e_exp.c (float64, 32 bits first). The polynomials
# have the least largest relative error on |r| <= ln 2 that Remez' algorithm finds, 0.14 and 0.05 ulp at most; the first
# one's coefficients were then moved by some of their own ulps.
FLOAT32 = Format(
    *(F32, 23, 127, 0.693359375, -2.12194440e-4, 7),
    (
        *(0.5000003576278687, 0.1666661500930786, 0.04166125878691673),
        *(0.008336100727319717, 0.0014104469446465373, 0.00019611601601354778),
    ),
    *(-110.0, 100.0, 4),
)
FLOAT64 = Format(
    *(F64, 52, 1023, 6.93147180369123816490e-01, 1.90821492927058770002e-10, 13),
    (
        *(0.4999999999999993, 0.16666666666666938, 0.041666666666702185, 0.008333333333269738),
        *(0.0013888888883564325, 0.00019841269892893347, 2.4801590836490625e-05),
        *(2.7557300620244036e-06, 2.755615657781463e-07, 2.505503658789307e-08),
        *(2.106245011912334e-09, 1.59355237943348e-10),
    ),
    *(-760.0, 720.0, 8),
)


class _Contracting(ir.IRBuilder):  # type: ignore[misc] # llvmlite has no types
    """A builder whose products and sums may be fused."""

    def fadd(self, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
        """Emit a sum."""
        return super().fadd(lhs, rhs, flags=("contract",))

    def fsub(self, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
        """Emit a difference."""
        return super().fsub(lhs, rhs, flags=("contract",))

    def fmul(self, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
        """Emit a product."""
        return super().fmul(lhs, rhs, flags=("contract",))


def emit_function(
    unit: Unit, builder: ir.IRBuilder, op: MathOp, value: ir.Value, *, contract: bool = False
) -> ir.Value:
    """Return ``op(value)``; `contract` lets it fuse multiplications and additions."""
    kind = value.type
    if op is MathOp.SQRT:
        return builder.call(unit.intrinsic("llvm.sqrt", [kind], kind, [kind]), [value])
    if op is MathOp.FLOOR and Software.FLOOR not in unit.software:
        return builder.call(unit.intrinsic("llvm.floor", [kind], kind, [kind]), [value])
    form = FLOAT32 if element_of(kind) == F32 else FLOAT64
    form = replace(form, kind=vector(form.kind, lanes_of(value)))
    form = replace(form, contract=contract)
    return builder.call(_helper(unit, op, form), [value])


def _helper(unit: Unit, op: MathOp, form: Format) -> ir.Function:
    def build(unit: Unit, builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        within = _Contracting(builder.block) if form.contract else builder
        result = _BODIES[op](unit, within, args[0], form)
        builder.position_at_end(within.block)
        return result

    name = f"{op.value}_{intrinsic_suffix(form.kind)}{'_contract' * form.contract}"
    return unit.helper(name, form.kind, [form.kind], build)


def _exp(unit: Unit, builder: ir.IRBuilder, x: ir.Value, form: Format) -> ir.Value:
    """Emit exp: reduce by multiples of ln 2, Taylor polynomial, scale in two steps.

    Notes
    -----
    Cody and Waite, "Software Manual for the Elementary Functions", 1980, chapter 6, with a Taylor polynomial in place
    of their rational one: on ``|r| <= ln(2)/2`` its remainder is below a tenth of an ulp. Rounding to the nearest
    integer adds and subtracts 1.5 * 2**mantissa. Two steps keep both scales normal and round once.
    """
    if form.contract:
        return _fused_exp(builder, x, form)
    del unit
    x = _clamped(builder, x, form)
    magic = form.constant(1.5 * 2.0**form.mantissa)
    shifted = builder.fadd(builder.fmul(x, form.constant(_LOG2_E)), magic)
    count = builder.fsub(shifted, magic)
    r = builder.fsub(x, builder.fmul(count, form.constant(form.ln2_high)))
    r = builder.fsub(r, builder.fmul(count, form.constant(form.ln2_low)))
    tail = _horner(builder, r, _taylor(form.terms), form)  # (exp(r) - 1 - r) / r**2
    power = builder.fadd(r, builder.fmul(builder.fmul(r, r), tail))
    power = builder.fadd(power, form.constant(1.0))
    ints = int_type_of(form.kind)
    exponent = builder.sub(builder.bitcast(shifted, ints), builder.bitcast(magic, ints))
    half = builder.lshr(
        builder.add(exponent, ir.Constant(ints, 2 * _SCALE_BIAS)), ir.Constant(ints, 1)
    )
    half = builder.sub(half, ir.Constant(ints, _SCALE_BIAS))
    for part in (half, builder.sub(exponent, half)):
        power = builder.fmul(power, _power_of_two(builder, part, form))
    return power


def _fused_exp(builder: ir.IRBuilder, x: ir.Value, form: Format) -> ir.Value:
    """Emit exp in two thirds of the operations: reduce by multiples of ln 4, a polynomial, scale in two equal steps.

    Notes
    -----
    As above, but the scale is a square. Its root is a normal number for every result, so that multiplying by it twice
    rounds a denormal result once. With the bias added to the number that rounds to an integer, the root's exponent is
    what is in the sum's low bits. What it costs is half an ulp, since the polynomial's range is twice as wide.
    """
    x = _clamped(builder, x, form)
    magic = form.constant(1.5 * 2.0**form.mantissa + form.bias)
    shifted = builder.fadd(builder.fmul(x, form.constant(_LOG2_E / 2)), magic)
    count = builder.fsub(shifted, magic)
    r = builder.fsub(x, builder.fmul(count, form.constant(2 * form.ln2_high)))
    r = builder.fsub(r, builder.fmul(count, form.constant(2 * form.ln2_low)))
    tail = _horner(builder, r, form.fused, form)  # (exp(r) - 1 - r) / r**2
    power = builder.fadd(r, builder.fmul(builder.fmul(r, r), tail))  # exp(r) - 1
    ints = int_type_of(form.kind)
    bits = builder.shl(builder.bitcast(shifted, ints), ir.Constant(ints, form.mantissa))
    root = builder.bitcast(bits, form.kind)
    return builder.fmul(builder.fadd(builder.fmul(power, root), root), root)


def _clamped(builder: ir.IRBuilder, x: ir.Value, form: Format) -> ir.Value:
    """Emit the nearest argument whose exp is neither beyond 0 nor infinity; NaN stays."""
    for symbol, limit in (("<", form.least), (">", form.most)):
        bound = form.constant(limit)
        x = builder.select(builder.fcmp_ordered(symbol, x, bound), bound, x)
    return x


def _power_of_two(builder: ir.IRBuilder, exponent: ir.Value, form: Format) -> ir.Value:
    biased = builder.add(exponent, ir.Constant(exponent.type, form.bias))
    bits = builder.shl(biased, ir.Constant(exponent.type, form.mantissa))
    return builder.bitcast(bits, form.kind)


def _tanh(unit: Unit, builder: ir.IRBuilder, x: ir.Value, form: Format) -> ir.Value:
    """Emit tanh: a continued fraction below 0.625, else ``1 - 2 / (exp(2 |x|) + 1)``.

    Notes
    -----
    The split is Cody and Waite's (chapter 13). The fraction is Lambert's, ``x / (1 + x²/(3 + x²/(5 + …)))``, as a
    quotient of polynomials with integer coefficients, written ``x - x * q`` so that its rounding errors weigh little.
    """
    magnitude = _intrinsic(unit, builder, "llvm.fabs", x)
    square = builder.fmul(magnitude, magnitude)
    above, below = (_horner(builder, square, c, form) for c in _lambert(form.levels))
    small = builder.fmul(square, below)
    small = builder.fmul(magnitude, builder.fdiv(small, builder.fadd(above, small)))
    small = builder.fsub(magnitude, small)
    power = builder.call(_helper(unit, MathOp.EXP, form), [builder.fadd(magnitude, magnitude)])
    one, two = form.constant(1.0), form.constant(2.0)
    large = builder.fsub(one, builder.fdiv(two, builder.fadd(power, one)))
    is_small = builder.fcmp_ordered("<", magnitude, form.constant(0.625))
    return _intrinsic(unit, builder, "llvm.copysign", builder.select(is_small, small, large), x)


def _floor(unit: Unit, builder: ir.IRBuilder, x: ir.Value, form: Format) -> ir.Value:
    """Emit floor for targets without the instruction: round to nearest by adding 2**mantissa, then correct."""
    limit = form.constant(2.0**form.mantissa)
    magnitude = _intrinsic(unit, builder, "llvm.fabs", x)
    rounded = builder.fsub(builder.fadd(magnitude, limit), limit)
    rounded = _intrinsic(unit, builder, "llvm.copysign", rounded, x)
    too_large = builder.fcmp_ordered(">", rounded, x)
    rounded = builder.select(too_large, builder.fsub(rounded, form.constant(1.0)), rounded)
    has_fraction = builder.fcmp_ordered("<", magnitude, limit)
    return builder.select(has_fraction, rounded, x)


_BODIES: dict[MathOp, Callable[[Unit, ir.IRBuilder, ir.Value, Format], ir.Value]] = {
    MathOp.EXP: _exp,
    MathOp.TANH: _tanh,
    MathOp.FLOOR: _floor,
}


def _intrinsic(unit: Unit, builder: ir.IRBuilder, name: str, *args: ir.Value) -> ir.Value:
    kind = args[0].type
    return builder.call(unit.intrinsic(name, [kind], kind, [kind] * len(args)), args)


def _horner(
    builder: ir.IRBuilder, x: ir.Value, coefficients: Sequence[float], form: Format
) -> ir.Value:
    """Emit a polynomial, coefficients from the constant term up."""
    result: ir.Value = form.constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = builder.fadd(builder.fmul(result, x), form.constant(coefficient))
    return result


def _taylor(degree: int) -> list[float]:
    """Return 1/2!, 1/3!, …, 1/degree!."""
    coefficients, factorial = [], 1
    for power in range(2, degree + 1):
        factorial *= power
        coefficients.append(1.0 / factorial)
    return coefficients


def _lambert(levels: int) -> tuple[list[float], list[float]]:
    """Return numerator and denominator, polynomials in x², of ``3 + x²/(5 + … x²/(2 levels + 1))``."""
    above, below = [2 * levels + 1], [1]
    for level in range(levels - 1, 0, -1):
        product = [(2 * level + 1) * term for term in above]
        shifted = [0, *below]
        length = max(len(product), len(shifted))
        padded = (terms + [0] * (length - len(terms)) for terms in (product, shifted))
        above, below = [sum(pair) for pair in zip(*padded, strict=True)], above
    return [float(term) for term in above], [float(term) for term in below]
