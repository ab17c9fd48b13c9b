"""Why a program is refused or stops: the closed set of faults, and what a report of one carries.

Owns `Fault`, `Problem` (a fault without a place) and `Finding` (with its place). Does not own the
rules themselves (`farm.ea.checks`, `farm.ea.hazards`, `farm.ea.verify`).

Invariant: fault codes are stable; the verifier and the emulator report one violation alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from farm.ea.disassembly import format_instruction
from farm.ea.isa import Engine, engine_of
from farm.ea.program import Program
from farm.errors import DeviceFault, InvalidProgram


class Fault(StrEnum):
    """The stable codes; ``docs/ea-isa.md`` says when each occurs."""

    BAD_OPCODE = "BAD_OPCODE"
    BAD_FIELD = "BAD_FIELD"
    SPAD_OOB = "SPAD_OOB"
    ACC_OOB = "ACC_OOB"
    DRAM_OOB = "DRAM_OOB"
    MISALIGNED = "MISALIGNED"
    SEM_UNDERFLOW = "SEM_UNDERFLOW"
    SEM_MULTI = "SEM_MULTI"
    SEM_OVERFLOW = "SEM_OVERFLOW"
    NO_HALT = "NO_HALT"
    FUEL = "FUEL"
    VERSION = "VERSION"
    HAZARD = "HAZARD"
    UNINIT = "UNINIT"


@dataclass(frozen=True, slots=True)
class Problem:
    """A broken rule: what it is, and where it applies the half-open range against its limit."""

    fault: Fault
    what: str
    span: tuple[int, int] | None = None
    limit: int | None = None

    def at(self, program: Program, pc: int) -> Finding:
        """Return the finding that instruction `pc` of `program` breaks the rule."""
        if pc >= len(program.instructions):
            return Finding(self.fault, pc, None, "end of program", self.what, self.span, self.limit)
        instruction = program.instructions[pc]
        text = format_instruction(instruction, program)
        engine = engine_of(instruction)
        return Finding(self.fault, pc, engine, text, self.what, self.span, self.limit)


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule at a place.

    Parameters
    ----------
    fault, what
        Code, and the rule in words with its values.
    pc, instruction
        Index in the program, and the disassembly of what is there.
    engine
        That executes it; None for the dispatcher.
    span, limit
        Half-open range of rows, bytes or counts that was asked for, and what there is.
    """

    fault: Fault
    pc: int
    engine: Engine | None
    instruction: str
    what: str
    span: tuple[int, int] | None
    limit: int | None

    def __str__(self) -> str:
        return f"{self.fault} at pc {self.pc} ({self.instruction}): {self.what}"

    def details(self) -> dict[str, str]:
        """Return the facts as strings, as errors carry them."""
        facts = {
            "fault": str(self.fault),
            "pc": str(self.pc),
            "instruction": self.instruction,
            "engine": "none" if self.engine is None else self.engine.name,
        }
        if self.span is not None:
            facts["range"] = f"[{self.span[0]}:{self.span[1]})"
        if self.limit is not None:
            facts["limit"] = str(self.limit)
        return facts

    def device_fault(self, machine: str) -> DeviceFault:
        """Return the error of a machine that stopped here."""
        return DeviceFault(
            f"{machine}: {self}; correct the program and reset the machine", **self.details()
        )

    def invalid_program(self, more: int = 0) -> InvalidProgram:
        """Return the error that refuses the program before it runs."""
        rest = f", and {more} more" if more else ""
        return InvalidProgram(f"program: {self}{rest}; correct the program", **self.details())
