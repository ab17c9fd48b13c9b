"""Interval analysis of integer expressions: which values an index can take.

Owns: intervals, and what conditions tell. Does not own: what is refused for it (`farm.ir.verifier`).

Invariant: an interval holds every value that the expression takes where its facts hold; wrap-around included.

Facts learnt from conditions (``if i*16 + j < 100``) narrow the expression that they speak of, recognised by structure.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
    Select,
    Var,
    walk,
)

MIN_BITS = 8  # the narrowest integer: a shift by less is never taken modulo the width
MAX_FACTS = 1000  # nothing more is learnt beyond: every new fact copies the others


@dataclass(frozen=True, slots=True)
class Interval:
    """All integers from `low` to `high`, both included; empty if low > high."""

    low: int
    high: int

    def within(self, other: Interval) -> bool:
        """Tell whether every value lies in `other`."""
        return other.low <= self.low and self.high <= other.high

    def meet(self, other: Interval) -> Interval:
        """Return the values in both."""
        return Interval(max(self.low, other.low), min(self.high, other.high))

    def join(self, other: Interval) -> Interval:
        """Return the smallest interval that holds both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))


Facts = Mapping[Expr, Interval]


def whole(dtype: DType) -> Interval:
    """Return all values of an integer or bool type."""
    return Interval(dtype.min, dtype.max)


def interval(expr: Expr, facts: Facts) -> Interval:
    """Return an interval that holds every value of an integer or bool expression.

    Parameters
    ----------
    facts
        What is known; must hold every loop variable.
    """
    if isinstance(expr, Var):
        return facts[expr]
    found = _interval(expr, facts)
    if not found.within(whole(expr.dtype)):  # it may wrap around
        found = whole(expr.dtype)
    known = facts.get(expr)
    return found.meet(known) if known else found


def _interval(expr: Expr, facts: Facts) -> Interval:
    match expr:
        case Const(value):
            return Interval(int(value), int(value))
        case Var():
            return facts[expr]
        case Binary(op, a, b) if expr.dtype.is_integer:
            return _binary(op, interval(a, facts), interval(b, facts), whole(expr.dtype))
        case Cast(_, value) if not value.dtype.is_float:
            return interval(value, facts)
        case Select(condition, a, b) if expr.dtype.is_integer:
            holds, fails = split(condition, facts)
            return interval(a, holds).join(interval(b, fails))
        case _:
            return whole(expr.dtype)


# Operations whose extremes lie at the ends of their operands (for floordiv: with a positive divisor).
_AT_ENDS: Mapping[BinaryOp, Callable[[int, int], int]] = {
    BinaryOp.ADD: operator.add,
    BinaryOp.SUB: operator.sub,
    BinaryOp.MUL: operator.mul,
    BinaryOp.MIN: min,
    BinaryOp.MAX: max,
    BinaryOp.FLOORDIV: operator.floordiv,
}


def _binary(op: BinaryOp, a: Interval, b: Interval, unknown: Interval) -> Interval:
    # where conditions contradict each other, an interval is empty: its low end above the high one
    if op in _AT_ENDS and (op is not BinaryOp.FLOORDIV or 0 < b.low <= b.high):
        ends = [_AT_ENDS[op](x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        return Interval(min(ends), max(ends))
    match op:
        case BinaryOp.FLOORMOD if b.low > 0:
            return a if a.low >= 0 and a.high < b.low else Interval(0, b.high - 1)
        case BinaryOp.AND if b.low >= 0:
            return Interval(0, b.high)
        case BinaryOp.AND if a.low >= 0:
            return Interval(0, a.high)
        case BinaryOp.SHR if b.low == b.high and 0 <= b.low < MIN_BITS:
            return Interval(a.low >> b.low, a.high >> b.low)
        case _:
            return unknown


def assume(condition: Expr, facts: Facts, *, holds: bool = True) -> Facts:
    """Return the facts that are known where `condition` holds (or does not)."""
    return split(condition, facts)[0 if holds else 1]


def split(condition: Expr, facts: Facts) -> tuple[Facts, Facts]:
    """Return the facts that are known where `condition` holds, and those where it does not.

    Notes
    -----
    Looks at each operand once: twice would double the work with every condition nested in a condition.
    """
    match condition:
        case Binary(BinaryOp.AND, a, b) if condition.dtype is DType.BOOL:
            return split(b, split(a, facts)[0])[0], facts
        case Binary(BinaryOp.OR, a, b) if condition.dtype is DType.BOOL:
            return facts, split(b, split(a, facts)[1])[1]
        case Binary(BinaryOp.XOR, a, Const(True)):
            holds, fails = split(a, facts)
            return fails, holds
        case Compare(op, a, b) if a.dtype.is_integer:
            sides = (a, interval(a, facts)), (b, interval(b, facts))
            return _both(op, *sides, facts), _both(NEGATED[op], *sides, facts)
        case _:
            return facts, facts


NEGATED = {
    CompareOp.EQ: CompareOp.NE,
    CompareOp.NE: CompareOp.EQ,
    CompareOp.LT: CompareOp.GE,
    CompareOp.GE: CompareOp.LT,
    CompareOp.GT: CompareOp.LE,
    CompareOp.LE: CompareOp.GT,
}
MIRRORED = {
    CompareOp.EQ: CompareOp.EQ,
    CompareOp.NE: CompareOp.NE,
    CompareOp.LT: CompareOp.GT,
    CompareOp.GT: CompareOp.LT,
    CompareOp.LE: CompareOp.GE,
    CompareOp.GE: CompareOp.LE,
}


Side = tuple[Expr, Interval]


def _both(op: CompareOp, a: Side, b: Side, facts: Facts) -> Facts:
    return _narrow(MIRRORED[op], b, a[1], _narrow(op, a, b[1], facts))


def _narrow(op: CompareOp, side: Side, bound: Interval, facts: Facts) -> Facts:
    expr, found = side
    if len(facts) >= MAX_FACTS or any(isinstance(node, Load) for node in walk(expr)):
        return facts  # a store may change the element before the fact is used
    match op:
        case CompareOp.EQ:
            allowed = bound
        case CompareOp.LT:
            allowed = Interval(expr.dtype.min, bound.high - 1)
        case CompareOp.LE:
            allowed = Interval(expr.dtype.min, bound.high)
        case CompareOp.GT:
            allowed = Interval(bound.low + 1, expr.dtype.max)
        case CompareOp.GE:
            allowed = Interval(bound.low, expr.dtype.max)
        case CompareOp.NE:
            return facts
    return {**facts, expr: found.meet(allowed)}
