"""A program made ready for a compiled machine."""

from __future__ import annotations

import functools

from farm.ea import table
from farm.ea.config import MachineConfig
from farm.ea.encoding import decode_program, encode_program, open_image
from farm.ea.isa import LAYOUT_OF_KIND, Store
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
        self._image = image

    @classmethod
    def of(cls, program: Program) -> LoadedProgram:
        """Return a program made ready; raises InvalidProgram if it cannot be encoded."""
        loaded = cls(encode_program(program), program.config)
        loaded.__dict__["program"] = program  # with its names
        return loaded

    @functools.cached_property
    def program(self) -> Program:
        """Its instructions one by one."""
        return decode_program(self._image, self.config)
