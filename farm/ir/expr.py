"""Expressions: pure values computed from loop variables, buffer elements and constants.

Owns: the node types, their typing rules and Python operators.

Invariant: every node is well typed once made; arithmetic is total (it never traps):

- integers wrap around; ``floordiv`` and ``floormod`` round towards minus infinity and give 0 for a zero divisor;
- shifts use the amount modulo the width; ``shr`` keeps the sign of signed types;
- ``min(a, b)`` is ``a if a < b else b``, ``max(a, b)`` is ``a if a > b else b``, also for NaN;
- an operation on floats gives the exact result rounded once to the type; `exp` and `tanh` may be off by an ulp, by two
  where operations may be fused;
- a cast to a narrower integer wraps, a cast from float to integer truncates and saturates, NaN gives 0;
- ``select`` evaluates only the side that it takes.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Union

from farm.errors import InvalidFunction
from farm.ir.dtype import DType, as_dtype
from farm.ir.rounding import round_float

if TYPE_CHECKING:
    from farm.ir.buffer import Buffer

Scalar = bool | int | float
Value = Union["Expr", Scalar]


class BinaryOp(enum.Enum):
    """Operations on two values of one type."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"  # floats only
    FLOORDIV = "floordiv"  # integers only
    FLOORMOD = "floormod"  # integers only
    MIN = "min"
    MAX = "max"
    AND = "and"  # integers and bool
    OR = "or"
    XOR = "xor"
    SHL = "shl"  # integers only
    SHR = "shr"


class CompareOp(enum.Enum):
    """Comparisons; the result is bool. ``ne`` is true for NaN, all others are false."""

    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"


class MathOp(enum.Enum):
    """Functions of one float."""

    EXP = "exp"
    SQRT = "sqrt"
    TANH = "tanh"
    FLOOR = "floor"


_FLOAT_ONLY = {BinaryOp.DIV}
_INTEGER_ONLY = {BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.SHL, BinaryOp.SHR}
_BITS_ONLY = {BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR}


class Expr:
    """Base of all expressions; Python operators build larger ones.

    A Python number takes the type of the other side; two expressions must have one type (use `astype`).
    ``==`` compares nodes, not values: use `eq` and `ne` for a comparison inside the kernel.
    """

    __slots__ = ()
    dtype: DType

    def children(self) -> tuple[Expr, ...]:
        """Return the direct operands in order."""
        return ()

    def astype(self, dtype: str | DType) -> Expr:
        """Return this value converted; itself if it has that type already."""
        wanted = as_dtype(dtype)
        return self if self.dtype is wanted else Cast(wanted, self)

    def eq(self, other: Value) -> Expr:
        """Return whether the values are equal, inside the kernel."""
        return compare(CompareOp.EQ, self, other)

    def ne(self, other: Value) -> Expr:
        """Return whether the values differ, inside the kernel."""
        return compare(CompareOp.NE, self, other)

    def __add__(self, other: Value) -> Expr:
        return binary(BinaryOp.ADD, self, other)

    def __radd__(self, other: Scalar) -> Expr:
        return binary(BinaryOp.ADD, other, self)

    def __sub__(self, other: Value) -> Expr:
        return binary(BinaryOp.SUB, self, other)

    def __rsub__(self, other: Scalar) -> Expr:
        return binary(BinaryOp.SUB, other, self)

    def __mul__(self, other: Value) -> Expr:
        return binary(BinaryOp.MUL, self, other)

    def __rmul__(self, other: Scalar) -> Expr:
        return binary(BinaryOp.MUL, other, self)

    def __truediv__(self, other: Value) -> Expr:
        return binary(BinaryOp.DIV, self, other)

    def __rtruediv__(self, other: Scalar) -> Expr:
        return binary(BinaryOp.DIV, other, self)

    def __floordiv__(self, other: Value) -> Expr:
        return binary(BinaryOp.FLOORDIV, self, other)

    def __rfloordiv__(self, other: Scalar) -> Expr:
        return binary(BinaryOp.FLOORDIV, other, self)

    def __mod__(self, other: Value) -> Expr:
        return binary(BinaryOp.FLOORMOD, self, other)

    def __rmod__(self, other: Scalar) -> Expr:
        return binary(BinaryOp.FLOORMOD, other, self)

    def __and__(self, other: Value) -> Expr:
        return binary(BinaryOp.AND, self, other)

    def __or__(self, other: Value) -> Expr:
        return binary(BinaryOp.OR, self, other)

    def __xor__(self, other: Value) -> Expr:
        return binary(BinaryOp.XOR, self, other)

    def __lshift__(self, other: Value) -> Expr:
        return binary(BinaryOp.SHL, self, other)

    def __rlshift__(self, other: Scalar) -> Expr:
        return binary(BinaryOp.SHL, other, self)

    def __rshift__(self, other: Value) -> Expr:
        return binary(BinaryOp.SHR, self, other)

    def __neg__(self) -> Expr:
        if self.dtype.is_float:  # 0 - x would lose the sign of zero
            return binary(BinaryOp.MUL, self, -1.0)
        return binary(BinaryOp.SUB, 0, self)

    def __invert__(self) -> Expr:
        if self.dtype is DType.BOOL:
            return binary(BinaryOp.XOR, self, True)
        return binary(BinaryOp.XOR, self, -1 if self.dtype.is_signed else self.dtype.max)

    def __lt__(self, other: Value) -> Expr:
        return compare(CompareOp.LT, self, other)

    def __le__(self, other: Value) -> Expr:
        return compare(CompareOp.LE, self, other)

    def __gt__(self, other: Value) -> Expr:
        return compare(CompareOp.GT, self, other)

    def __ge__(self, other: Value) -> Expr:
        return compare(CompareOp.GE, self, other)

    def __bool__(self) -> bool:
        raise InvalidFunction(
            "expression: used as a Python truth value; use te.where, & and | instead of if, and, or"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Const(Expr):
    """A constant, representable in its type; equal only to the same bits: NaN equals NaN, 0.0 is not -0.0."""

    value: Scalar
    dtype: DType

    def __post_init__(self) -> None:
        exact = _convert(self.value, self.dtype)
        if type(exact) is not type(self.value) or repr(exact) != repr(self.value):
            raise InvalidFunction(
                f"constant: {self.value!r} is no {self.dtype}; make it with te.const"
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and self._bits() == other._bits()

    def __hash__(self) -> int:
        return hash(self._bits())

    def _bits(self) -> tuple[DType, int | str]:
        return self.dtype, self.value.hex() if isinstance(self.value, float) else self.value


@dataclass(frozen=True, slots=True, eq=False)
class Var(Expr):
    """A loop variable, int64; names are unique in a function."""

    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Var) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        """int64, always."""
        return DType.INT64


@dataclass(frozen=True, slots=True)
class Load(Expr):
    """An element of a buffer."""

    buffer: Buffer
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        """The buffer's element type."""
        return self.buffer.dtype

    def children(self) -> tuple[Expr, ...]:
        """Return the indices."""
        return self.indices


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """An operation on two values of one type, with a result of that type."""

    op: BinaryOp
    a: Expr
    b: Expr
    dtype: DType = field(init=False, repr=False, compare=False)
    """The operands' type; kept, since asking the operands again and again takes as long as the tree is deep."""

    def __post_init__(self) -> None:
        dtype = self.a.dtype
        _check_binary(self.op, dtype, self.b.dtype)
        object.__setattr__(self, "dtype", dtype)

    def children(self) -> tuple[Expr, ...]:
        """Return both operands."""
        return (self.a, self.b)


@dataclass(frozen=True, slots=True)
class Compare(Expr):
    """A comparison of two values of one type."""

    op: CompareOp
    a: Expr
    b: Expr

    def __post_init__(self) -> None:
        _check_same(self.op.value, self.a.dtype, self.b.dtype)

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        """bool, always."""
        return DType.BOOL

    def children(self) -> tuple[Expr, ...]:
        """Return both operands."""
        return (self.a, self.b)


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """``if_true`` where the condition holds, else ``if_false``; only the side taken is evaluated."""

    condition: Expr
    if_true: Expr
    if_false: Expr

    def __post_init__(self) -> None:
        if self.condition.dtype is not DType.BOOL:
            raise InvalidFunction(
                f"where: condition is {self.condition.dtype}; compare something, or .astype('bool')"
            )
        _check_same("where", self.if_true.dtype, self.if_false.dtype)

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        """The type of both sides."""
        return self.if_true.dtype

    def children(self) -> tuple[Expr, ...]:
        """Return the condition and both sides."""
        return (self.condition, self.if_true, self.if_false)


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """A conversion; see the module's docstring for what happens to values that do not fit."""

    dtype: DType
    value: Expr

    def children(self) -> tuple[Expr, ...]:
        """Return the value."""
        return (self.value,)


@dataclass(frozen=True, slots=True)
class Math(Expr):
    """A function of one float."""

    op: MathOp
    value: Expr

    def __post_init__(self) -> None:
        if not self.value.dtype.is_float:
            raise InvalidFunction(
                f"{self.op.value}: of {self.value.dtype}; .astype a float type first"
            )

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        """The operand's type."""
        return self.value.dtype

    def children(self) -> tuple[Expr, ...]:
        """Return the operand."""
        return (self.value,)


def const(value: Scalar, dtype: str | DType) -> Const:
    """Make a constant.

    Raises
    ------
    InvalidFunction
        The value cannot be represented: a fraction or out of range for an integer, a number for bool, a finite one
        that a float type would turn into infinity.
    """
    kind = as_dtype(dtype)
    return Const(_convert(value, kind), kind)


def _convert(value: Scalar, dtype: DType) -> Scalar:
    try:
        if dtype.is_float:
            exact: Scalar = round_float(float(value), dtype)
            fits = not math.isinf(exact) or math.isinf(value)
        else:
            exact = bool(value) if dtype is DType.BOOL else int(value)
            fits = exact == value and dtype.min <= exact <= dtype.max
    except (OverflowError, ValueError):  # beyond the largest float; infinity or NaN as an integer
        fits = False
    if not fits:
        known = "a smaller number" if dtype.is_float else f"{dtype.min} to {dtype.max}"
        raise InvalidFunction(
            f"constant: {value!r} is no {dtype}; use {known}, or .astype the other side"
        )
    return exact


def as_expr(value: Value, dtype: DType) -> Expr:
    """Return `value` itself if it is an expression, else a constant of `dtype`."""
    return value if isinstance(value, Expr) else const(value, dtype)


def _pair(a: Value, b: Value) -> tuple[Expr, Expr]:
    if isinstance(a, Expr):
        return a, as_expr(b, a.dtype)
    if isinstance(b, Expr):
        return as_expr(a, b.dtype), b
    raise InvalidFunction(
        f"expression: both sides are Python numbers ({a!r}, {b!r}); compute in Python"
    )


def binary(op: BinaryOp, a: Value, b: Value) -> Expr:
    """Make a binary operation; a Python number takes the type of the other side."""
    return Binary(op, *_pair(a, b))


def compare(op: CompareOp, a: Value, b: Value) -> Expr:
    """Make a comparison; a Python number takes the type of the other side."""
    return Compare(op, *_pair(a, b))


def select(condition: Expr, if_true: Value, if_false: Value) -> Expr:
    """Make a select; a Python number takes the type of the other side."""
    return Select(condition, *_pair(if_true, if_false))


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield `expr` and everything below it, parents first, left to right."""
    pending = [expr]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(node.children()))


def map_children(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Return `expr` with each direct operand replaced by what `change` makes of it; itself if nothing changed."""
    match expr:
        case Var() | Const():
            return expr
        case Binary(op, a, b):
            x, y = change(a), change(b)
            return expr if x is a and y is b else Binary(op, x, y)
        case Load(buffer, indices):
            found = tuple(map(change, indices))
            return expr if all(map(operator.is_, found, indices)) else Load(buffer, found)
        case Compare(compare_op, a, b):
            x, y = change(a), change(b)
            return expr if x is a and y is b else Compare(compare_op, x, y)
        case Select(condition, a, b):
            parts = change(condition), change(a), change(b)
            same = all(map(operator.is_, parts, (condition, a, b)))
            return expr if same else Select(*parts)
        case Cast(dtype, value):
            x = change(value)
            return expr if x is value else Cast(dtype, x)
        case Math(math_op, value):
            x = change(value)
            return expr if x is value else Math(math_op, x)
        case _:
            return expr


def _check_same(what: str, a: DType, b: DType) -> None:
    if a is not b:
        raise InvalidFunction(f"{what}: {a} with {b}; convert one side with .astype('{a}')")


def _check_binary(op: BinaryOp, a: DType, b: DType) -> None:
    _check_same(op.value, a, b)
    allowed = (
        a.is_float
        if op in _FLOAT_ONLY
        else a.is_integer
        if op in _INTEGER_ONLY
        else not a.is_float
        if op in _BITS_ONLY
        else a is not DType.BOOL
    )
    if not allowed:
        hint = {BinaryOp.DIV: "use // or .astype a float type", BinaryOp.SHR: "use integers"}
        raise InvalidFunction(f"{op.value}: not defined for {a}; {hint.get(op, 'use .astype')}")
