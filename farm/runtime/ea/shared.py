"""What the compiled machine's functions share: how they read the table and what they answer with.

Owns `Row` (one instruction of the table, fields by name), `Control` (the block of numbers that
Python and compiled code exchange) and fault codes. Does not own what is done with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from llvmlite import ir

from farm.ea import table
from farm.ea.faults import Fault
from farm.ea.isa import LAYOUT_OF_KIND, Instruction
from farm.runtime.ea.emit import I64, Code, Flag, Int, Memory

FAULTS: tuple[Fault, ...] = tuple(Fault)
"""Compiled code names a fault by its place here, plus one; 0 is none."""

OPCODES: dict[type[Instruction], int] = {
    kind: layout.opcode for kind, layout in LAYOUT_OF_KIND.items()
}


def fault_code(fault: Fault) -> int:
    """Return the number by which compiled code names a fault."""
    return FAULTS.index(fault) + 1


class Control(IntEnum):
    """Places in the block of 64-bit numbers that a call gets and fills."""

    FUEL_LIMIT = 0
    ARGS = 1
    FAULT_PC = 2
    FUEL_USED = 3
    EXECUTED = 4
    CYCLES = 5
    BUSY = 6  # four, by engine
    STALLS = 10  # four times three, by engine and reason
    WORK = 22  # bytes moved, rows times tiles of GEMMs, cycles of VEC rows
    SEMAPHORE = 25  # that a fault is about
    FIRST_USER = 26  # engine that used it before
    SIZE = 27


@dataclass(frozen=True)
class Row:
    """One instruction of the table."""

    memory: Memory

    def column(self, index: int) -> Int:
        """Return a column that all instructions have."""
        return self.memory[index]

    def field(self, kind: type[Instruction], name: str) -> Int:
        """Return a payload field of an instruction known to be of a class."""
        return self.memory[table.column(kind, name)]

    def flag(self, kind: type[Instruction], name: str) -> Flag:
        """Return a flag of an instruction known to be of a class."""
        bit = table.flag_bit(kind, name)
        return (self.memory[table.FLAGS] & bit).differs(0)


def row_at(rows: Memory, pc: Int) -> Row:
    """Return the row of instruction `pc`."""
    return Row(rows.at(pc * table.COLUMNS))


def define(module: ir.Module, name: str, *cells: ir.Type) -> tuple[Code, list[Memory], Int]:
    """Start ``int64_t NAME(cells.. *, int64_t count)``; return its code, pointers and count."""
    kind = ir.FunctionType(I64, [*(cell.as_pointer() for cell in cells), I64])
    function = ir.Function(module, kind, name)
    for argument in function.args[:-1]:
        argument.add_attribute("noalias")
    code = Code(function)
    pointers = [code.memory(argument) for argument in function.args[:-1]]
    return code, pointers, Int(code, function.args[-1])
