"""Compiled code that carries out a checked program's effects on data.

Owns the machine's arithmetic in compiled form, for one configuration: rows are vectors of `dim`
lanes. Does not own checks (`farm.runtime.ea.checking`), which must have passed, or time.

Invariant: results are those of `farm.ea.execute`, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from farm.ea import table
from farm.ea.config import MachineConfig
from farm.ea.isa import Gemm, Load, SetB, Source, Space, Store, Transfer, Vec, VecOp
from farm.runtime.ea.emit import I8, I32, I64, Code, Int, Memory
from farm.runtime.ea.matmul import MatmulKernel
from farm.runtime.ea.shared import OPCODES, Row, define, row_at

COMPUTE = "farm_ea_compute"
"""``int64_t (table, windows, spad, acc, registers, scratch, instructions)`` -> 0."""


def emit_compute(module: ir.Module, config: MachineConfig) -> None:
    """Add the function `COMPUTE` to a module."""
    kernel = MatmulKernel(module, config)
    cells = (I32, I8.as_pointer(), I8, I32, I32, I8)
    code, (rows, windows, spad, acc, registers, scratch), count = define(module, COMPUTE, *cells)
    vector = _Vectors(code, config, spad, acc, registers)
    with code.repeat(count) as pc:
        row = row_at(rows, pc)
        with code.switch(row.column(table.OPCODE)) as switch:
            for kind in (Load, Store):
                with switch.case(OPCODES[kind]):
                    _Dma(code, config, (spad, acc), windows, row, kind).emit()
            with switch.case(OPCODES[Gemm]):
                kernel.call(code, row, spad, acc, scratch)
            with switch.case(OPCODES[Vec]):
                vector.emit(row)
            with switch.case(OPCODES[SetB]):
                registers[row.field(SetB, "reg")] = row.field(SetB, "value")
    code.leave(0)


@dataclass(frozen=True)
class _Dma:
    """One LD or ST: a loop over blocks and rows, whole blocks as vectors, the last by lanes."""

    code: Code
    config: MachineConfig
    memories: tuple[Memory, Memory]
    windows: Memory
    row: Row
    kind: type[Load | Store]

    def _field(self, name: str) -> Int:
        return self.row.field(self.kind, name)

    def emit(self) -> None:
        """Emit the transfer for each of its kinds."""
        with self.code.switch(self._field("space")) as switch:
            for transfer in Transfer:
                if self.kind is Store and transfer is Transfer.ACC_I8:
                    continue
                with switch.case(transfer):
                    self._emit(transfer)

    def _emit(self, transfer: Transfer) -> None:
        if self.kind is Load:
            fill = self.row.flag(Load, "fill")
            with self.code.when(fill):
                self._rows(transfer, I8, self._fill)
            with self.code.when(~fill):
                self._rows(transfer, I32 if transfer is Transfer.ACC_I32 else I8, self._read)
        elif transfer is Transfer.SPAD_I8:
            self._rows(transfer, I8, self._write)
        else:
            saturate = self.row.flag(Store, "saturate")
            with self.code.when(saturate):
                self._rows(transfer, I8, self._write)
            with self.code.when(~saturate):
                self._rows(transfer, I32, self._write)

    def _rows(
        self, transfer: Transfer, element: ir.Type, move: Callable[[Memory, Memory, Int], None]
    ) -> None:
        """Visit each row of each block with both its places and its number of columns."""
        code, dim = self.code, self.config.dim
        memory, cols = self.memories[transfer.space], self._field("cols")
        address = code.builder.load(self.windows.at(self._field("arg")).raw)
        window = Memory(code, address, I8).at(self._field("offset"))
        width = int(element.width) // 8
        with code.repeat(cols.ceil_div(dim)) as block:
            first = self._field("row") + block * self._field("lstride")
            used = _minimum(cols - block * dim, dim)
            with code.repeat(self._field("rows")) as run:
                place = window.at(run * self._field("dstride") + block * (dim * width))
                pointer = code.builder.bitcast(place.raw, element.as_pointer())
                on_chip = memory.at((first + run) * dim)
                move(on_chip, Memory(code, pointer, element), used)

    def _fill(self, on_chip: Memory, _window: Memory, _used: Int) -> None:
        zero = ir.Constant(ir.VectorType(on_chip.cell, self.config.dim), None)
        on_chip.set_vector(0, zero)

    def _read(self, on_chip: Memory, window: Memory, used: Int) -> None:
        code, dim = self.code, self.config.dim
        whole = used.equals(dim)
        with code.when(whole):
            on_chip.set_vector(0, _converted(code, window.vector(0, dim), on_chip.cell))
        with code.when(~whole):
            self._fill(on_chip, window, used)
            with code.repeat(used) as lane:
                on_chip[lane] = window[lane]

    def _write(self, on_chip: Memory, window: Memory, used: Int) -> None:
        code, dim = self.code, self.config.dim
        whole = used.equals(dim)
        with code.when(whole):
            window.set_vector(0, _converted(code, on_chip.vector(0, dim), window.cell))
        with code.when(~whole), code.repeat(used) as lane:
            value = on_chip[lane]
            window[lane] = _clamped(value) if window.cell == I8 else value


class _Vectors:
    """VEC: one loop over rows for each operation."""

    def __init__(
        self, code: Code, config: MachineConfig, spad: Memory, acc: Memory, registers: Memory
    ) -> None:
        self._code = code
        self._config = config
        self._spad = spad
        self._acc = acc
        self._registers = registers
        self._rows = ir.VectorType(I32, config.dim)

    def emit(self, row: Row) -> None:
        """Emit one instruction of any operation."""
        with self._code.switch(row.field(Vec, "op")) as switch:
            for op in VecOp:
                with switch.case(op):
                    self._loop(row, op)

    def _loop(self, row: Row, op: VecOp) -> None:
        code = self._code
        with code.repeat(row.field(Vec, "rows")) as number:
            source_row = row.field(Vec, "s1") + number * row.field(Vec, "sinc")
            s1 = self._load(row.field(Vec, "s1sp"), source_row)
            result = self._result(row, op, s1, number)
            target = row.field(Vec, "dst") + number * row.field(Vec, "dinc")
            self._store(row.field(Vec, "dsp"), target, result)

    def _load(self, space: Int, index: Int) -> ir.Value:
        code, dim = self._code, self._config.dim
        in_acc = space.equals(Space.ACC)
        with code.builder.if_else(in_acc.raw) as (yes, no):
            with yes:
                wide = self._acc.vector(index * dim, dim)
                acc_block = code.builder.block
            with no:
                narrow = code.builder.sext(self._spad.vector(index * dim, dim), self._rows)
                spad_block = code.builder.block
        result = code.builder.phi(self._rows)
        result.add_incoming(wide, acc_block)
        result.add_incoming(narrow, spad_block)
        return result

    def _store(self, space: Int, index: Int, value: ir.Value) -> None:
        code, dim = self._code, self._config.dim
        with code.when(space.equals(Space.ACC)):
            self._acc.set_vector(index * dim, value)
        with code.when(space.equals(Space.SPAD)):
            self._spad.set_vector(index * dim, _converted(code, value, I8))

    def _second(self, row: Row, number: Int, which: int = 0, width: int = 1) -> ir.Value:
        """Return operand 2, or one of its pair, as a row."""
        code, dim = self._code, self._config.dim
        source, s2 = row.field(Vec, "source"), row.field(Vec, "s2")
        with code.builder.goto_entry_block():
            cell = code.builder.alloca(self._rows)
        with code.switch(source) as switch:
            with switch.case(Source.ROW):
                index = s2 + number * row.field(Vec, "s2inc") * width + which
                code.builder.store(self._acc.vector(index * dim, dim), cell)
            if width == 1:
                with switch.case(Source.IMM):
                    code.builder.store(self._splat(row.field(Vec, "imm")), cell)
            with switch.case(Source.REG):
                code.builder.store(self._splat(self._registers[s2 + which]), cell)
        return code.builder.load(cell)

    def _splat(self, value: Int) -> ir.Value:
        return splat(self._code, self._code.builder.trunc(value.raw, I32), self._config.dim)

    def _result(self, row: Row, op: VecOp, s1: ir.Value, number: Int) -> ir.Value:
        builder = self._code.builder
        if op is VecOp.MOV:
            return s1
        if op is VecOp.WIDEN:
            return builder.and_(s1, _constant(self._rows, 255))
        if op in (VecOp.RSUM, VecOp.RMAX):
            return self._reduced(op, s1)
        if op is VecOp.LUT8:
            return self._looked_up(row, s1)
        if op in (VecOp.CLAMP, VecOp.RQ):
            first = self._second(row, number, 0, 2)
            second = self._second(row, number, 1, 2)
            if op is VecOp.CLAMP:
                return _least(builder, _greatest(builder, s1, first), second)
            return self._rescaled(row, s1, first, second)
        second = self._second(row, number)
        simple: dict[VecOp, Callable[[], ir.Value]] = {
            VecOp.SPLAT: lambda: second,
            VecOp.ADD: lambda: builder.add(s1, second),
            VecOp.SUB: lambda: builder.sub(s1, second),
            VecOp.MUL: lambda: builder.mul(s1, second),
            VecOp.MIN: lambda: _least(builder, s1, second),
            VecOp.MAX: lambda: _greatest(builder, s1, second),
            VecOp.SHR: lambda: builder.ashr(s1, builder.and_(second, _constant(self._rows, 31))),
            VecOp.AND: lambda: builder.and_(s1, second),
            VecOp.OR: lambda: builder.or_(s1, second),
        }
        return simple[op]()

    def _reduced(self, op: VecOp, s1: ir.Value) -> ir.Value:
        """Fold halves onto each other until one lane is left."""
        builder, lanes, value = self._code.builder, self._config.dim, s1
        while lanes > 1:
            lanes //= 2
            low, high = (
                builder.shuffle_vector(value, value, _indices(range(start, start + lanes)))
                for start in (0, lanes)
            )
            value = builder.add(low, high) if op is VecOp.RSUM else _greatest(builder, low, high)
        scalar = builder.extract_element(value, ir.Constant(I32, 0))
        return splat(self._code, scalar, self._config.dim)

    def _looked_up(self, row: Row, s1: ir.Value) -> ir.Value:
        code, builder = self._code, self._code.builder
        entries = self._acc.at(row.field(Vec, "s2") * self._config.dim)
        result = ir.Constant(self._rows, ir.Undefined)
        for lane in range(self._config.dim):
            index = builder.extract_element(s1, ir.Constant(I32, lane))
            number = Int(code, builder.zext(builder.and_(index, ir.Constant(I32, 255)), I64))
            entry = builder.load(entries.at(number).raw)
            result = builder.insert_element(result, entry, ir.Constant(I32, lane))
        return result

    def _rescaled(self, row: Row, s1: ir.Value, multiplier: ir.Value, shift: ir.Value) -> ir.Value:
        builder, wide = self._code.builder, ir.VectorType(I64, self._config.dim)
        zero, one = _constant(wide, 0), _constant(wide, 1)
        amount = builder.and_(builder.zext(shift, wide), _constant(wide, 63))
        some = builder.icmp_signed(">", amount, zero)
        less = builder.select(some, builder.sub(amount, one), zero)
        half = builder.select(some, builder.shl(one, less), zero)
        product = builder.mul(builder.sext(s1, wide), builder.sext(multiplier, wide))
        scaled = builder.ashr(builder.add(product, half), amount)
        low, high = _constant(wide, -(1 << 31)), _constant(wide, (1 << 31) - 1)
        limited = _least(builder, _greatest(builder, scaled, low), high)
        return builder.add(builder.trunc(limited, self._rows), self._splat(row.field(Vec, "imm")))


def splat(code: Code, scalar: ir.Value, lanes: int) -> ir.Value:
    """Return a vector with the same scalar in each lane."""
    kind = ir.VectorType(scalar.type, lanes)
    undefined = ir.Constant(kind, ir.Undefined)
    first = code.builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return code.builder.shuffle_vector(first, undefined, _indices([0] * lanes))


def _indices(numbers: range | list[int]) -> ir.Constant:
    values = list(numbers)
    return ir.Constant(ir.VectorType(I32, len(values)), values)


def _constant(kind: ir.VectorType, value: int) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count)


def _least(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_signed("<", a, b), a, b)


def _greatest(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.icmp_signed(">", a, b), a, b)


def _converted(code: Code, value: ir.Value, cell: ir.Type) -> ir.Value:
    """Return a vector with other cells: wider by sign, narrower saturated."""
    builder, source = code.builder, value.type
    target = ir.VectorType(cell, source.count)
    if source.element == cell:
        return value
    if cell.width > source.element.width:
        return builder.sext(value, target)
    low, high = _constant(source, -128), _constant(source, 127)
    return builder.trunc(_least(builder, _greatest(builder, value, low), high), target)


def _clamped(value: Int) -> Int:
    high = (value < 127).choose(value, 127)
    return (high > -128).choose(high, -128)


def _minimum(a: Int, b: int) -> Int:
    return (a < b).choose(a, b)
