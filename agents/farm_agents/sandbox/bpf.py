"""A small assembler for classic BPF, the language of seccomp filters.

Owns: instructions with symbolic jumps, and their bytes. Does not own: what a filter says
(`farm_agents.sandbox.seccomp`).

Invariant: a jump goes forward to a label that exists and is at most 255 instructions away.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

_INSTRUCTION = struct.Struct("<HBBI")
MAX_INSTRUCTIONS = 4096

# Codes of linux/bpf_common.h: class | size or operation | source or mode.
LOAD_WORD = 0x00 | 0x00 | 0x20
JUMP_EQUAL = 0x05 | 0x10
JUMP_AT_LEAST = 0x05 | 0x30
JUMP_ANY_BIT = 0x05 | 0x40
RETURN = 0x06


@dataclass(frozen=True, slots=True)
class Label:
    """A place that jumps name."""

    name: str


@dataclass(frozen=True, slots=True)
class Load:
    """Load the 32-bit word at this offset of `struct seccomp_data`."""

    offset: int


@dataclass(frozen=True, slots=True)
class Jump:
    """Compare the loaded word with `value`; go to label `yes` or `no`, empty: to the next instruction."""

    code: int
    value: int
    yes: str = ""
    no: str = ""


@dataclass(frozen=True, slots=True)
class Return:
    """End with this answer of seccomp."""

    value: int


Line = Label | Load | Jump | Return


def assemble(lines: Sequence[Line]) -> bytes:
    """Return the bytes of a program (`struct sock_filter` after `struct sock_filter`).

    Raises
    ------
    ValueError
        A label is absent, repeated or out of reach, or the program is too long: a defect of the caller.
    """
    places: dict[str, int] = {}
    code: list[Load | Jump | Return] = []
    for line in lines:
        if isinstance(line, Label):
            if line.name in places:
                raise ValueError(f"bpf: label {line.name!r} stands twice; rename one")
            places[line.name] = len(code)
        else:
            code.append(line)
    if not 0 < len(code) <= MAX_INSTRUCTIONS:
        raise ValueError(f"bpf: impossible length ({len(code)}); use 1 to {MAX_INSTRUCTIONS}")
    return b"".join(_encode(line, at, places) for at, line in enumerate(code))


def _encode(line: Load | Jump | Return, at: int, places: dict[str, int]) -> bytes:
    match line:
        case Load(offset):
            return _INSTRUCTION.pack(LOAD_WORD, 0, 0, offset)
        case Return(value):
            return _INSTRUCTION.pack(RETURN, 0, 0, value)
        case Jump(code, value, yes, no):
            steps = [_distance(label, at, places) for label in (yes, no)]
            return _INSTRUCTION.pack(code, *steps, value)


def _distance(label: str, at: int, places: dict[str, int]) -> int:
    if not label:
        return 0
    if label not in places:
        raise ValueError(f"bpf: no label {label!r}; add it")
    steps = places[label] - at - 1
    if not 0 <= steps <= 255:
        raise ValueError(f"bpf: label {label!r} is {steps} instructions away; at most 255 forward")
    return steps
