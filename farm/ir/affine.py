"""Affine forms of index expressions: sums of digits of loop variables.

Owns: turning expressions into that form, its arithmetic, and back. Does not own: what is concluded from it.

Invariant: a form has the value of its expression wherever each variable lies in its loop's range.

Notes
-----
A digit is ``(var // lower) % extent``: what splitting and fusing loops makes of variables. Divisions of a sum are
resolved into digits where that is exact (as the iteration maps of TVM's ``arith.detect_iter_map`` are); everything
else has no form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from farm.ir.bounds import Facts, Interval, interval
from farm.ir.dtype import DType
from farm.ir.expr import Binary, BinaryOp, Const, Expr, Var, map_children

LIMIT = 1 << 62  # larger values could wrap around


@dataclass(frozen=True, slots=True)
class Digit:
    """``(var // lower) % extent`` of a variable in ``[0, size)``."""

    var: Var
    size: int
    lower: int
    extent: int

    def __hash__(self) -> int:
        return hash((self.var.name, self.lower, self.extent))

    @property
    def is_top(self) -> bool:
        """Whether the remainder changes nothing."""
        return self.extent >= -(-self.size // self.lower)

    def expr(self) -> Expr:
        """Return the digit as an expression."""
        value: Expr = self.var if self.lower == 1 else self.var // self.lower
        return value if self.is_top else value % self.extent

    def split(self, at: int) -> tuple[Digit, Digit] | None:
        """Return the digit's low part, of extent `at`, and its high part, if they make it up exactly."""
        if self.extent % at and not self.is_top:
            return None
        high = -(-self.extent // at)
        return (
            Digit(self.var, self.size, self.lower, min(at, self.extent)),
            Digit(self.var, self.size, self.lower * at, high),
        )


@dataclass(frozen=True, slots=True)
class Affine:
    """``constant + sum of coefficient * digit``; coefficients are not zero, digits ordered and merged."""

    terms: tuple[tuple[Digit, int], ...]
    constant: int

    def __add__(self, other: Affine) -> Affine:
        constant = self.constant + other.constant
        if not self.terms or not other.terms:
            return Affine(self.terms or other.terms, constant)
        return _make((*self.terms, *other.terms), constant)

    def __sub__(self, other: Affine) -> Affine:
        return self + other.scaled(-1)

    def scaled(self, factor: int) -> Affine:
        """Return the form times a number."""
        if factor == 0:
            return Affine((), 0)
        return Affine(tuple((d, k * factor) for d, k in self.terms), self.constant * factor)

    def divided(self, divisor: int) -> Affine | None:
        """Return the form divided by a positive number, rounded down; None if that has no form."""
        parts = self.divmod(divisor)
        return None if parts is None else parts[0]

    def divmod(self, divisor: int) -> tuple[Affine, Affine] | None:
        """Return quotient, rounded down, and remainder by a positive number; None if they have no form."""
        quotient: list[tuple[Digit, int]] = []
        rest: list[tuple[Digit, int]] = []
        for digit, k in self.terms:
            if k % divisor == 0:
                quotient.append((digit, k // divisor))
            elif k > 0 and divisor % k == 0 and (parts := digit.split(divisor // k)) is not None:
                rest.append((parts[0], k))
                quotient.append((parts[1], 1))
            else:
                rest.append((digit, k))
        whole, left = divmod(self.constant, divisor)
        low, high = _ends(rest, left)
        if low < 0 or high >= divisor:
            return None
        return _make(quotient, whole), _make(rest, left)

    def interval(self) -> Interval:
        """Return the values that the form can take, if its digits were independent."""
        return _range(self.terms, self.constant)

    def parts(self, variables: Iterable[Var]) -> tuple[Affine, Affine]:
        """Return the terms of the given variables, with the constant, and the other terms."""
        chosen = set(variables)
        ours = tuple(term for term in self.terms if term[0].var in chosen)
        others = tuple(term for term in self.terms if term[0].var not in chosen)
        return Affine(ours, self.constant), Affine(others, 0)

    def expr(self) -> Expr:
        """Return the form as an expression: the largest coefficients first, the constant last."""
        positive = [(d, k) for d, k in self.terms if k > 0]
        negative = [(d, k) for d, k in self.terms if k < 0]
        result: Expr | None = None
        for digit, k in positive:
            term = digit.expr() if k == 1 else digit.expr() * k
            result = term if result is None else result + term
        constant = self.constant
        if result is None:
            result, constant = Const(constant, DType.INT64), 0
        for digit, k in negative:
            result = result - (digit.expr() if k == -1 else digit.expr() * -k)
        if constant:
            result = result + constant if constant > 0 else result - -constant
        return result


def _range(terms: Iterable[tuple[Digit, int]], constant: int) -> Interval:
    return Interval(*_ends(terms, constant))


def _ends(terms: Iterable[tuple[Digit, int]], constant: int) -> tuple[int, int]:
    """Return the least and the greatest value that a sum can have; for parts of forms too, which are many."""
    low = high = constant
    for digit, k in terms:
        if k > 0:
            high += k * (digit.extent - 1)
        else:
            low += k * (digit.extent - 1)
    return low, high


def _make(terms: Iterable[tuple[Digit, int]], constant: int) -> Affine:
    """Add up equal digits and join neighbours: ``(i // 4) * 4 + i % 4`` is ``i``."""
    sums: dict[Digit, int] = {}
    for digit, k in terms:
        if digit.extent > 1:
            sums[digit] = sums.get(digit, 0) + k
    if 0 in sums.values():
        sums = {digit: k for digit, k in sums.items() if k}
    if len(sums) <= 1:
        return Affine(tuple(sums.items()), constant)
    if len({digit.var.name for digit in sums}) < len(sums):
        while (joined := _join(sums)) is not None:
            sums = joined
    order = sorted(sums.items(), key=lambda term: (-abs(term[1]), term[0].var.name, -term[0].lower))
    return Affine(tuple(order), constant)


def _join(sums: dict[Digit, int]) -> dict[Digit, int] | None:
    by_place = {(digit.var, digit.lower): digit for digit in sums}
    for low, k in sums.items():
        high = by_place.get((low.var, low.lower * low.extent))
        if high is not None and sums[high] == k * low.extent:
            rest = {d: c for d, c in sums.items() if d not in (low, high)}
            most = -(-low.size // low.lower)
            whole = Digit(low.var, low.size, low.lower, min(low.extent * high.extent, most))
            rest[whole] = rest.get(whole, 0) + k
            return rest
    return None


def constant(value: int) -> Affine:
    """Return the form of a number."""
    return Affine((), value)


@lru_cache(maxsize=4096)
def variable(var: Var, extent: int) -> Affine:
    """Return the form of a loop variable in ``[0, extent)``."""
    return _make([(Digit(var, extent, 1, extent), 1)], 0)


def affine(expr: Expr, extents: Mapping[Var, int]) -> Affine | None:
    """Return the form of an int64 expression, or None if it has none.

    Parameters
    ----------
    extents
        The range of each variable, from 0; a variable that is not there has no form.
    """
    found = _affine(expr, extents)
    if found is None:
        return None
    low, high = _ends(found.terms, found.constant)
    return found if low > -LIMIT and high < LIMIT else None


def _affine(expr: Expr, extents: Mapping[Var, int]) -> Affine | None:
    if isinstance(expr, Var):
        extent = extents.get(expr)
        return None if extent is None else variable(expr, extent)
    if expr.dtype is not DType.INT64:
        return None
    if isinstance(expr, Const):
        return constant(int(expr.value))
    if not isinstance(expr, Binary):
        return None
    a = affine(expr.a, extents)
    b = affine(expr.b, extents) if a is not None else None
    return None if a is None or b is None else _combine(expr.op, a, b)


def _combine(op: BinaryOp, a: Affine, b: Affine) -> Affine | None:
    match op:
        case BinaryOp.ADD:
            return a + b
        case BinaryOp.SUB:
            return a - b
        case BinaryOp.MUL if not b.terms:
            return a.scaled(b.constant)
        case BinaryOp.MUL if not a.terms:
            return b.scaled(a.constant)
        case BinaryOp.FLOORDIV if not b.terms and b.constant > 0:
            return a.divided(b.constant)
        case BinaryOp.FLOORMOD if not b.terms and b.constant > 0:
            parts = a.divmod(b.constant)
            return None if parts is None else parts[1]
        case _:
            return None


def simplified(expr: Expr, extents: Mapping[Var, int]) -> Expr:
    """Return an equal expression with the largest parts that have an affine form written from it."""
    if isinstance(expr, Const) or (isinstance(expr, Var) and extents.get(expr, 0) > 1):
        return expr
    found = affine(expr, extents) if expr.dtype is DType.INT64 else None
    if found is not None:
        return found.expr()
    return map_children(expr, lambda child: simplified(child, extents))


def affine_interval(expr: Expr, facts: Facts) -> Interval:
    """Return an interval that holds every value of an int64 expression, from facts about other sums.

    ``i * 4 + j + k`` is below 10 plus the most of ``k`` where ``i * 4 + j < 10``, in whatever order it is written.

    Parameters
    ----------
    facts
        What is known; must hold every loop variable.
    """
    extents = {
        key: known.high + 1
        for key, known in facts.items()
        if isinstance(key, Var) and known.low >= 0
    }
    found, form = interval(expr, facts), affine(expr, extents)
    if form is None:
        return found
    sums: list[tuple[Affine, Interval]] = []
    for key, known in facts.items():
        if isinstance(key, Binary) and key.dtype is DType.INT64:
            about = affine(key, extents)
            if about is not None and about.terms:
                sums.append((about, known))
    return found.meet(_from_facts(form, sums[-MAX_SUMS:]))


MAX_SUMS = 8  # facts that are combined: with each more, the work may double


def _from_facts(form: Affine, facts: Sequence[tuple[Affine, Interval]]) -> Interval:
    """Return the interval of a form that may be made up of multiples of others, whose intervals are known."""
    found = form.interval()
    coefficients = dict(form.terms)
    for number, (about, known) in enumerate(facts):
        leading, k = about.terms[0]
        factor, rest = divmod(coefficients.get(leading, 0), k)
        if factor and not rest:
            more = _from_facts(form - about.scaled(factor), facts[number + 1 :])
            ends = sorted((known.low * factor, known.high * factor))
            found = found.meet(Interval(ends[0] + more.low, ends[1] + more.high))
    return found
