"""Floor division and modulo of integers, total as the IR defines them.

Owns: rounding towards minus infinity, 0 for a zero divisor, wrap-around of the least value divided by -1, and
division in software for targets without the instruction.

Invariant: no LLVM division is emitted whose operands could make it undefined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from farm.codegen.llvm.types import I32, I64, element_of, lanes_of, shaped, undefined
from farm.codegen.llvm.unit import Software, Unit
from farm.ir.bounds import Interval


@dataclass(frozen=True, slots=True)
class Operand:
    """A value and what is known of it."""

    value: ir.Value
    range: Interval


@dataclass
class Division:
    """Emits one ``a // b`` or ``a % b``."""

    unit: Unit
    builder: ir.IRBuilder
    signed: bool

    def quotient(self, a: Operand, b: Operand) -> ir.Value:
        """Return ``a // b``."""
        return self._divide(a, b)[0]

    def remainder(self, a: Operand, b: Operand) -> ir.Value:
        """Return ``a % b``, which has the sign of b."""
        return self._divide(a, b)[1]

    def _divide(self, a: Operand, b: Operand) -> tuple[ir.Value, ir.Value]:
        if self.signed and (a.range.low < 0 or b.range.low < 0):
            return self._floored(a.value, b)
        bits = element_of(a.value.type).width
        if bits > 32 and a.range.high < 1 << 32 and b.range.high < 1 << 32:
            builder = self.builder
            narrow = (builder.trunc(value, shaped(I32, value)) for value in (a.value, b.value))
            quotient, remainder = self._unsigned(*narrow, guarded=b.range.low == 0)
            return builder.zext(quotient, a.value.type), builder.zext(remainder, a.value.type)
        return self._unsigned(a.value, b.value, guarded=b.range.low == 0)

    def _unsigned(self, a: ir.Value, b: ir.Value, *, guarded: bool) -> tuple[ir.Value, ir.Value]:
        if not guarded:
            return self.truncated(a, b, signed=False)
        zero, one = ir.Constant(b.type, 0), ir.Constant(b.type, 1)
        builder = self.builder
        none = builder.icmp_unsigned("==", b, zero)
        quotient, remainder = self.truncated(a, builder.select(none, one, b), signed=False)
        return builder.select(none, zero, quotient), builder.select(none, zero, remainder)

    def _floored(self, a: ir.Value, divisor: Operand) -> tuple[ir.Value, ir.Value]:
        b, builder = divisor.value, self.builder
        zero, one = ir.Constant(b.type, 0), ir.Constant(b.type, 1)
        shift = _shift_of(divisor.range)
        if shift is not None:
            mask = ir.Constant(b.type, (1 << shift) - 1)
            return builder.ashr(a, ir.Constant(b.type, shift)), builder.and_(a, mask)
        safe = b
        none = builder.icmp_signed("==", b, zero)
        minus = builder.icmp_signed("==", b, ir.Constant(b.type, -1))
        if (
            divisor.range.low <= 0 <= divisor.range.high
            or divisor.range.low <= -1 <= divisor.range.high
        ):
            safe = builder.select(builder.or_(none, minus), one, b)
        quotient, remainder = self.truncated(a, safe, signed=True)
        differs = builder.icmp_signed("<", builder.xor(remainder, safe), zero)
        adjust = builder.and_(builder.icmp_signed("!=", remainder, zero), differs)
        quotient = builder.sub(quotient, builder.zext(adjust, b.type))
        remainder = builder.add(remainder, builder.select(adjust, safe, zero))
        if safe is not b:
            quotient = builder.select(
                minus, builder.sub(zero, a), builder.select(none, zero, quotient)
            )
        return quotient, remainder  # of a divisor 0 or -1, taken as 1: remainder 0

    def truncated(self, a: ir.Value, b: ir.Value, *, signed: bool) -> tuple[ir.Value, ir.Value]:
        """Divide by a divisor that is safe; the remainder has the sign of a."""
        builder = self.builder
        if not self._in_software(b):
            quotient = builder.sdiv(a, b) if signed else builder.udiv(a, b)
        elif signed:
            quotient = self._by_magnitude(a, b)
        else:
            quotient = self._call(a, b)
        return quotient, builder.sub(a, builder.mul(quotient, b))

    def _in_software(self, b: ir.Value) -> bool:
        if element_of(b.type).width > 32:
            return Software.DIVISION_64 in self.unit.software
        # a division by a constant of up to 32 bits becomes a multiplication on every target
        return Software.DIVISION_32 in self.unit.software and not isinstance(b, ir.Constant)

    def _by_magnitude(self, a: ir.Value, b: ir.Value) -> ir.Value:
        builder, zero = self.builder, ir.Constant(a.type, 0)
        sides = []
        for value in (a, b):
            negative = builder.icmp_signed("<", value, zero)
            sides.append(builder.select(negative, builder.sub(zero, value), value))
        quotient = self._call(*sides)
        negative = builder.icmp_signed("<", builder.xor(a, b), zero)
        return builder.select(negative, builder.sub(zero, quotient), quotient)

    def _call(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Divide in software, lane by lane."""
        if lanes_of(a) == 1:
            return self._call_scalar(a, b)
        builder, result = self.builder, undefined(a.type)
        for lane in range(lanes_of(a)):
            index = ir.Constant(I32, lane)
            sides = (builder.extract_element(value, index) for value in (a, b))
            result = builder.insert_element(result, self._call_scalar(*sides), index)
        return result

    def _call_scalar(self, a: ir.Value, b: ir.Value) -> ir.Value:
        builder, kind = self.builder, a.type
        wide = I64 if kind.width > 32 else I32
        helper = self.unit.helper(
            f"udiv{wide.width}", wide, [wide, wide], _shift_subtract, inline=False
        )
        if kind.width == wide.width:
            return builder.call(helper, [a, b])
        widened = [builder.zext(value, wide) for value in (a, b)]
        return builder.trunc(builder.call(helper, widened), kind)


def _shift_of(divisor: Interval) -> int | None:
    """Return log2 of a divisor that is known to be a power of two, else None."""
    known = divisor.low == divisor.high > 0 and divisor.low & (divisor.low - 1) == 0
    return divisor.low.bit_length() - 1 if known else None


def _shift_subtract(unit: Unit, builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    """Emit restoring division, one bit a step: the dividend's bits move out as the quotient's move in.

    The rest never overflows: before step n it holds fewer than n bits of the dividend.
    """
    del unit
    dividend, divisor = args
    kind = dividend.type
    one, top = ir.Constant(kind, 1), ir.Constant(kind, kind.width - 1)
    entry = builder.block
    loop, done = builder.append_basic_block("loop"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    step, quotient, rest = (builder.phi(kind, name) for name in ("step", "quotient", "rest"))
    shifted = builder.or_(builder.shl(rest, one), builder.lshr(quotient, top))
    fits = builder.icmp_unsigned(">=", shifted, divisor)
    new_rest = builder.select(fits, builder.sub(shifted, divisor), shifted)
    new_quotient = builder.or_(builder.shl(quotient, one), builder.zext(fits, kind))
    new_step = builder.add(step, one)
    for phi, first, following in (
        (step, ir.Constant(kind, 0), new_step),
        (quotient, dividend, new_quotient),
        (rest, ir.Constant(kind, 0), new_rest),
    ):
        phi.add_incoming(first, entry)
        phi.add_incoming(following, loop)
    last = builder.icmp_unsigned("==", new_step, ir.Constant(kind, kind.width))
    builder.cbranch(last, done, loop)
    builder.position_at_end(done)
    return new_quotient
