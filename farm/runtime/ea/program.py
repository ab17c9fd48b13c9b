"""A program made ready for a compiled machine."""

from __future__ import annotations

import dataclasses
import functools

from farm.ea import table
from farm.ea.config import MachineConfig
from farm.ea.encoding import decode_at, decode_program, encode_program, open_image
from farm.ea.faults import Finding, Problem
from farm.ea.isa import LAYOUT_OF_KIND, WORD_BYTES, Instruction, Store
from farm.ea.program import Program


class LoadedProgram:
    """A program as a table of numbers, decoded in one go; instructions are made when asked for.

    Parameters
    ----------
    image
        As `farm.ea.encoding.encode_program` makes it.
    config
        The machine it must be for.

    Raises
    ------
    InvalidProgram
        Not an intact image for this machine, or a word that is no instruction.
    """

    def __init__(self, image: bytes, config: MachineConfig) -> None:
        opened = open_image(image, config)
        self.config = opened.config
        self.args = Program(opened.config, opened.args, (), ()).args  # checks their lengths
        self.table = table.instruction_table(opened.words)
        stores = self.table[:, table.OPCODE] == LAYOUT_OF_KIND[Store].opcode
        targets = self.table[stores, table.column(Store, "arg")]
        self.stored = frozenset(targets.tolist())
        self._image, self._words = image, opened.words

    @classmethod
    def of(cls, program: Program) -> LoadedProgram:
        """Return a program made ready; raises InvalidProgram if it cannot be encoded."""
        loaded = cls(encode_program(program), program.config)
        loaded.__dict__["program"] = program  # with its names
        return loaded

    def instruction(self, pc: int) -> Instruction:
        """Return one instruction."""
        return decode_at(pc, self._words[pc * WORD_BYTES : (pc + 1) * WORD_BYTES])

    def finding(self, problem: Problem, pc: int) -> Finding:
        """Return what is wrong at `pc`, without decoding the rest of a long program."""
        if "program" in self.__dict__ or pc >= len(self.table):
            return problem.at(self.program, pc)
        alone = Program(self.config, self.args, (), (self.instruction(pc),))
        return dataclasses.replace(problem.at(alone, 0), pc=pc)

    @functools.cached_property
    def program(self) -> Program:
        """Its instructions one by one."""
        return decode_program(self._image, self.config)
