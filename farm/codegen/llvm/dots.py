"""Sums of products of narrow integers, which some CPUs compute at once (x86: pmaddwd; Arm: sdot and udot).

Owns: finding them, and writing them so that they become those instructions.

Invariant: the value is that of the sum: products of 16-bit integers are exact in 32 bits, and their sum wraps around as
every int32 does, in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from farm.codegen.llvm.casts import emit_cast
from farm.codegen.llvm.context import Context
from farm.codegen.llvm.loops import MAX_UNROLLED_NODES, copies
from farm.codegen.llvm.memory import Memory
from farm.codegen.llvm.types import I8, I32, undefined, vector
from farm.codegen.llvm.unit import Dots
from farm.ir.dtype import DType
from farm.ir.expr import Binary, BinaryOp, Cast, Expr, Load, Var, const, map_children, walk
from farm.ir.stmt import For, LoopKind, Store

_NARROW = (DType.INT8, DType.UINT8, DType.INT16)
_QUARTERS = (DType.INT8, DType.UINT8)


@dataclass(frozen=True, slots=True)
class Dot:
    """``left[0] * right[0] + left[1] * right[1] + …``; all factors of a side have one narrow type."""

    left: tuple[Expr, ...]
    right: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class DotLoop:
    """An unrolled loop that only adds products to an element; `parts` are what is computed at once, in order."""

    store: Store
    parts: tuple[Dot, ...]


def find_pair(expr: Binary, context: Context) -> Dot | None:
    """Return the factors of an int32 sum if it is a pair of products that differ between lanes."""
    if context.unit.dots is not Dots.PAIRS or context.lanes == 1:
        return None
    if expr.op is not BinaryOp.ADD or expr.dtype is not DType.INT32:
        return None
    first, second = _factors(expr.a), _factors(expr.b)
    if first is None or second is None:
        return None
    if context.varies(first[0]) != context.varies(second[0]):
        second = second[::-1]
    dot = Dot((first[0], second[0]), (first[1], second[1]))
    return dot if _is_whole(dot, context, _NARROW) else None


def find_dot_loop(loop: For, context: Context) -> DotLoop | None:
    """Return what an unrolled loop adds up, if the target has an instruction for it."""
    group = {Dots.PAIRS: 2, Dots.QUARTERS: 4}.get(context.unit.dots, 0)
    if not group or context.lanes == 1 or loop.kind is not LoopKind.UNROLLED or loop.extent % group:
        return None
    if copies(loop) > MAX_UNROLLED_NODES:
        return None
    store = loop.body
    if not isinstance(store, Store) or store.buffer.dtype is not DType.INT32:
        return None
    factors = _factors(added) if (added := _added(store)) is not None else None
    if factors is None or any(loop.var in walk(index) for index in store.indices):
        return None
    reads = [n for side in factors for n in walk(side) if isinstance(n, Load)]
    if any(read.buffer.name == store.buffer.name for read in reads):
        return None
    parts = []
    for start in range(0, loop.extent, group):
        sides = (
            tuple(_at(side, loop.var, start + step) for step in range(group)) for side in factors
        )
        parts.append(Dot(*sides))
    types = _NARROW if group == 2 else _QUARTERS
    if group == 4 and (context.lanes % 4 or factors[0].dtype is not factors[1].dtype):
        return None
    whole = all(_is_whole(part, context, types) for part in parts)
    return DotLoop(store, tuple(parts)) if whole else None


def emit_dot(context: Context, dot: Dot, memory: Memory, total: ir.Value | None) -> ir.Value:
    """Return the sum, added to `total` if there is one."""
    builder, quarters = context.builder, len(dot.left) == 4
    narrow = dot.left[0].dtype if quarters else DType.INT16
    sides = [_interleaved(context, side, memory, narrow) for side in (dot.left, dot.right)]
    if quarters:
        return _quarters(context, sides, total, signed=narrow.is_signed)
    lanes = context.lanes
    wide = vector(I32, 2 * lanes)
    product = builder.mul(*(builder.sext(side, wide) for side in sides))
    halves = (range(start, 2 * lanes, 2) for start in (0, 1))
    found = builder.add(*(_picked(builder, product, product, half) for half in halves))
    return found if total is None else builder.add(context.broadcast(total), found)


def _quarters(
    context: Context, sides: Sequence[ir.Value], total: ir.Value | None, *, signed: bool
) -> ir.Value:
    builder, lanes = context.builder, context.lanes
    kind, bytes_ = vector(I32, 4), vector(I8, 16)
    name = "llvm.aarch64.neon.sdot" if signed else "llvm.aarch64.neon.udot"
    function = context.unit.intrinsic(name, [kind, bytes_], kind, [kind, bytes_, bytes_])
    start = ir.Constant(vector(I32, lanes), None) if total is None else context.broadcast(total)
    parts = []
    for first in range(0, lanes, 4):
        own = _picked(builder, start, start, range(first, first + 4))
        mine = [_picked(builder, s, s, range(4 * first, 4 * first + 16)) for s in sides]
        parts.append(builder.call(function, [own, *mine]))
    while len(parts) > 1:
        odd = parts[-1:] if len(parts) % 2 else []
        pairs = zip(parts[::2], parts[1::2], strict=False)
        parts = [_joined(builder, a, b) for a, b in pairs] + odd
    return parts[0]


def _joined(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return the elements of two vectors, of which the second may be shorter."""
    count, more = a.type.count, b.type.count
    if more < count:
        b = _picked(builder, b, b, [*range(more), *[0] * (count - more)])
    return _picked(builder, a, b, range(count + more))


def _added(store: Store) -> Expr | None:
    """Return what a store adds to its element."""
    match store.value:
        case Binary(BinaryOp.ADD, Load(buffer, indices), added) | Binary(
            BinaryOp.ADD, added, Load(buffer, indices)
        ) if buffer == store.buffer and indices == store.indices:
            return added
    return None


def _factors(expr: Expr) -> tuple[Expr, Expr] | None:
    if not isinstance(expr, Binary) or expr.op is not BinaryOp.MUL:
        return None
    a, b = _unwidened(expr.a), _unwidened(expr.b)
    return (a, b) if a.dtype in _NARROW and b.dtype in _NARROW else None


def _is_whole(dot: Dot, context: Context, types: tuple[DType, ...]) -> bool:
    """Tell whether the factors of each side are alike, and not all are the same in all lanes."""
    sides = (dot.left, dot.right)
    alike = all(len({context.varies(factor) for factor in side}) == 1 for side in sides)
    fit = all(factor.dtype in types for side in sides for factor in side)
    return alike and fit and any(context.varies(side[0]) for side in sides)


def _at(expr: Expr, var: Var, value: int) -> Expr:
    """Return an expression with a variable's value in it."""
    if expr == var:
        return const(value, DType.INT64)
    return map_children(expr, lambda child: _at(child, var, value))


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


def _interleaved(context: Context, side: Sequence[Expr], memory: Memory, narrow: DType) -> ir.Value:
    """Return a vector with the factors of each lane next to each other, as integers of `narrow`."""
    builder, lanes, count = context.builder, context.lanes, len(side)
    source = side[0].dtype
    loads = [each for each in side if isinstance(each, Load)]
    if len(loads) == count and (row := memory.row(loads)) is not None:
        if row.type.count == count * lanes:
            return emit_cast(context.unit, builder, row, source, narrow)
        few = emit_cast(context.unit, builder, row, source, narrow)
        return _repeated(context, few)
    values = [
        emit_cast(context.unit, builder, memory.emit(each), each.dtype, narrow) for each in side
    ]
    if not any(isinstance(value.type, ir.VectorType) for value in values):
        few = undefined(vector(values[0].type, count))
        for index, value in enumerate(values):
            few = builder.insert_element(few, value, ir.Constant(I32, index))
        return _repeated(context, few)
    values = [context.broadcast(value) for value in values]
    while len(values) > 2:
        values = [_joined(builder, *values[at : at + 2]) for at in range(0, len(values), 2)]
    turns = [lane + lanes * step for lane in range(lanes) for step in range(count)]
    first, second = values
    return _picked(builder, first, second, turns)


def _repeated(context: Context, few: ir.Value) -> ir.Value:
    """Return a few elements again and again, once for each lane: as one wider element in each."""
    builder, lanes, count = context.builder, context.lanes, few.type.count
    one = ir.IntType(count * few.type.element.width)
    whole = context.broadcast(builder.bitcast(few, one))
    return builder.bitcast(whole, vector(few.type.element, lanes * count))


def _picked(
    builder: ir.IRBuilder, first: ir.Value, second: ir.Value, lanes: Sequence[int]
) -> ir.Value:
    mask = ir.Constant(vector(I32, len(lanes)), [ir.Constant(I32, lane) for lane in lanes])
    return builder.shuffle_vector(first, second, mask)
