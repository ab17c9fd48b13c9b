"""Instructions as 128-bit words, and programs as images.

Owns both binary forms. Does not own field widths (`farm.ea.isa`) or the rules of a good program
(`farm.ea.verify`).

Invariant: encoding is a bijection between instructions whose fields fit and legal words; any other
word is refused. An image carries a CRC-32 of everything else in it.

Word, least significant bit first: op:6 w0:4 w1:4 p0:4 p1:4 flags:2, then the payload fields in
layout order; all bits beyond are 0. Semaphore 15 is none, and w0 (p0) is filled before w1 (p1).

Image, little-endian: magic ``EAPR``, u16 ISA version, u16 argument count, u32 instruction count,
u32 CRC-32, 8 bytes configuration id, 8 zero bytes; per argument a u64 minimum length, padded with a
zero to an even count; then the words. All parts start on 16 bytes.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from farm.ea.config import CONFIGS, MachineConfig
from farm.ea.faults import Fault
from farm.ea.isa import (
    HEADER_BITS,
    ISA_VERSION,
    LAYOUT_OF_OPCODE,
    MAX_ARGS,
    NO_SEMAPHORE,
    WORD_BYTES,
    Instruction,
    Layout,
    layout_of,
)
from farm.ea.program import MAX_INSTRUCTIONS, Arg, Program
from farm.errors import InvalidProgram

MAGIC = b"EAPR"
_HEADER = struct.Struct("<4sHHII8s8s")
_RESERVED = bytes(8)


def encode(instruction: Instruction) -> bytes:
    """Return the 16 bytes of `instruction`.

    Raises
    ------
    InvalidProgram
        A field does not fit; ``details['fault']`` is ``BAD_FIELD``.
    """
    layout = layout_of(instruction)
    word = layout.opcode
    word |= _semaphores(layout, instruction.waits) << 6
    word |= _semaphores(layout, instruction.posts) << 14
    for bit, flag in enumerate(layout.flags):
        if flag is not None and getattr(instruction, flag):
            word |= 1 << (22 + bit)
    shift = HEADER_BITS
    for field in layout.fields:
        value = int(getattr(instruction, field.name))
        if not field.legal(value):
            raise _bad_field(layout, field.name, value, f"use {field.low} to {field.high}")
        word |= (value & ((1 << field.width) - 1)) << shift
        shift += field.width
    return word.to_bytes(WORD_BYTES, "little")


def decode(data: bytes) -> Instruction:
    """Return the instruction in the 16 bytes `data`.

    Raises
    ------
    InvalidProgram
        Wrong length, unknown opcode (``BAD_OPCODE``), or an illegal field or bit (``BAD_FIELD``).
    """
    if len(data) != WORD_BYTES:
        raise InvalidProgram(
            f"instruction word: wrong length ({len(data)} bytes); pass {WORD_BYTES}",
            fault=Fault.BAD_FIELD,
        )
    word = int.from_bytes(data, "little")
    layout = LAYOUT_OF_OPCODE.get(word & 0x3F)
    if layout is None:
        raise InvalidProgram(
            f"instruction word: unknown opcode ({word & 0x3F:#04x}); assemble for this ISA version",
            fault=Fault.BAD_OPCODE,
        )
    values: dict[str, object] = {
        "waits": _semaphore_numbers(layout, word >> 6),
        "posts": _semaphore_numbers(layout, word >> 14),
    }
    for bit, flag in enumerate(layout.flags):
        on = bool(word >> (22 + bit) & 1)
        if flag is not None:
            values[flag] = on
        elif on:
            raise _bad_field(layout, f"flag {bit}", 1, "leave unused bits 0")
    return layout.kind(**{**values, **_payload(layout, word >> HEADER_BITS)})  # type: ignore[arg-type]


def _payload(layout: Layout, bits: int) -> dict[str, int]:
    values: dict[str, int] = {}
    for field in layout.fields:
        value = bits & ((1 << field.width) - 1)
        bits >>= field.width
        if field.signed and value > field.high:
            value -= 1 << field.width
        if not field.legal(value):
            raise _bad_field(layout, field.name, value, "use a listed value")
        values[field.name] = value if field.enum is None else field.enum(value)
    if bits:
        raise _bad_field(layout, "unused payload", bits, "leave unused bits 0")
    return values


def _semaphores(layout: Layout, numbers: tuple[int, ...]) -> int:
    if len(numbers) > 2 or any(not 0 <= number < NO_SEMAPHORE for number in numbers):
        raise InvalidProgram(
            f"{layout.mnemonic}: bad semaphores {numbers}; use at most two of 0 to 14",
            fault=Fault.BAD_FIELD,
        )
    first, second = (*numbers, NO_SEMAPHORE, NO_SEMAPHORE)[:2]
    return first | second << 4


def _semaphore_numbers(layout: Layout, bits: int) -> tuple[int, ...]:
    first, second = bits & 15, bits >> 4 & 15
    if first == NO_SEMAPHORE != second:
        raise _bad_field(layout, "second semaphore", second, "fill the first slot first")
    return tuple(number for number in (first, second) if number != NO_SEMAPHORE)


def _bad_field(layout: Layout, name: str, value: int, advice: str) -> InvalidProgram:
    return InvalidProgram(
        f"{layout.mnemonic}: bad {name} ({value}); {advice}", fault=Fault.BAD_FIELD, field=name
    )


def encode_program(program: Program) -> bytes:
    """Return the image of `program`; names are not kept.

    Raises
    ------
    InvalidProgram
        A field of an instruction does not fit.
    """
    lengths = [arg.min_bytes for arg in program.args]
    lengths += [0] * (len(lengths) % 2)
    body = struct.pack(f"<{len(lengths)}Q", *lengths)
    body += b"".join(encode(instruction) for instruction in program.instructions)
    header = _HEADER.pack(
        MAGIC,
        ISA_VERSION,
        len(program.args),
        len(program.instructions),
        0,
        bytes.fromhex(program.config.config_id),
        _RESERVED,
    )
    return _with_crc(header, zlib.crc32(header + body)) + body


def _with_crc(data: bytes, crc: int) -> bytes:
    return data[:12] + struct.pack("<I", crc) + data[16:]


def decode_program(data: bytes, config: MachineConfig | None = None) -> Program:
    """Return the program in an image, with built-in names.

    Parameters
    ----------
    data
        The whole image.
    config
        The machine it must be for; None accepts any configuration known by name.

    Raises
    ------
    InvalidProgram
        Not a whole, intact image for this machine. ``details['reason']`` is one of ``magic``,
        ``version``, ``config``, ``length``, ``checksum``, ``reserved``; a bad word has ``details['fault']`` and
        ``details['pc']``.
    """
    image = open_image(data, config)
    words = image.words
    instructions = tuple(
        decode_at(pc, words[pc * WORD_BYTES : (pc + 1) * WORD_BYTES])
        for pc in range(len(words) // WORD_BYTES)
    )
    used = [number for each in instructions for number in (*each.waits, *each.posts)]
    semaphores = tuple(f"sem{index}" for index in range(max(used, default=-1) + 1))
    return Program(image.config, image.args, semaphores, instructions)


@dataclass(frozen=True, slots=True)
class Image:
    """A program's image, intact, its words not yet looked at."""

    config: MachineConfig
    args: tuple[Arg, ...]
    words: bytes


def open_image(data: bytes, config: MachineConfig | None = None) -> Image:
    """Return the parts of an image; parameters and errors as in `decode_program`, but for words."""
    if len(data) < _HEADER.size:
        raise _refused("length", f"too short ({len(data)} bytes)", "copy it again")
    magic, version, arg_count, count, crc, config_bytes, reserved = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise _refused("magic", f"does not start with EAPR ({magic!r})", "pass a program image")
    if version != ISA_VERSION:
        raise _refused("version", f"ISA version {version}", f"build for version {ISA_VERSION}")
    machine = _machine(config_bytes.hex(), config)
    words_at = _HEADER.size + 8 * (arg_count + arg_count % 2)
    if arg_count > MAX_ARGS or count > MAX_INSTRUCTIONS:
        raise _refused("length", f"too large ({arg_count} arguments, {count} words)", "split it")
    if len(data) != words_at + count * WORD_BYTES:
        expected = words_at + count * WORD_BYTES
        raise _refused("length", f"{len(data)} bytes, header says {expected}", "copy it again")
    if zlib.crc32(_with_crc(data, 0)) != crc:
        raise _refused("checksum", f"contents do not match it ({crc:#010x})", "copy it again")
    lengths = struct.unpack_from(f"<{arg_count}Q", data, _HEADER.size)
    if reserved != _RESERVED or any(data[_HEADER.size + 8 * arg_count : words_at]):
        raise _refused("reserved", "reserved bytes are not zero", "build it again")
    args = tuple(Arg(f"arg{index}", length) for index, length in enumerate(lengths))
    return Image(machine, args, data[words_at:])


def decode_at(pc: int, word: bytes) -> Instruction:
    """Return the instruction in a word of a program; raises as `decode`, with ``pc`` in ``details``."""
    try:
        return decode(word)
    except InvalidProgram as error:
        raise InvalidProgram(f"pc {pc}: {error}", **error.details, pc=str(pc)) from None


def _machine(config_id: str, config: MachineConfig | None) -> MachineConfig:
    known = CONFIGS.values() if config is None else (config,)
    for machine in known:
        if machine.config_id == config_id:
            return machine
    names = ", ".join(machine.name for machine in known)
    raise _refused("config", f"for another machine ({config_id})", f"build for {names}")


def _refused(reason: str, what: str, advice: str) -> InvalidProgram:
    version = {"fault": str(Fault.VERSION)} if reason in ("version", "config") else {}
    return InvalidProgram(f"program image: {what}; {advice}", reason=reason, **version)
