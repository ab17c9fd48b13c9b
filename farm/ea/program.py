"""A program for the accelerator.

Owns `Program`: configuration, names, instructions. Does not own whether a program is correct
(`farm.ea.verify`), how it is written down (`farm.ea.encoding`, `farm.ea.assembly`) or how it comes
about (`farm.ea.builder`).

Invariant: names in a program are unique identifiers, and none could be mistaken for the built-in
name (``arg3``, ``sem7``) of another index.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from farm.ea.access import dram_access
from farm.ea.config import MachineConfig
from farm.ea.isa import (
    MAX_ARGS,
    MAX_SEMAPHORES,
    Instruction,
)
from farm.errors import InvalidProgram

MAX_INSTRUCTIONS = 1 << 20
MAX_ARG_BYTES = 1 << 40
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_BUILT_IN = re.compile(r"(arg|sem)[0-9]+")


@dataclass(frozen=True, slots=True)
class Arg:
    """One DRAM window: its name, and the bytes that a caller must provide at least."""

    name: str
    min_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """A sequence of instructions for one configuration.

    Parameters
    ----------
    config
        The machine it is for; it runs on no other.
    args
        Windows in argument order, at most 16.
    semaphores
        Names by semaphore number, at most 15.
    instructions
        In stream order.

    Raises
    ------
    InvalidProgram
        Too many of something, or a bad or repeated name.
    """

    config: MachineConfig
    args: tuple[Arg, ...]
    semaphores: tuple[str, ...]
    instructions: tuple[Instruction, ...]

    def __post_init__(self) -> None:
        check_names("argument", "arg", [arg.name for arg in self.args], MAX_ARGS)
        check_names("semaphore", "sem", list(self.semaphores), MAX_SEMAPHORES)
        for arg in self.args:
            if not 0 <= arg.min_bytes <= MAX_ARG_BYTES:
                raise InvalidProgram(
                    f"argument {arg.name!r}: bad length ({arg.min_bytes}); "
                    f"use 0 to {MAX_ARG_BYTES} bytes"
                )
        if len(self.instructions) > MAX_INSTRUCTIONS:
            raise InvalidProgram(
                f"program: too many instructions ({len(self.instructions)}); "
                f"use at most {MAX_INSTRUCTIONS}"
            )

    def arg_name(self, index: int) -> str:
        """Return the name of an argument, its built-in name if it has none."""
        return self.args[index].name if index < len(self.args) else f"arg{index}"

    def semaphore_name(self, index: int) -> str:
        """Return the name of a semaphore, its built-in name if it has none."""
        return self.semaphores[index] if index < len(self.semaphores) else f"sem{index}"


def check_names(what: str, prefix: str, names: list[str], limit: int) -> None:
    """Refuse too many names, bad ones and repeated ones.

    Raises
    ------
    InvalidProgram
        Names the index and what to do.
    """
    if len(names) > limit:
        raise InvalidProgram(f"program: too many {what}s ({len(names)}); use at most {limit}")
    for index, name in enumerate(names):
        built_in = _BUILT_IN.fullmatch(name) is not None and name != f"{prefix}{index}"
        if not _NAME.fullmatch(name) or name == "zero" or built_in:
            raise InvalidProgram(
                f"{what} {index}: bad name ({name[:80]!r}); use an identifier that is neither "
                "'zero' nor a built-in name of another index"
            )
        if name in names[:index]:
            raise InvalidProgram(f"{what} {index}: name taken ({name!r}); use another")


def needed_bytes(instructions: Iterable[Instruction], count: int) -> list[int]:
    """Return, for each of `count` arguments, one past the last byte that is touched."""
    needed = [0] * count
    for instruction in instructions:
        access = dram_access(instruction)
        if access is not None and access.arg < count:
            needed[access.arg] = max(needed[access.arg], access.end)
    return needed
