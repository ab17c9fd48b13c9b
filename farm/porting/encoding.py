"""Checks of an assembler and a disassembler against each other.

Owns: the round trip, and what mutated programs and garbage have to become. Does not own: any instruction set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from farm.accel import Accelerator, guard
from farm.errors import FarmError, PlugInFailed
from farm.porting.findings import Finding

MUTATIONS = 24
GARBAGE = ("\x00", "no such instruction 1 2 3", "(((", "é", "=" * 200)


def check_encoding(it: Accelerator, subject: str, program: bytes, seed: int) -> Iterator[Finding]:
    """Yield what the round trips of a program, of mutations of it, and of garbage found."""
    if it.assemble is None or it.disassemble is None:
        yield Finding("encoding", subject, skipped="no assembler and disassembler")
        return
    assemble, disassemble = it.assemble, it.disassemble
    text = guard.call(it.name, "disassemble", disassemble, program)
    if not isinstance(text, str):
        yield Finding("encoding", subject, f"disassemble gave {text!r}, no text")
        return
    back = guard.call(it.name, "assemble", assemble, text)
    same = back == program
    yield Finding(
        "encoding", subject, "" if same else "assemble(disassemble(program)) is another program"
    )
    rng = np.random.default_rng(seed)
    problem = ""
    for _ in range(MUTATIONS):
        problem = problem or _mutated(it, disassemble, assemble, _mutation(program, rng))
    yield Finding("encoding", f"{subject}, mutated", problem)
    problem = ""
    for garbage in GARBAGE:
        problem = problem or _garbage(it, assemble, garbage)
    yield Finding("encoding", f"{subject}, garbage", problem)


def _mutation(program: bytes, rng: np.random.Generator) -> bytes:
    data = bytearray(program)
    at = int(rng.integers(len(data)))
    if rng.integers(8) == 0:
        return bytes(data[:at]) or b"\x00"
    data[at] ^= 1 << int(rng.integers(8))
    return bytes(data)


def _mutated(
    it: Accelerator,
    disassemble: Callable[[bytes], str],
    assemble: Callable[[str], bytes],
    program: bytes,
) -> str:
    """Return what is wrong: a mutated program is refused, or has a text that gives it back."""
    try:
        text = guard.call(it.name, "disassemble", disassemble, program)
        back = guard.call(it.name, "assemble", assemble, text)
    except PlugInFailed as error:
        return f"{program[:32].hex()}: {error.message}; raise InvalidProgram for what is no program"
    except FarmError:
        return ""
    if back != program:
        return f"{program[:32].hex()}: taken, but assembled again it is another program; refuse it"
    return ""


def _garbage(it: Accelerator, assemble: Callable[[str], bytes], text: str) -> str:
    try:
        guard.call(it.name, "assemble", assemble, text)
    except PlugInFailed as error:
        return f"{text[:40]!r}: {error.message}; raise InvalidProgram for what is no text"
    except FarmError:
        return ""
    return f"{text[:40]!r}: taken for a program"
