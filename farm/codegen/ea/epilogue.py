"""Element-wise code: an int32 expression becomes operations on blocks of rows.

Owns: selection of vector operations and the use of temporaries, for one block of columns.
Does not own: where blocks lie in memory (`tiling`) or when they are loaded (`schedule`).

Invariant: after the operations, the output's rows hold the expression's value for every input, wrap-around included.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from farm import te
from farm.codegen.ea.lift import Layer
from farm.ea.isa import VecOp
from farm.errors import UnsupportedFunction
from farm.ir import Buffer, DType, Role
from farm.ir.affine import Affine, affine, constant
from farm.ir.bounds import Facts, Interval, interval, whole
from farm.ir.expr import Binary, BinaryOp, Cast, Const, Expr, Load
from farm.ir.printer import print_expr

TABLE = 256
"""Entries of a table of `VecOp.LUT8`."""


class Place(enum.Enum):
    """Where the rows of a matrix operand are."""

    OUTPUT = "output"  # the product before, the result after
    INPUT = "input"
    TEMPORARY = "temporary"


@dataclass(frozen=True, slots=True)
class Matrix:
    """One row for each row of the tile."""

    place: Place
    index: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """One row for all rows of the tile; for `VecOp.RQ`, it and the next (multiplier and shift)."""

    index: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """One constant for all elements."""

    value: int


@dataclass(frozen=True, slots=True)
class ScalarPair:
    """A constant multiplier and shift."""

    multiplier: int
    shift: int


@dataclass(frozen=True, slots=True)
class Table:
    """256 values, one for each byte."""

    index: int


Operand = Matrix | Vector | Scalar | ScalarPair | Table


@dataclass(frozen=True, slots=True)
class Operation:
    """One vector instruction for each block of columns; `first` is None for `VecOp.SPLAT` only."""

    op: VecOp
    to: Matrix
    first: Matrix | Vector | None
    second: Operand | None = None


@dataclass(frozen=True, slots=True)
class Epilogue:
    """All operations of a layer, and what must be on chip for them.

    Attributes
    ----------
    inputs
        Matrices to load, by the index of `Matrix(Place.INPUT, index)`.
    vectors
        Vectors to load, by the index of `Vector`.
    tables
        Tables to load, by the index of `Table`.
    temporaries
        How many blocks of rows the operations need besides.
    """

    operations: tuple[Operation, ...]
    inputs: tuple[Buffer, ...]
    vectors: tuple[Buffer, ...]
    tables: tuple[Buffer, ...]
    temporaries: int


_OPS = {
    BinaryOp.ADD: VecOp.ADD,
    BinaryOp.SUB: VecOp.SUB,
    BinaryOp.MUL: VecOp.MUL,
    BinaryOp.MIN: VecOp.MIN,
    BinaryOp.MAX: VecOp.MAX,
    BinaryOp.AND: VecOp.AND,
    BinaryOp.OR: VecOp.OR,
    BinaryOp.SHR: VecOp.SHR,
}
_COMMUTES = {VecOp.ADD, VecOp.MUL, VecOp.MIN, VecOp.MAX, VecOp.AND, VecOp.OR}
_GROWS = {BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.SHL}
_TYPES = (DType.INT8, DType.INT16, DType.INT32)


def compile_epilogue(layer: Layer) -> Epilogue:
    """Choose the operations for a layer's expression.

    Raises
    ------
    UnsupportedFunction
        The expression holds something that the vector engine cannot do; the message shows it.
    """
    selection = _Selection(layer)
    result = selection.value(layer.value)
    selection.finish(result)
    return Epilogue(
        tuple(selection.operations),
        tuple(selection.inputs),
        tuple(selection.vectors),
        tuple(selection.tables),
        selection.most_temporaries,
    )


class _Selection:
    """The operations chosen so far and the temporaries in use."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.operations: list[Operation] = []
        self.inputs: list[Buffer] = []
        self.vectors: list[Buffer] = []
        self.tables: list[Buffer] = []
        self.pairs: dict[tuple[Buffer, Buffer], int] = {}
        self.busy: set[int] = set()
        self.most_temporaries = 0
        self.facts: Facts = {var: Interval(0, extent - 1) for var, extent in layer.extents.items()}
        self.params = [p.buffer for p in layer.function.params if p.role is Role.INPUT]
        self.here = self.place(Load(layer.out, layer.axes))
        self.column = affine(layer.axes[-1], layer.extents)

    def refuse(self, why: str) -> UnsupportedFunction:
        """Make the error that says why the accelerator cannot run this function."""
        return UnsupportedFunction(
            f"function {self.layer.function.name} on ea: {why}; place it on the CPU"
        )

    def value(self, expr: Expr) -> Operand:
        """Compute an expression; its value as int32, whatever narrower type it has."""
        scaled = match_requantize(expr)
        if scaled is not None:
            return self.requantize(*scaled)
        if expr.dtype not in _TYPES:
            raise self.refuse(f"{print_expr(expr)} is {expr.dtype}")
        match expr:
            case Const(value):
                return Scalar(int(value))
            case Load():
                return self.load(expr)
            case Cast(dtype, value) if value.dtype in _TYPES:
                inner = self.value(value)
                fits = interval(value, self.facts).within(whole(dtype))
                return inner if fits else self.wrap(inner, dtype)
            case Binary(op, a, b):
                result = self.binary(op, self.value(a), self.value(b), expr)
                return self.wrap(result, expr.dtype) if op in _GROWS else result
            case _:
                raise self.refuse(f"its vector engine has no {print_expr(expr)}")

    def place(self, load: Load) -> Affine | None:
        """Return which element a load reads, counted in its buffer; None if that is no sum of loop variables."""
        total: Affine | None = constant(0)
        for index, size in zip(load.indices, load.buffer.shape, strict=True):
            form = affine(index, self.layer.extents)
            total = None if form is None or total is None else total.scaled(size) + form
        return total

    def load(self, load: Load) -> Operand:
        """Name the rows that an element comes from."""
        buffer, place = load.buffer, self.place(load)
        reduction = self.layer.reduction
        if reduction is not None and buffer == reduction.result:
            if place == self.here:
                return Matrix(Place.OUTPUT)
        elif buffer in self.params and buffer.dtype in (DType.INT8, DType.INT32):
            if place == self.here:
                return Matrix(Place.INPUT, _index(self.inputs, buffer))
            if place is not None and place == self.column:
                return Vector(_index(self.vectors, buffer))
            if place is None and buffer.shape == (TABLE,):
                return self.lookup(load)
        raise self.refuse(f"it reads {print_expr(load)}, neither [row, column] nor [column]")

    def lookup(self, load: Load) -> Operand:
        """Take an entry of a table, by a number of 0 to 255."""
        match load.indices[0]:
            case Cast(DType.INT64, value):
                more = 0
            case Binary(BinaryOp.ADD, Cast(DType.INT64, value), Const(int() as more)):
                pass
            case _:
                raise self.refuse(f"it reads {print_expr(load)} at what is no number of 32 bits")
        reach = interval(value, self.facts)
        if not Interval(reach.low + more, reach.high + more).within(Interval(0, TABLE - 1)):
            raise self.refuse(f"it reads {print_expr(load)}, maybe beyond {TABLE} entries")
        number = self.matrix(self.value(value))
        if more:
            number = self.emit(VecOp.ADD, number, Scalar(more))
        return self.emit(VecOp.LUT8, number, Table(_index(self.tables, load.buffer)))

    def requantize(self, value: Expr, multiplier: Expr, shift: Expr) -> Operand:
        """Rescale, with vectors or constants for multiplier and shift."""
        first = self.matrix(self.value(value))
        match multiplier, shift:
            case Const(m), Const(s):
                return self.emit(VecOp.RQ, first, ScalarPair(int(m), int(s)))
            case (Load(m_from), Load(s_from)) if self.place(multiplier) == self.place(
                shift
            ) == self.column and {m_from, s_from} <= {*self.params}:
                if (m_from, s_from) not in self.pairs:
                    self.pairs[m_from, s_from] = len(self.vectors)
                    self.vectors += [m_from, s_from]
                return self.emit(VecOp.RQ, first, Vector(self.pairs[m_from, s_from]))
            case _:
                raise self.refuse(
                    "multiplier and shift are neither two vectors [column] nor constants"
                )

    def binary(self, op: BinaryOp, a: Operand, b: Operand, expr: Expr) -> Operand:
        """Apply an operation that has an instruction, or a sequence of such."""
        match op, b:
            case BinaryOp.SHL, Scalar(amount):
                factor = _signed(1 << (amount & (expr.dtype.bits - 1)))
                return self.emit(VecOp.MUL, self.matrix(a), Scalar(factor))
            case BinaryOp.SHR, Scalar(amount):
                return self.emit(VecOp.SHR, self.matrix(a), Scalar(amount & (expr.dtype.bits - 1)))
            case BinaryOp.FLOORDIV, Scalar(divisor) if divisor > 0 and not divisor & (divisor - 1):
                return self.emit(VecOp.SHR, self.matrix(a), Scalar(divisor.bit_length() - 1))
            case BinaryOp.FLOORMOD, Scalar(divisor) if divisor > 0 and not divisor & (divisor - 1):
                return self.emit(VecOp.AND, self.matrix(a), Scalar(divisor - 1))
            case BinaryOp.XOR, _:  # a ^ b = (a | b) - (a & b)
                first, second = self.matrix(a), self.matrix(b)
                either = self.emit(VecOp.OR, first, second, keep=True)
                both = self.emit(VecOp.AND, first, second)
                return self.emit(VecOp.SUB, either, both)
            case _ if op in _OPS and not (op is BinaryOp.SHR and expr.dtype is not DType.INT32):
                return self.instruction(_OPS[op], a, b)
            case _:
                raise self.refuse(f"its vector engine has no {print_expr(expr)}")

    def instruction(self, op: VecOp, a: Operand, b: Operand) -> Operand:
        """Apply one instruction, whose first operand must be a matrix."""
        if not isinstance(a, Matrix) and isinstance(b, Matrix):
            if op in _COMMUTES:
                a, b = b, a
            elif op is VecOp.SUB and isinstance(a, Scalar):  # c - x = x * -1 + c
                negated = self.emit(VecOp.MUL, b, Scalar(-1))
                return self.emit(VecOp.ADD, negated, a)
        return self.emit(op, self.matrix(a), b)

    def wrap(self, operand: Operand, dtype: DType) -> Operand:
        """Keep the low bits of a value, with their sign."""
        unused = 32 - dtype.bits
        if not unused:
            return operand
        shifted = self.emit(VecOp.MUL, self.matrix(operand), Scalar(_signed(1 << unused)))
        return self.emit(VecOp.SHR, shifted, Scalar(unused))

    def matrix(self, operand: Operand) -> Matrix:
        """Return an operand as a matrix, spreading vectors and constants over a temporary."""
        match operand:
            case Matrix():
                return operand
            case Vector():
                return self.emit(VecOp.MOV, operand)
            case _:
                return self.emit(VecOp.SPLAT, None, operand)

    def emit(
        self,
        op: VecOp,
        first: Matrix | Vector | None,
        second: Operand | None = None,
        *,
        keep: bool = False,
    ) -> Matrix:
        """Append an operation and return its result; its operands are used up unless kept."""
        if not keep:
            for operand in (first, second):
                if isinstance(operand, Matrix) and operand.place is Place.TEMPORARY:
                    self.busy.discard(operand.index)
        free = next(index for index in range(len(self.busy) + 1) if index not in self.busy)
        self.busy.add(free)
        self.most_temporaries = max(self.most_temporaries, free + 1)
        result = Matrix(Place.TEMPORARY, free)
        self.operations.append(Operation(op, result, first, second))
        return result

    def finish(self, result: Operand) -> None:
        """Bring the result to the output's rows."""
        output = Matrix(Place.OUTPUT)
        if result == output:
            return
        made = self.matrix(result)
        if made.place is Place.TEMPORARY:  # made by the last operation: let that write the output
            self.operations[-1] = replace(self.operations[-1], to=output)
        else:
            self.operations.append(Operation(VecOp.MOV, output, made))


def match_requantize(expr: Expr) -> tuple[Expr, Expr, Expr] | None:
    """Return value, multiplier and shift if `expr` is what `te.requantize` makes of them."""
    match expr:
        case Cast(
            DType.INT32,
            Binary(
                BinaryOp.MIN,
                Binary(
                    BinaryOp.MAX,
                    Binary(
                        BinaryOp.SHR,
                        Binary(
                            BinaryOp.ADD,
                            Binary(BinaryOp.MUL, Cast(_, value), Cast(_, multiplier)),
                            _,
                        ),
                        Cast(_, shift),
                    ),
                    _,
                ),
                _,
            ),
        ) if value.dtype is multiplier.dtype is shift.dtype is DType.INT32:
            if te.requantize(value, multiplier, shift) == expr:
                return value, multiplier, shift
    return None


def _index(buffers: list[Buffer], buffer: Buffer) -> int:
    if buffer not in buffers:
        buffers.append(buffer)
    return buffers.index(buffer)


def _signed(value: int) -> int:
    """Return the int32 with the low 32 bits of `value`."""
    return value - (1 << 32) if value >> 31 & 1 else value
