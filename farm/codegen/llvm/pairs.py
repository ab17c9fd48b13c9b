"""Sums of two products of narrow integers, which some CPUs compute at once (x86: pmaddwd).

Owns: finding them, and writing them so that LLVM finds them too. Does not own: the instruction (LLVM's choice).

Invariant: the value is that of the sum: products of 16-bit integers are exact in 32 bits, and their sum wraps around as
every int32 does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from farm.codegen.llvm.casts import emit_cast
from farm.codegen.llvm.context import Context
from farm.codegen.llvm.types import I16, I32, vector
from farm.ir.dtype import DType
from farm.ir.expr import Binary, BinaryOp, Cast, Expr

_NARROW = (DType.INT8, DType.UINT8, DType.INT16)


@dataclass(frozen=True, slots=True)
class Pair:
    """``left[0] * right[0] + left[1] * right[1]``; all fit 16 bits."""

    left: tuple[Expr, Expr]
    right: tuple[Expr, Expr]


def find_pair(expr: Binary, context: Context) -> Pair | None:
    """Return the factors of an int32 sum if it is a pair of products that differ between lanes."""
    if context.lanes == 1 or expr.op is not BinaryOp.ADD or expr.dtype is not DType.INT32:
        return None
    first, second = _factors(expr.a), _factors(expr.b)
    if first is None or second is None:
        return None
    if context.varies(first[0]) != context.varies(second[0]):
        second = second[::-1]
    left, right = (first[0], second[0]), (first[1], second[1])
    alike = all(context.varies(a) == context.varies(b) for a, b in (left, right))
    return Pair(left, right) if alike and context.varies(expr) else None


def emit_pair(context: Context, pair: Pair, emit: Callable[[Expr], ir.Value]) -> ir.Value:
    """Return the sum: one product of vectors twice as long, of which neighbours are added."""
    builder, lanes = context.builder, context.lanes
    wide = vector(I32, 2 * lanes)
    sides = [
        builder.sext(_interleaved(context, [_narrow(context, e, emit) for e in side]), wide)
        for side in (pair.left, pair.right)
    ]
    product = builder.mul(*sides)
    halves = (range(start, 2 * lanes, 2) for start in (0, 1))
    return builder.add(*(_picked(builder, product, product, list(half)) for half in halves))


def _factors(expr: Expr) -> tuple[Expr, Expr] | None:
    if not isinstance(expr, Binary) or expr.op is not BinaryOp.MUL:
        return None
    a, b = _unwidened(expr.a), _unwidened(expr.b)
    return (a, b) if a.dtype in _NARROW and b.dtype in _NARROW else None


def _unwidened(expr: Expr) -> Expr:
    """Return what an integer was before it was made wider."""
    while isinstance(expr, Cast) and expr.value.dtype.is_integer:
        source, dtype = expr.value.dtype, expr.dtype
        if source.bits > dtype.bits or source.is_signed > dtype.is_signed:
            break
        if source.bits == dtype.bits and source is not dtype:
            break
        expr = expr.value
    return expr


def _narrow(context: Context, expr: Expr, emit: Callable[[Expr], ir.Value]) -> ir.Value:
    return emit_cast(context.unit, context.builder, emit(expr), expr.dtype, DType.INT16)


def _interleaved(context: Context, values: list[ir.Value]) -> ir.Value:
    """Return the vector of both values in turn, twice as long."""
    builder, lanes = context.builder, context.lanes
    if any(isinstance(value.type, ir.VectorType) for value in values):
        first, second = (context.broadcast(value) for value in values)
        turns = [index for lane in range(lanes) for index in (lane, lanes + lane)]
        return _picked(builder, first, second, turns)
    couple = ir.Constant(vector(I16, 2), ir.Undefined)
    for index, value in enumerate(values):
        couple = builder.insert_element(couple, value, ir.Constant(I32, index))
    return _picked(builder, couple, couple, [0, 1] * lanes)


def _picked(builder: ir.IRBuilder, first: ir.Value, second: ir.Value, lanes: list[int]) -> ir.Value:
    mask = ir.Constant(vector(I32, len(lanes)), [ir.Constant(I32, lane) for lane in lanes])
    return builder.shuffle_vector(first, second, mask)
