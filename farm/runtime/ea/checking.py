"""Compiled code that finds a program's first fault, in stream order and without data.

Owns the machine's dynamic rules in compiled form. What a fault is said to be in words comes from the
plain rules (`farm.ea.checks`, `farm.ea.emulator`), which the tests hold this against.

Invariant: an instruction that passes touches only rows and bytes that exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llvmlite import ir

from farm.ea import table
from farm.ea.config import MachineConfig
from farm.ea.faults import Fault
from farm.ea.isa import (
    LAYOUT_OF_KIND,
    MAX_SEMAPHORES,
    NO_SEMAPHORE,
    PAIRED,
    REGISTERS,
    UNARY,
    Fence,
    Gemm,
    Halt,
    Instruction,
    Load,
    Source,
    Space,
    Store,
    Transfer,
    Vec,
    VecOp,
)
from farm.runtime.ea.emit import I8, I32, I64, Code, Flag, Int, Memory, Operand, Variable
from farm.runtime.ea.shared import OPCODES, Control, Row, define, fault_code, row_at

CHECK = "farm_ea_check"
"""``int64_t (table, lengths, written_spad, written_acc, control, instructions)`` -> fault or 0."""


@dataclass(frozen=True)
class Access:
    """Rows that an instruction touches, as in `farm.ea.access.RowAccess`; none if `outer` is 0."""

    in_acc: Flag | bool
    write: bool
    base: Operand
    inner: Operand
    inner_stride: Operand = 1
    outer: Operand = 1
    outer_stride: Operand = 0


@dataclass(frozen=True)
class Dram:
    """Bytes up to `end` of an argument, if any are `moved`."""

    arg: Int
    end: Int
    moved: Flag | None = None


def emit_check(module: ir.Module, config: MachineConfig) -> None:
    """Add the function `CHECK` to a module."""
    touch = {write: _emit_touch(module, write=write) for write in (False, True)}
    code, (rows, lengths, spad, acc, control), count = define(module, CHECK, I32, I64, I8, I8, I64)
    _Check(code, config, rows, lengths, (spad, acc), control, touch).emit(count)


class _Check:
    def __init__(
        self,
        code: Code,
        config: MachineConfig,
        rows: Memory,
        lengths: Memory,
        written: tuple[Memory, Memory],
        control: Memory,
        touch: Mapping[bool, ir.Function],
    ) -> None:
        self._code = code
        self._config = config
        self._rows = rows
        self._lengths = lengths
        self._written = written
        self._control = control
        self._touch = touch
        self._pc, self._executed, self._fuel = (Variable(code, 0) for _ in range(3))
        self._semaphores = _Semaphores(code)

    def emit(self, count: Int) -> None:
        code = self._code
        with code.repeat(count) as pc:
            self._pc.set(pc)
            row = row_at(self._rows, pc)
            with code.switch(row.column(table.OPCODE)) as switch:
                for kind, opcode in OPCODES.items():
                    with switch.case(opcode):
                        self._instruction(kind, row)
        self._pc.set(count)
        self._fail(Fault.NO_HALT)

    def _fail(self, fault: Fault | None) -> None:
        self._control[Control.FAULT_PC] = self._pc.get()
        self._control[Control.FUEL_USED] = self._fuel.get()
        self._control[Control.EXECUTED] = self._executed.get()
        self._code.leave(0 if fault is None else fault_code(fault))

    def _require(self, condition: Flag, fault: Fault) -> None:
        with self._code.when(~condition, likely=False):
            self._fail(fault)

    def _instruction(self, kind: type[Instruction], row: Row) -> None:
        dram: Dram | None = None
        accesses: tuple[Access, ...] = ()
        if kind is Load:
            accesses, dram = self._load(row)
        elif kind is Store:
            accesses, dram = self._store(row)
        elif kind is Gemm:
            accesses = self._gemm(row)
        elif kind is Vec:
            accesses = self._vec(row)
        elif kind in (Fence, Halt):
            for index in (table.WAIT0, table.WAIT1, table.POST0, table.POST1):
                self._require(row.column(index).equals(NO_SEMAPHORE), Fault.BAD_FIELD)
        self._bounds(accesses, dram)
        self._burn(accesses)
        self._tokens(row, (table.WAIT0, table.WAIT1), self._semaphores.consumer, -1)
        self._touch_rows(accesses)
        self._executed.set(self._pc.get() + 1)
        self._tokens(row, (table.POST0, table.POST1), self._semaphores.producer, 1)
        if kind is Halt:
            self._fail(None)

    def _at_least_one(self, *counts: Int) -> None:
        for count in counts:
            self._require(count >= 1, Fault.BAD_FIELD)

    def _dma_rows(self, row: Row, kind: type[Load | Store]) -> Access:
        rows, cols = row.field(kind, "rows"), row.field(kind, "cols")
        self._at_least_one(rows, cols)
        return Access(
            row.field(kind, "space").differs(Transfer.SPAD_I8),
            kind is Load,
            row.field(kind, "row"),
            rows,
            outer=cols.ceil_div(self._config.dim),
            outer_stride=row.field(kind, "lstride"),
        )

    def _moved(self, row: Row, kind: type[Load | Store], element: Int) -> Dram:
        rows, cols = row.field(kind, "rows"), row.field(kind, "cols")
        offset, stride = row.field(kind, "offset"), row.field(kind, "dstride")
        inner_stride = (rows > 1).choose(stride, 0)
        aligned = ((offset & 3).equals(0) & (inner_stride & 3).equals(0)) | element.equals(1)
        self._require(aligned, Fault.MISALIGNED)
        return Dram(row.field(kind, "arg"), offset + (rows - 1) * stride + cols * element)

    def _load(self, row: Row) -> tuple[tuple[Access], Dram]:
        access, space = self._dma_rows(row, Load), row.field(Load, "space")
        blocks = self._code.number(access.outer)
        apart = (blocks <= 1) | (row.field(Load, "lstride") >= row.field(Load, "rows"))
        self._require(apart, Fault.BAD_FIELD)
        fill = row.flag(Load, "fill")
        nothing = space.differs(Transfer.ACC_I8)
        for name in ("arg", "offset", "dstride"):
            nothing = nothing & row.field(Load, name).equals(0)
        self._require(~fill | nothing, Fault.BAD_FIELD)
        dram = self._moved(row, Load, space.equals(Transfer.ACC_I32).choose(4, 1))
        return (access,), Dram(dram.arg, dram.end, ~fill)

    def _store(self, row: Row) -> tuple[tuple[Access], Dram]:
        access, space = self._dma_rows(row, Store), row.field(Store, "space")
        saturate, wide = row.flag(Store, "saturate"), space.equals(Transfer.ACC_I32)
        self._require(space.differs(Transfer.ACC_I8) & (~saturate | wide), Fault.BAD_FIELD)
        element = (wide & ~saturate).choose(4, 1)
        row_bytes = row.field(Store, "cols") * element
        apart = (row.field(Store, "rows") <= 1) | (row.field(Store, "dstride") >= row_bytes)
        self._require(apart, Fault.BAD_FIELD)
        return (access,), self._moved(row, Store, element)

    def _gemm(self, row: Row) -> tuple[Access, ...]:
        m, nt, kt = (row.field(Gemm, name) for name in ("m", "nt", "kt"))
        self._at_least_one(m, nt, kt)
        cns = row.field(Gemm, "cns")
        self._require((nt <= 1) | (cns >= m), Fault.BAD_FIELD)
        c, again = row.field(Gemm, "c"), row.flag(Gemm, "accumulate").choose(nt, 0)
        a, aks, astep = (row.field(Gemm, name) for name in ("a", "aks", "astep"))
        return (
            Access(False, False, a, m, astep, kt, aks),
            Access(False, False, row.field(Gemm, "w"), nt * kt * self._config.dim),
            Access(True, False, c, m, 1, again, cns),
            Access(True, True, c, m, 1, nt, cns),
        )

    def _vec(self, row: Row) -> tuple[Access, ...]:
        at = {field.name: row.field(Vec, field.name) for field in LAYOUT_OF_KIND[Vec].fields}
        op, source, s2, s2inc, imm = (at[name] for name in ("op", "source", "s2", "s2inc", "imm"))
        self._at_least_one(at["rows"])
        in_rows = source.equals(Source.ROW)
        immediate, register = source.equals(Source.IMM), source.equals(Source.REG)
        splat, lut, widen = (op.equals(each) for each in (VecOp.SPLAT, VecOp.LUT8, VecOp.WIDEN))
        unary, paired = _is_one_of(op, UNARY), _is_one_of(op, PAIRED)
        no_s1 = at["s1sp"].equals(0) & at["s1"].equals(0) & at["sinc"].equals(0)
        legal = ~splat | (~in_rows & no_s1)
        legal = legal & (~unary | (in_rows & s2.equals(0) & s2inc.equals(0)))
        legal = legal & ~(paired & immediate) & (~lut | (in_rows & s2inc.equals(0)))
        acc_from_spad = at["s1sp"].equals(Space.SPAD) & at["dsp"].equals(Space.ACC)
        legal = legal & (~widen | acc_from_spad)
        legal = legal & (in_rows | s2inc.equals(0)) & (~immediate | s2.equals(0))
        last = paired.choose(REGISTERS - 2, REGISTERS - 1)
        legal = legal & (~register | (s2 <= last))
        legal = legal & (immediate | op.equals(VecOp.RQ) | imm.equals(0))
        self._require(legal, Fault.BAD_FIELD)
        second = in_rows & ~unary & ~splat
        width = paired.choose(2, 1) * s2inc.differs(0).choose(at["rows"], 1)
        s1_in_acc, dst_in_acc = (at[name].equals(Space.ACC) for name in ("s1sp", "dsp"))
        return (
            Access(s1_in_acc, False, at["s1"], at["rows"], at["sinc"], splat.choose(0, 1)),
            Access(
                True, False, s2, lut.choose(self._config.lut_rows, width), 1, second.choose(1, 0)
            ),
            Access(dst_in_acc, True, at["dst"], at["rows"], at["dinc"]),
        )

    def _bounds(self, accesses: tuple[Access, ...], dram: Dram | None) -> None:
        code = self._code
        for access in accesses:
            outer, inner = code.number(access.outer), code.number(access.inner)
            end = code.number(access.base) + (outer - 1) * access.outer_stride
            end = end + (inner - 1) * access.inner_stride + 1
            in_acc = code.flag(access.in_acc)
            limit = in_acc.choose(self._config.acc_rows, self._config.spad_rows)
            with code.when((outer > 0) & (end > limit), likely=False):
                self._require(~in_acc, Fault.ACC_OOB)
                self._fail(Fault.SPAD_OOB)
        if dram is not None:
            with code.when(dram.moved or code.flag(True)):
                self._require(dram.arg < self._control[Control.ARGS], Fault.DRAM_OOB)
                self._require(dram.end <= self._lengths[dram.arg], Fault.DRAM_OOB)

    def _burn(self, accesses: tuple[Access, ...]) -> None:
        used = self._fuel.get() + 1
        for access in accesses:
            used = used + self._code.number(access.inner) * access.outer
        self._fuel.set(used)
        self._require(used <= self._control[Control.FUEL_LIMIT], Fault.FUEL)

    def _tokens(self, row: Row, columns: tuple[int, int], users: Memory, change: int) -> None:
        code, counts = self._code, self._semaphores.counts
        for index in columns:
            number = row.column(index)
            with code.when(number.differs(NO_SEMAPHORE)):
                engine, first = row.column(table.ENGINE), users[number]
                self._control[Control.SEMAPHORE] = number
                self._control[Control.FIRST_USER] = first
                with code.when(first < 0):
                    users[number] = engine
                self._require((first < 0) | first.equals(engine), Fault.SEM_MULTI)
                if change < 0:
                    self._require(counts[number] > 0, Fault.SEM_UNDERFLOW)
                counts[number] = counts[number] + change
                if change > 0:
                    within = counts[number] <= self._config.semaphore_max
                    self._require(within, Fault.SEM_OVERFLOW)

    def _touch_rows(self, accesses: tuple[Access, ...]) -> None:
        code = self._code
        spad, acc = self._written
        for access in accesses:
            written = code.builder.select(code.flag(access.in_acc).raw, acc.raw, spad.raw)
            inner, outer = (access.inner, access.inner_stride), (access.outer, access.outer_stride)
            numbers = (code.number(each).raw for each in (access.base, *inner, *outer))
            arguments = [written, *numbers]
            missing = Int(code, code.builder.call(self._touch[access.write], arguments))
            if not access.write:
                self._require(missing.equals(0), Fault.UNINIT)


class _Semaphores:
    """Counts and users of each semaphore, on the stack of the compiled function."""

    def __init__(self, code: Code) -> None:
        kind = ir.ArrayType(I64, MAX_SEMAPHORES + 1)
        self.counts, self.producer, self.consumer = (
            Memory(code, code.builder.bitcast(code.builder.alloca(kind), I64.as_pointer()), I64)
            for _ in range(3)
        )
        with code.repeat(MAX_SEMAPHORES) as number:
            self.counts[number] = 0
            self.producer[number] = -1
            self.consumer[number] = -1


def _is_one_of(op: Int, members: frozenset[VecOp]) -> Flag:
    first, *others = sorted(members)
    result = op.equals(first)
    for member in others:
        result = result | op.equals(member)
    return result


def _emit_touch(module: ir.Module, *, write: bool) -> ir.Function:
    """Add the function that marks rows as written, or returns 0 if all have been."""
    kind = ir.FunctionType(I64, [I8.as_pointer(), *[I64] * 5])
    function = ir.Function(module, kind, "write_rows" if write else "read_rows")
    function.linkage = "internal"
    code = Code(function)
    written = code.memory(function.args[0])
    base, inner, inner_stride, outer, outer_stride = (
        Int(code, argument) for argument in function.args[1:]
    )
    missing = Variable(code, 0)
    with code.repeat(outer) as block, code.repeat(inner) as row:
        index = base + block * outer_stride + row * inner_stride
        if write:
            written[index] = 1
        else:
            missing.set(missing.get() + written[index] - 1)
    code.leave(missing.get())
    return function
