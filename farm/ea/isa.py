"""The instruction set: one frozen dataclass an instruction, one table of fields for all of them.

Owns the instruction classes, their enums and `LAYOUTS`, the field table that drives encoder,
decoder, assembler, disassembler and range checks alike. Does not own meaning beyond what a field
is: memory touched is `farm.ea.access`, rules are `farm.ea.checks`, arithmetic is
`farm.ea.execute`; ``docs/ea-isa.md`` is normative.

Invariant: the fields of every layout fit the 104 payload bits, and an instruction class has
exactly the fields and flags of its layout plus `waits` and `posts`. Constructors check nothing, so
that a bad program can be represented and reported; `encode` and `verify` check.

Names that do not explain themselves: SETB sets a 32-bit broadcast register of the vector engine;
SYNC makes an engine only wait and post; FENCE holds the dispatcher until all engines are idle; MARK
is a SYNC with a tag for traces. ``dstride`` and ``offset`` are bytes, all other strides rows.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

ISA_VERSION = 1
WORD_BYTES = 16
HEADER_BITS = 24
PAYLOAD_BITS = 104
MAX_ARGS = 16
MAX_SEMAPHORES = 15
NO_SEMAPHORE = 15
REGISTERS = 16


class Engine(IntEnum):
    """The four in-order engines; the value indexes vector clocks."""

    LD = 0
    GE = 1
    VE = 2
    ST = 3


class Space(IntEnum):
    """On-chip memories: SPAD has int8 rows, ACC int32 rows."""

    SPAD = 0
    ACC = 1


class Transfer(IntEnum):
    """What a DMA moves: int8 to SPAD, int32 to ACC, or int8 widened into ACC (LD only)."""

    SPAD_I8 = 0
    ACC_I32 = 1
    ACC_I8 = 2

    @property
    def space(self) -> Space:
        """The on-chip side."""
        return Space.SPAD if self is Transfer.SPAD_I8 else Space.ACC


class VecOp(IntEnum):
    """Operations of the vector engine; the page lists their exact meaning."""

    MOV = 0
    ADD = 1
    SUB = 2
    MUL = 3
    MIN = 4
    MAX = 5
    SHR = 6
    AND = 7
    OR = 8
    CLAMP = 9
    RQ = 10
    LUT8 = 11
    WIDEN = 12
    RSUM = 13
    RMAX = 14
    SPLAT = 15


UNARY = frozenset({VecOp.MOV, VecOp.WIDEN, VecOp.RSUM, VecOp.RMAX})
PAIRED = frozenset({VecOp.CLAMP, VecOp.RQ})
"""Operations whose second operand is two rows or two registers that follow each other."""


class Source(IntEnum):
    """Where the second operand of VEC comes from."""

    ROW = 0
    IMM = 1
    REG = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """What all instructions have: at most two semaphores awaited before, two posted after."""

    waits: tuple[int, ...] = ()
    posts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Instruction):
    """LD: DRAM rows to on-chip blocks, tail columns zero; `fill` writes zeros and reads nothing."""

    space: Transfer
    row: int
    rows: int
    cols: int
    arg: int = 0
    lstride: int = 0
    dstride: int = 0
    offset: int = 0
    fill: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Store(Instruction):
    """ST: on-chip blocks to DRAM rows; `saturate` narrows int32 to int8."""

    space: Transfer
    arg: int
    row: int
    rows: int
    cols: int
    lstride: int = 0
    dstride: int = 0
    offset: int = 0
    saturate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm(Instruction):
    """``C[c+n*cns+r] (+)= A[a+k*aks+r*astep] . W[w+(n*kt+k)*DIM ..+DIM]`` for all n, k, r."""

    m: int
    a: int
    w: int
    c: int
    nt: int = 1
    kt: int = 1
    aks: int = 0
    cns: int = 0
    astep: int = 1
    accumulate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Vec(Instruction):
    """VEC: ``dst[dst+r*dinc] = op(s1[s1+r*sinc], second operand)`` for r in ascending order."""

    op: VecOp
    rows: int
    dsp: Space
    dst: int
    s1sp: Space = Space.SPAD
    s1: int = 0
    source: Source = Source.ROW
    s2: int = 0
    dinc: int = 1
    sinc: int = 1
    s2inc: int = 0
    imm: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SetB(Instruction):
    """SETB: set broadcast register `reg` of the vector engine to the int32 `value`."""

    reg: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync(Instruction):
    """SYNC: `engine` does nothing but wait and post."""

    engine: Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark(Instruction):
    """MARK: `engine` reports `tag` to the trace."""

    engine: Engine
    tag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence(Instruction):
    """FENCE: nothing after it starts before all before it is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt(Instruction):
    """HALT: the end of the program, once all engines are idle."""


@dataclass(frozen=True, slots=True)
class Field:
    """One payload field, least significant first in the order of its layout."""

    name: str
    width: int
    signed: bool = False
    enum: type[IntEnum] | None = None

    @property
    def low(self) -> int:
        """Lowest value."""
        return -(1 << (self.width - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        """Highest value."""
        return (1 << (self.width - self.signed)) - 1

    def legal(self, value: int) -> bool:
        """Tell whether `value` can be encoded and, for an enum, has a meaning."""
        if self.enum is not None:
            return any(value == member for member in self.enum)
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Layout:
    """Opcode, mnemonic, flags (bit 0 first) and payload fields of one instruction class."""

    opcode: int
    mnemonic: str
    kind: type[Instruction]
    fields: tuple[Field, ...] = ()
    flags: tuple[str | None, str | None] = (None, None)

    @property
    def bits(self) -> int:
        """Payload bits in use."""
        return sum(field.width for field in self.fields)

    @property
    def defaults(self) -> dict[str, Any]:
        """Fields and flags that may be left out, with the value they then have."""
        return {
            field.name: field.default
            for field in dataclasses.fields(self.kind)
            if field.default is not dataclasses.MISSING and field.name not in ("waits", "posts")
        }


_DMA = (
    Field("space", 2, enum=Transfer),
    Field("arg", 4),
    Field("row", 15),
    Field("rows", 12),
    Field("cols", 12),
    Field("lstride", 12),
    Field("dstride", 20),
    Field("offset", 27),
)

_GEMM = (
    Field("m", 12),
    Field("nt", 6),
    Field("kt", 6),
    Field("a", 15),
    Field("w", 15),
    Field("c", 11),
    Field("aks", 12),
    Field("cns", 11),
    Field("astep", 4),
)

_VEC = (
    Field("op", 5, enum=VecOp),
    Field("rows", 12),
    Field("dsp", 1, enum=Space),
    Field("dst", 15),
    Field("s1sp", 1, enum=Space),
    Field("s1", 15),
    Field("source", 2, enum=Source),
    Field("s2", 15),
    Field("dinc", 4),
    Field("sinc", 4),
    Field("s2inc", 1),
    Field("imm", 16, signed=True),
)

LAYOUTS: tuple[Layout, ...] = (
    Layout(0x01, "halt", Halt),
    Layout(0x02, "fence", Fence),
    Layout(0x03, "sync", Sync, (Field("engine", 2, enum=Engine),)),
    Layout(0x04, "mark", Mark, (Field("engine", 2, enum=Engine), Field("tag", 16))),
    Layout(0x05, "setb", SetB, (Field("reg", 4), Field("value", 32, signed=True))),
    Layout(0x10, "ld", Load, _DMA, ("fill", None)),
    Layout(0x11, "st", Store, _DMA, (None, "saturate")),
    Layout(0x20, "gemm", Gemm, _GEMM, ("accumulate", None)),
    Layout(0x30, "vec", Vec, _VEC),
)

LAYOUT_OF_KIND: dict[type[Instruction], Layout] = {layout.kind: layout for layout in LAYOUTS}
LAYOUT_OF_OPCODE: dict[int, Layout] = {layout.opcode: layout for layout in LAYOUTS}


def layout_of(instruction: Instruction) -> Layout:
    """Return the row of the field table that describes `instruction`."""
    return LAYOUT_OF_KIND[type(instruction)]


def engine_of(instruction: Instruction) -> Engine | None:
    """Return the engine that executes `instruction`, or None for the dispatcher (FENCE, HALT)."""
    match instruction:
        case Load():
            return Engine.LD
        case Store():
            return Engine.ST
        case Gemm():
            return Engine.GE
        case Vec() | SetB():
            return Engine.VE
        case Sync(engine=engine) | Mark(engine=engine):
            return engine
        case _:
            return None
