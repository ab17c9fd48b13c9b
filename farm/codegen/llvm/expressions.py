"""Expressions to LLVM values.

Owns: arithmetic, comparisons, loads, lazy selects, row-major addresses.
Does not own: integer division (`division`), conversions (`casts`), functions of floats (`functions`).

Invariant: the value emitted is the interpreter's for every operand; flags that promise "no overflow" are set only
where interval analysis or the verifier has proved it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from llvmlite import ir

from farm.codegen.llvm.casts import emit_cast
from farm.codegen.llvm.division import Division, Operand
from farm.codegen.llvm.functions import emit_function
from farm.codegen.llvm.types import I64, constant, element, memory_type
from farm.codegen.llvm.unit import Unit
from farm.ir.bounds import Facts, Interval, assume, interval, whole
from farm.ir.buffer import Buffer
from farm.ir.dtype import DType
from farm.ir.expr import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Load,
    Math,
    Select,
    Var,
    walk,
)

_SYMBOLS = {
    CompareOp.EQ: "==",
    CompareOp.NE: "!=",
    CompareOp.LT: "<",
    CompareOp.LE: "<=",
    CompareOp.GT: ">",
    CompareOp.GE: ">=",
}
_FLOAT = {
    BinaryOp.ADD: "fadd",
    BinaryOp.SUB: "fsub",
    BinaryOp.MUL: "fmul",
    BinaryOp.DIV: "fdiv",
}
_INTEGER = {
    BinaryOp.ADD: "add",
    BinaryOp.SUB: "sub",
    BinaryOp.MUL: "mul",
    BinaryOp.AND: "and_",
    BinaryOp.OR: "or_",
    BinaryOp.XOR: "xor",
}
_NO_WRAP = ("nuw", "nsw")
MAX_EAGER_NODES = 8


@dataclass
class Expressions:
    """Emits expressions at the builder's position.

    Attributes
    ----------
    pointers
        First element of each buffer, by name.
    variables
        Values of the loop variables in scope, by name.
    facts
        What interval analysis knows here.
    """

    unit: Unit
    builder: ir.IRBuilder
    pointers: dict[str, ir.Value] = field(default_factory=dict)
    variables: dict[str, ir.Value] = field(default_factory=dict)
    facts: Facts = field(default_factory=dict)

    def emit(self, expr: Expr) -> ir.Value:
        """Return the value of an expression."""
        match expr:
            case Const(value, dtype):
                return constant(value, dtype)
            case Var(name):
                return self.variables[name]
            case Load(buffer, indices):
                return self._load(buffer, indices)
            case Binary():
                return self._binary(expr)
            case Compare(op, a, b):
                return self.compare(op, self.emit(a), self.emit(b), a.dtype)
            case Select():
                return self._select(expr)
            case Cast(dtype, value):
                return emit_cast(self.unit, self.builder, self.emit(value), value.dtype, dtype)
            case Math(op, value):
                return emit_function(self.unit, self.builder, op, self.emit(value))
            case _:
                raise AssertionError(f"unknown expression {type(expr).__name__}")

    def address(self, buffer: Buffer, indices: tuple[Expr, ...]) -> ir.Value:
        """Return a pointer to an element; the verifier has proved it inside the buffer."""
        builder, offset = self.builder, None
        for axis, index in enumerate(indices):
            stride = math.prod(buffer.shape[axis + 1 :])
            term = self.emit(index)
            if stride != 1:
                term = builder.mul(term, ir.Constant(I64, stride), flags=_NO_WRAP)
            offset = term if offset is None else builder.add(offset, term, flags=_NO_WRAP)
        base = self.pointers[buffer.name]
        return base if offset is None else element(builder, base, offset, memory_type(buffer.dtype))

    def store(self, buffer: Buffer, indices: tuple[Expr, ...], value: Expr) -> None:
        """Store a value, evaluated before its address as nothing depends on the order."""
        builder, result = self.builder, self.emit(value)
        if buffer.dtype is DType.BOOL:
            result = builder.zext(result, memory_type(buffer.dtype))
        builder.store(result, self.address(buffer, indices), align=buffer.dtype.size_bytes)

    def compare(self, op: CompareOp, a: ir.Value, b: ir.Value, dtype: DType) -> ir.Value:
        """Return whether two values of `dtype` compare so; with NaN only ``ne`` holds."""
        symbol = _SYMBOLS[op]
        if dtype.is_float:
            ordered = self.builder.fcmp_ordered
            return (self.builder.fcmp_unordered if op is CompareOp.NE else ordered)(symbol, a, b)
        signed = self.builder.icmp_signed
        return (signed if dtype.is_signed else self.builder.icmp_unsigned)(symbol, a, b)

    def _load(self, buffer: Buffer, indices: tuple[Expr, ...]) -> ir.Value:
        kind = memory_type(buffer.dtype)
        pointer = self.address(buffer, indices)
        value = self.builder.load(pointer, typ=kind, align=buffer.dtype.size_bytes)
        if buffer.dtype is not DType.BOOL:
            return value
        return self.builder.icmp_unsigned("!=", value, ir.Constant(kind, 0))

    def _binary(self, expr: Binary) -> ir.Value:
        op, dtype = expr.op, expr.dtype
        a, b = self.emit(expr.a), self.emit(expr.b)
        if op in (BinaryOp.MIN, BinaryOp.MAX):
            order = CompareOp.LT if op is BinaryOp.MIN else CompareOp.GT
            return self.builder.select(self.compare(order, a, b, dtype), a, b)
        if op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD):
            return self._division(expr, a, b)
        if op in (BinaryOp.SHL, BinaryOp.SHR):
            return self._shift(op, dtype, a, b)
        if dtype.is_float:
            return getattr(self.builder, _FLOAT[op])(a, b)
        emit: Callable[..., ir.Value] = getattr(self.builder, _INTEGER[op])
        return emit(a, b, flags=_NO_WRAP[1:]) if self._stays_in_range(expr) else emit(a, b)

    def _stays_in_range(self, expr: Binary) -> bool:
        """Tell whether an int64 sum, difference or product is proved not to wrap around."""
        if expr.dtype is not DType.INT64:
            return False
        a, b = interval(expr.a, self.facts), interval(expr.b, self.facts)
        match expr.op:
            case BinaryOp.ADD:
                found = Interval(a.low + b.low, a.high + b.high)
            case BinaryOp.SUB:
                found = Interval(a.low - b.high, a.high - b.low)
            case BinaryOp.MUL:
                products = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
                found = Interval(min(products), max(products))
            case _:
                return False
        return found.within(whole(DType.INT64))

    def _division(self, expr: Binary, a: ir.Value, b: ir.Value) -> ir.Value:
        division = Division(self.unit, self.builder, expr.dtype.is_signed)
        sides = Operand(a, interval(expr.a, self.facts)), Operand(b, interval(expr.b, self.facts))
        floored = expr.op is BinaryOp.FLOORDIV
        return division.quotient(*sides) if floored else division.remainder(*sides)

    def _shift(self, op: BinaryOp, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
        amount = self.builder.and_(b, ir.Constant(b.type, dtype.bits - 1))
        if op is BinaryOp.SHL:
            return self.builder.shl(a, amount)
        return (self.builder.ashr if dtype.is_signed else self.builder.lshr)(a, amount)

    def _select(self, expr: Select) -> ir.Value:
        """Emit both sides if they are cheap and touch no memory, else branch around them."""
        condition, builder = self.emit(expr.condition), self.builder
        if _is_cheap(expr.if_true) and _is_cheap(expr.if_false):
            return builder.select(condition, self.emit(expr.if_true), self.emit(expr.if_false))
        blocks = [builder.append_basic_block(name) for name in ("if_true", "if_false", "selected")]
        builder.cbranch(condition, *blocks[:2])
        known, sides = self.facts, []
        for holds, block, side in (
            (True, blocks[0], expr.if_true),
            (False, blocks[1], expr.if_false),
        ):
            builder.position_at_end(block)
            self.facts = assume(expr.condition, known, holds=holds)
            sides.append((self.emit(side), builder.block))
            builder.branch(blocks[2])
        self.facts = known
        builder.position_at_end(blocks[2])
        merged = builder.phi(sides[0][0].type)
        for value, block in sides:
            merged.add_incoming(value, block)
        return merged


def _is_cheap(expr: Expr) -> bool:
    """Tell whether an expression may be evaluated although its value is not taken."""
    for count, node in enumerate(walk(expr)):
        slow = isinstance(node, Load | Math) or (
            isinstance(node, Binary)
            and node.op in (BinaryOp.DIV, BinaryOp.FLOORDIV, BinaryOp.FLOORMOD)
        )
        if slow or count >= MAX_EAGER_NODES:
            return False
    return True
