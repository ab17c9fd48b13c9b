"""Expressions to LLVM values.

Owns: arithmetic, comparisons, lazy selects.
Does not own: addresses and memory (`memory`), integer division (`division`), conversions (`casts`), functions of
floats (`functions`).

Invariant: the value emitted is the interpreter's for every operand; flags that promise "no overflow" are set only
where interval analysis or the verifier has proved it. What lanes that are masked off compute is never used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from farm.codegen.llvm.casts import emit_cast
from farm.codegen.llvm.context import Context
from farm.codegen.llvm.division import Division, Operand
from farm.codegen.llvm.dots import emit_dot, find_pair
from farm.codegen.llvm.functions import emit_function
from farm.codegen.llvm.halves import rounded
from farm.codegen.llvm.linear import Linear
from farm.codegen.llvm.memory import Memory
from farm.codegen.llvm.types import constant
from farm.ir.bounds import Interval, interval, whole
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
_NO_SIGNED_WRAP = ("nsw",)
MAX_EAGER_NODES = 8


@dataclass
class Expressions:
    """Emits expressions at the context's position; those that differ between lanes give vectors."""

    context: Context

    def __post_init__(self) -> None:
        self.memory = Memory(self.context, self.emit)

    def emit(self, expr: Expr) -> ir.Value:
        """Return the value of an expression."""
        context = self.context
        match expr:
            case Const(value, dtype):
                return constant(value, dtype)
            case Var(name):
                bound = context.bindings.get(name)
                return context.variables[name] if bound is None else self.memory.sum(bound)
            case Load(buffer, indices):
                return self.memory.load(buffer, indices)
            case Binary():
                return self._binary(expr)
            case Compare(op, a, b):
                left, right = context.alike(self.emit(a), self.emit(b))
                return self.compare(op, left, right, a.dtype)
            case Select():
                return self._select(expr)
            case Cast(dtype, value):
                return emit_cast(
                    context.unit, context.builder, self.emit(value), value.dtype, dtype
                )
            case Math(op, value):
                contract = "contract" in context.float_flags
                result = self.emit(value)
                result = emit_function(context.unit, context.builder, op, result, contract=contract)
                return self._rounded(result, expr.dtype)
            case _:
                raise AssertionError(f"unknown expression {type(expr).__name__}")

    def store(self, buffer: Buffer, indices: tuple[Expr, ...], value: Expr) -> None:
        """Store a value, evaluated before its address as nothing depends on the order."""
        if isinstance(value, Load) and value.dtype.is_half:
            self.memory.copy(buffer, indices, value)
        else:
            self.memory.store(buffer, indices, self.emit(value))

    def compare(self, op: CompareOp, a: ir.Value, b: ir.Value, dtype: DType) -> ir.Value:
        """Return whether two values of `dtype` compare so; with NaN only ``ne`` holds."""
        symbol, builder = _SYMBOLS[op], self.context.builder
        if dtype.is_float:
            ordered = builder.fcmp_ordered
            return (builder.fcmp_unordered if op is CompareOp.NE else ordered)(symbol, a, b)
        signed = builder.icmp_signed
        return (signed if dtype.is_signed else builder.icmp_unsigned)(symbol, a, b)

    def _binary(self, expr: Binary) -> ir.Value:
        op, dtype, builder = expr.op, expr.dtype, self.context.builder
        if dtype is DType.INT64:
            form = self.context.analysis.of(expr)
            if form != Linear(0, {expr: 1}):
                return self.memory.sum(form)
        if (pair := find_pair(expr, self.context)) is not None:
            return emit_dot(self.context, pair, self.memory, None)
        a, b = self.context.alike(self.emit(expr.a), self.emit(expr.b))
        if op in (BinaryOp.MIN, BinaryOp.MAX):
            order = CompareOp.LT if op is BinaryOp.MIN else CompareOp.GT
            return builder.select(self.compare(order, a, b, dtype), a, b)
        if op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD):
            return self._division(expr, a, b)
        if op in (BinaryOp.SHL, BinaryOp.SHR):
            return self._shift(op, dtype, a, b)
        if dtype.is_float:
            result = getattr(builder, _FLOAT[op])(a, b, flags=self.context.float_flags)
            return self._rounded(result, dtype)
        emit: Callable[..., ir.Value] = getattr(builder, _INTEGER[op])
        return emit(a, b, flags=_NO_SIGNED_WRAP) if self._stays_in_range(expr) else emit(a, b)

    def _rounded(self, value: ir.Value, dtype: DType) -> ir.Value:
        if not dtype.is_half:
            return value
        return rounded(self.context.unit, self.context.builder, value, dtype)

    def _stays_in_range(self, expr: Binary) -> bool:
        """Tell whether an int64 product is proved not to wrap around."""
        if expr.dtype is not DType.INT64 or expr.op is not BinaryOp.MUL:
            return False
        a, b = (interval(side, self.context.sure) for side in (expr.a, expr.b))
        products = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        return Interval(min(products), max(products)).within(whole(DType.INT64))

    def _division(self, expr: Binary, a: ir.Value, b: ir.Value) -> ir.Value:
        context = self.context
        division = Division(context.unit, context.builder, expr.dtype.is_signed)
        sides = (
            Operand(a, interval(expr.a, context.sure)),
            Operand(b, interval(expr.b, context.sure)),
        )
        floored = expr.op is BinaryOp.FLOORDIV
        return division.quotient(*sides) if floored else division.remainder(*sides)

    def _shift(self, op: BinaryOp, dtype: DType, a: ir.Value, b: ir.Value) -> ir.Value:
        builder = self.context.builder
        amount = builder.and_(b, ir.Constant(b.type, dtype.bits - 1))
        if op is BinaryOp.SHL:
            return builder.shl(a, amount)
        return (builder.ashr if dtype.is_signed else builder.lshr)(a, amount)

    def _select(self, expr: Select) -> ir.Value:
        """Emit both sides if they are cheap and touch no memory, else branch around them."""
        context, condition = self.context, self.emit(expr.condition)
        sides = ((True, expr.if_true), (False, expr.if_false))
        varies = isinstance(condition.type, ir.VectorType)
        if all(_is_cheap(side) for _, side in sides):
            values = [self.emit(side) for _, side in sides]
        elif varies:
            values = [self._masked(expr.condition, condition, holds, side) for holds, side in sides]
        else:
            return self._branches(expr, condition)
        if varies:
            values = [context.broadcast(value) for value in values]
        return context.builder.select(condition, *context.alike(*values))

    def _masked(self, condition: Expr, lanes: ir.Value, holds: bool, side: Expr) -> ir.Value:
        """Emit one side with the lanes off that do not take it."""
        with self.context.region():
            on = lanes if holds else self.context.builder.not_(lanes)
            self.context.suppose(condition, holds=holds, on=on)
            return self.emit(side)

    def _branches(self, expr: Select, condition: ir.Value) -> ir.Value:
        context, builder = self.context, self.context.builder
        blocks = [builder.append_basic_block(name) for name in ("if_true", "if_false", "selected")]
        builder.cbranch(condition, *blocks[:2])
        wide = context.varies(expr.if_true) or context.varies(expr.if_false)
        sides = []
        for holds, block, side in (
            (True, blocks[0], expr.if_true),
            (False, blocks[1], expr.if_false),
        ):
            builder.position_at_end(block)
            with context.region():
                context.suppose(expr.condition, holds=holds)
                value = self.emit(side)
                value = context.broadcast(value) if wide else value
                sides.append((value, builder.block))
            builder.branch(blocks[2])
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
