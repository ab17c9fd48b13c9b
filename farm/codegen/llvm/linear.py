"""Indices as sums: a constant and terms with constant coefficients.

Owns: taking an int64 expression apart, and putting ``x // c`` and ``x % c`` back together.
Does not own: code for the terms (`expressions`).

Invariant: a form equals its expression modulo 2**64, whatever wraps around in it; quotients are taken apart only where
interval analysis has proved that nothing does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from farm.ir.bounds import Facts, Interval, interval, whole
from farm.ir.dtype import DType
from farm.ir.expr import Binary, BinaryOp, Const, Expr, Var

LANE = Var("lane")
"""Stands for 0, 1, … within a vector. No function's own: its variables are always replaced first."""


@dataclass(frozen=True, slots=True)
class Linear:
    """``constant + sum(coefficient * term)``; no coefficient is 0."""

    constant: int = 0
    terms: Mapping[Expr, int] = field(default_factory=dict)

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """Return ``self + factor * other``."""
        constant = self.constant + factor * other.constant
        if not other.terms:
            return Linear(constant, self.terms)
        terms = dict(self.terms)
        for term, coefficient in other.terms.items():
            terms[term] = total = terms.get(term, 0) + factor * coefficient
            if not total:
                del terms[term]
        return Linear(constant, terms)

    def without(self, term: Expr) -> Linear:
        """Return the form with one term left out."""
        return Linear(self.constant, {t: c for t, c in self.terms.items() if t != term})


ZERO = Linear()


@dataclass
class Analysis:
    """Takes expressions apart.

    Attributes
    ----------
    bindings
        What loop variables stand for, by name; the others are terms.
    facts
        What is known of every variable, `LANE` included, whatever lanes are masked off.
    """

    bindings: Mapping[str, Linear]
    facts: Facts

    def of(self, expr: Expr) -> Linear:
        """Return the form of an int64 expression."""
        match expr:
            case Const(value):
                return Linear(int(value))
            case Var(name):
                return self.bindings.get(name) or Linear(0, {expr: 1})
            case Binary(BinaryOp.ADD, a, b):
                return self.of(a).plus(self.of(b))
            case Binary(BinaryOp.SUB, a, b):
                return self.of(a).plus(self.of(b), -1)
            case Binary(BinaryOp.MUL, a, b):
                return self._product(expr, self.of(a), self.of(b))
            case Binary(BinaryOp.FLOORDIV | BinaryOp.FLOORMOD, a, Const(divisor)) if divisor > 0:
                return self._quotient(expr, a, int(divisor))
            case _:
                return Linear(0, {expr: 1})

    def offset(self, indices: tuple[Expr, ...], strides: tuple[int, ...]) -> Linear:
        """Return the form of a flat index; ``x // c * (c * s) + x % c * s`` becomes ``x * s``."""
        total = ZERO
        for index, stride in zip(indices, strides, strict=True):
            total = total.plus(self.of(index), stride)
        return self._rejoined(total)

    def _product(self, expr: Expr, a: Linear, b: Linear) -> Linear:
        if not a.terms:
            a, b = b, a
        if b.terms:
            return Linear(0, {expr: 1})
        return ZERO.plus(a, b.constant)

    def _quotient(self, expr: Binary, dividend: Expr, divisor: int) -> Linear:
        """Split ``(divisor * q + r) // divisor`` and ``% divisor`` where ``0 <= r < divisor``."""
        multiples: dict[Expr, int] = {}
        rest: dict[Expr, int] = {}
        form = self.of(dividend)
        for term, coefficient in form.terms.items():
            (rest if coefficient % divisor else multiples)[term] = coefficient
        high, low = divmod(form.constant, divisor)
        remainder = Linear(low, rest)
        exact = self.range_of(form).within(whole(DType.INT64))
        if exact and self.range_of(remainder).within(Interval(0, divisor - 1)):
            if expr.op is BinaryOp.FLOORMOD:
                return remainder
            return Linear(high, {term: c // divisor for term, c in multiples.items()})
        return Linear(0, {expr: 1})

    def range_of(self, form: Linear) -> Interval:
        """Return bounds of a form as integers, beyond 64 bits where it wraps around."""
        low = high = form.constant
        for term, coefficient in form.terms.items():
            found = interval(term, self.facts)
            ends = (coefficient * found.low, coefficient * found.high)
            low, high = low + min(ends), high + max(ends)
        return Interval(low, high)

    def _rejoined(self, form: Linear) -> Linear:
        for term, coefficient in form.terms.items():
            match term:
                case Binary(BinaryOp.FLOORMOD, a, Const(divisor)) if divisor > 0:
                    quotient = Binary(BinaryOp.FLOORDIV, a, term.b)
                    if form.terms.get(quotient) == coefficient * int(divisor):
                        rest = form.without(term).without(quotient)
                        return self._rejoined(rest.plus(self.of(a), coefficient))
        return form
