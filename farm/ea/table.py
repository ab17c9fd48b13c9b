"""Many instruction words at once, as a table of numbers.

Owns the table's columns and the vectorised decoder, both derived from `farm.ea.isa.LAYOUTS`. Does
not own the meaning of a word one at a time, nor what is said of a bad one (`farm.ea.encoding`).

Invariant: a word that `farm.ea.encoding.decode` refuses is refused here, by that function.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from farm.ea.encoding import decode_at
from farm.ea.isa import (
    HEADER_BITS,
    LAYOUTS,
    NO_SEMAPHORE,
    WORD_BYTES,
    Engine,
    Field,
    Instruction,
    Layout,
)
from farm.ea.isa import LAYOUT_OF_KIND as _LAYOUT_OF_KIND

OPCODE, ENGINE, WAIT0, WAIT1, POST0, POST1, FLAGS = range(7)
FIRST_FIELD = 7
COLUMNS = 20
DISPATCHER = len(Engine)
"""In column `ENGINE` for FENCE and HALT."""

_ENGINES = {
    "ld": Engine.LD,
    "st": Engine.ST,
    "gemm": Engine.GE,
    "vec": Engine.VE,
    "setb": Engine.VE,
}

Table = NDArray[np.int32]


def column(kind: type[Instruction], name: str) -> int:
    """Return where the table keeps the payload field `name` of instructions of a class."""
    names = [field.name for field in _LAYOUT_OF_KIND[kind].fields]
    return FIRST_FIELD + names.index(name)


def flag_bit(kind: type[Instruction], name: str) -> int:
    """Return the bit of flag `name` in column `FLAGS`."""
    return 1 << _LAYOUT_OF_KIND[kind].flags.index(name)


def instruction_table(words: bytes) -> Table:
    """Decode a program's words.

    Parameters
    ----------
    words
        16 bytes an instruction.

    Returns
    -------
    int32 array of shape (instructions, COLUMNS), C-contiguous; columns of fields that an
    instruction does not have are 0.

    Raises
    ------
    InvalidProgram
        The first word that is no instruction, with its ``pc`` in ``details``.
    """
    halves = np.frombuffer(words, np.dtype("<u8")).reshape(-1, 2)
    table = np.zeros((len(halves), COLUMNS), np.int32)
    low, high = halves[:, 0], halves[:, 1]
    table[:, OPCODE] = low & 0x3F
    for index, name in enumerate((WAIT0, WAIT1, POST0, POST1)):
        table[:, name] = low >> np.uint64(6 + 4 * index) & np.uint64(15)
    table[:, FLAGS] = low >> np.uint64(22) & np.uint64(3)
    good = np.zeros(len(halves), np.bool_)
    for layout in LAYOUTS:
        rows = np.flatnonzero(table[:, OPCODE] == layout.opcode)
        good[rows] = _decode_fields(layout, table, rows, low[rows], high[rows])
    for first, second in ((WAIT0, WAIT1), (POST0, POST1)):
        good &= (table[:, first] != NO_SEMAPHORE) | (table[:, second] == NO_SEMAPHORE)
    if not good.all():
        pc = int(np.argmin(good))
        decode_at(pc, words[pc * WORD_BYTES : (pc + 1) * WORD_BYTES])
        raise AssertionError(f"pc {pc}: the table and the decoder disagree")
    return table


def _decode_fields(
    layout: Layout,
    table: Table,
    rows: NDArray[np.intp],
    low: NDArray[np.uint64],
    high: NDArray[np.uint64],
) -> NDArray[np.bool_]:
    """Fill in the columns of one class of instruction; tell which of its words are legal."""
    allowed = sum(1 << bit for bit, name in enumerate(layout.flags) if name is not None)
    good: NDArray[np.bool_] = (table[rows, FLAGS] & ~allowed) == 0
    at = HEADER_BITS
    for index, field in enumerate(layout.fields):
        values = _bits(low, high, at, field)
        if field.enum is not None:
            good &= np.isin(values, [int(member) for member in field.enum])
        table[rows, FIRST_FIELD + index] = values
        at += field.width
    used_low = np.uint64((1 << min(at, 64)) - 1)
    used_high = np.uint64((1 << max(at - 64, 0)) - 1)
    good &= ((low & ~used_low) == 0) & ((high & ~used_high) == 0)
    if any(field.name == "engine" for field in layout.fields):
        table[rows, ENGINE] = table[rows, FIRST_FIELD]
    else:
        table[rows, ENGINE] = _ENGINES.get(layout.mnemonic, DISPATCHER)
    return good


def _bits(
    low: NDArray[np.uint64], high: NDArray[np.uint64], at: int, field: Field
) -> NDArray[np.int64]:
    """Return one field of each word, whose bits may lie in both halves."""
    if at >= 64:
        raw = high >> np.uint64(at - 64)
    else:
        raw = low >> np.uint64(at)
        if at + field.width > 64:
            raw = raw | high << np.uint64(64 - at)
    values = (raw & np.uint64((1 << field.width) - 1)).astype(np.int64)
    return values - (values > field.high) * (1 << field.width) if field.signed else values
