"""Writing LLVM IR as if it were Python: integers with operators, loops and branches as blocks.

Owns a thin layer over llvmlite's IRBuilder for code that computes with 64-bit integers. Does not own
what is written with it (`checking`, `computing` and `scheduling` in this package).

Invariant: every `Int` is an i64, every `Flag` an i1; memory cells are sign-extended when read and
truncated when written. Comparisons, division and right shifts are signed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))


@dataclass(frozen=True, eq=False)
class Flag:
    """A condition."""

    code: Code
    raw: ir.Value

    def __and__(self, other: Flag) -> Flag:
        return Flag(self.code, self.code.builder.and_(self.raw, other.raw))

    def __or__(self, other: Flag) -> Flag:
        return Flag(self.code, self.code.builder.or_(self.raw, other.raw))

    def __invert__(self) -> Flag:
        return Flag(self.code, self.code.builder.not_(self.raw))

    def choose(self, yes: Operand, no: Operand) -> Int:
        """Return one of two numbers, both of which are computed."""
        a, b = self.code.number(yes), self.code.number(no)
        return Int(self.code, self.code.builder.select(self.raw, a.raw, b.raw))


@dataclass(frozen=True, eq=False)
class Int:
    """A number that compiled code computes."""

    code: Code
    raw: ir.Value

    def __add__(self, other: Operand) -> Int:
        return Int(self.code, self.code.builder.add(self.raw, self.code.number(other).raw))

    def __sub__(self, other: Operand) -> Int:
        return Int(self.code, self.code.builder.sub(self.raw, self.code.number(other).raw))

    def __mul__(self, other: Operand) -> Int:
        return Int(self.code, self.code.builder.mul(self.raw, self.code.number(other).raw))

    def __floordiv__(self, other: Operand) -> Int:
        """Divide; for numbers that are not negative."""
        return Int(self.code, self.code.builder.sdiv(self.raw, self.code.number(other).raw))

    def __mod__(self, other: Operand) -> Int:
        """Return the rest; for numbers that are not negative."""
        return Int(self.code, self.code.builder.srem(self.raw, self.code.number(other).raw))

    def __and__(self, other: Operand) -> Int:
        return Int(self.code, self.code.builder.and_(self.raw, self.code.number(other).raw))

    def __lt__(self, other: Operand) -> Flag:
        return self._compare("<", other)

    def __le__(self, other: Operand) -> Flag:
        return self._compare("<=", other)

    def __gt__(self, other: Operand) -> Flag:
        return self._compare(">", other)

    def __ge__(self, other: Operand) -> Flag:
        return self._compare(">=", other)

    def equals(self, other: Operand) -> Flag:
        """Compare; ``==`` keeps its Python meaning."""
        return self._compare("==", other)

    def differs(self, other: Operand) -> Flag:
        """Compare; ``!=`` keeps its Python meaning."""
        return self._compare("!=", other)

    def ceil_div(self, other: Operand) -> Int:
        """Divide and round up; for numbers that are not negative."""
        divisor = self.code.number(other)
        return (self + divisor - 1) // divisor

    def _compare(self, operator: str, other: Operand) -> Flag:
        value = self.code.number(other).raw
        return Flag(self.code, self.code.builder.icmp_signed(operator, self.raw, value))


Operand = Int | int


@dataclass(frozen=True, eq=False)
class Memory:
    """Cells of one integer type that start at an address."""

    code: Code
    raw: ir.Value
    cell: ir.Type

    def at(self, index: Operand) -> Memory:
        """Return the memory from a cell on."""
        number = self.code.number(index).raw
        return Memory(self.code, self.code.builder.gep(self.raw, [number]), self.cell)

    def __getitem__(self, index: Operand) -> Int:
        value = self.code.builder.load(self.at(index).raw)
        if self.cell != I64:
            value = self.code.builder.sext(value, I64)
        return Int(self.code, value)

    def __setitem__(self, index: Operand, value: Operand) -> None:
        raw = self.code.number(value).raw
        if self.cell != I64:
            raw = self.code.builder.trunc(raw, self.cell)
        self.code.builder.store(raw, self.at(index).raw)

    def vector(self, index: Operand, lanes: int) -> ir.Value:
        """Load `lanes` cells from `index` on as a vector."""
        return self.code.builder.load(self._vector_at(index, lanes), align=self._align)

    def set_vector(self, index: Operand, value: ir.Value) -> None:
        """Store a vector of cells from `index` on."""
        lanes = value.type.count
        self.code.builder.store(value, self._vector_at(index, lanes), align=self._align)

    def _vector_at(self, index: Operand, lanes: int) -> ir.Value:
        kind = ir.VectorType(self.cell, lanes).as_pointer()
        return self.code.builder.bitcast(self.at(index).raw, kind)

    @property
    def _align(self) -> int:
        return int(self.cell.width) // 8


class Variable:
    """A number that may change."""

    def __init__(self, code: Code, start: Operand) -> None:
        self._code = code
        with code.builder.goto_entry_block():
            self._place = code.builder.alloca(I64)
        self.set(start)

    def get(self) -> Int:
        """Return its value now."""
        return Int(self._code, self._code.builder.load(self._place))

    def set(self, value: Operand) -> None:
        """Change it."""
        self._code.builder.store(self._code.number(value).raw, self._place)

    def add(self, value: Operand) -> None:
        """Add to it."""
        self.set(self.get() + value)

    def raise_to(self, value: Operand) -> None:
        """Make it the greater of itself and `value`."""
        new = self._code.number(value)
        self.set((new > self.get()).choose(new, self.get()))


class Code:
    """A function being written.

    Parameters
    ----------
    function
        Its blocks are appended here, from an entry block on.
    """

    def __init__(self, function: ir.Function) -> None:
        self.function = function
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))

    def number(self, value: Operand) -> Int:
        """Return a number as compiled code's."""
        return value if isinstance(value, Int) else Int(self, ir.Constant(I64, value))

    def flag(self, value: Flag | bool) -> Flag:
        """Return a condition as compiled code's."""
        return value if isinstance(value, Flag) else Flag(self, ir.Constant(I1, int(value)))

    def memory(self, pointer: ir.Value) -> Memory:
        """Return the cells that a pointer points to."""
        return Memory(self, pointer, pointer.type.pointee)

    def maximum(self, a: Operand, b: Operand) -> Int:
        """Return the greater of two numbers."""
        first, second = self.number(a), self.number(b)
        return (first > second).choose(first, second)

    @contextmanager
    def when(self, condition: Flag, *, likely: bool | None = None) -> Iterator[None]:
        """Run a block if a condition holds."""
        with self.builder.if_then(condition.raw, likely=likely):
            yield

    @contextmanager
    def repeat(self, count: Operand, step: int = 1) -> Iterator[Int]:
        """Run a block with 0, `step`, 2 * `step` .. below `count`; not at all for count <= 0."""
        start = self.builder.block
        head = self.builder.append_basic_block("head")
        body = self.builder.append_basic_block("body")
        after = self.builder.append_basic_block("after")
        limit = self.number(count)
        self.builder.branch(head)
        self.builder.position_at_end(head)
        index = self.builder.phi(I64)
        index.add_incoming(ir.Constant(I64, 0), start)
        here = Int(self, index)
        self.builder.cbranch((here < limit).raw, body, after)
        self.builder.position_at_end(body)
        yield here
        index.add_incoming((here + step).raw, self.builder.block)
        self.builder.branch(head)
        self.builder.position_at_end(after)

    @contextmanager
    def forever(self) -> Iterator[ir.Block]:
        """Run a block again and again; leave it through the block it gives, or by returning."""
        body = self.builder.append_basic_block("again")
        after = self.builder.append_basic_block("after")
        self.builder.branch(body)
        self.builder.position_at_end(body)
        yield after
        if not self.builder.block.is_terminated:
            self.builder.branch(body)
        self.builder.position_at_end(after)

    @contextmanager
    def switch(self, value: Int) -> Iterator[Switch]:
        """Branch on a value; a value without a case does nothing."""
        after = self.builder.append_basic_block("joined")
        yield Switch(self, self.builder.switch(value.raw, after), after)
        self.builder.position_at_end(after)

    def leave(self, value: Operand) -> None:
        """Return from the function."""
        self.builder.ret(self.number(value).raw)


@dataclass(frozen=True, eq=False)
class Switch:
    """A branch on a value."""

    code: Code
    instruction: ir.SwitchInstr
    after: ir.Block

    @contextmanager
    def case(self, *keys: int) -> Iterator[None]:
        """Write what happens for some values."""
        builder = self.code.builder
        block = builder.append_basic_block(f"case{keys[0]}")
        for key in keys:
            self.instruction.add_case(ir.Constant(I64, key), block)
        builder.position_at_end(block)
        yield
        if not builder.block.is_terminated:
            builder.branch(self.after)
