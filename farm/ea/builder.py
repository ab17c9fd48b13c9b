"""Writing programs one instruction at a time, for code generators.

Owns operands and `ProgramBuilder`. Does not own whether the result is correct
(`farm.ea.verify`).

Invariant: the builder adds nothing to what it is told but SETB for constants and the final HALT.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from farm.ea.config import MachineConfig
from farm.ea.isa import (
    REGISTERS,
    Engine,
    Fence,
    Gemm,
    Halt,
    Instruction,
    Load,
    Mark,
    SetB,
    Source,
    Space,
    Store,
    Sync,
    Transfer,
    Vec,
    VecOp,
)
from farm.ea.program import Arg, Program, needed_bytes
from farm.errors import InvalidProgram


@dataclass(frozen=True, slots=True)
class Row:
    """A row of an on-chip memory, as an operand."""

    space: Space
    index: int

    def __add__(self, rows: int) -> Row:
        """Return the row `rows` further on."""
        return Row(self.space, self.index + rows)


@dataclass(frozen=True, slots=True)
class Imm:
    """An immediate operand, -32768 to 32767."""

    value: int


@dataclass(frozen=True, slots=True)
class Reg:
    """A broadcast register (for paired operations, it and the next one)."""

    index: int


Operand = Row | Imm | Reg


def spad(index: int) -> Row:
    """Return scratchpad row `index`."""
    return Row(Space.SPAD, index)


def acc(index: int) -> Row:
    """Return accumulator row `index`."""
    return Row(Space.ACC, index)


Semaphores = Iterable[int]


class ProgramBuilder:
    """Collects a program one instruction at a time.

    Arguments and semaphores are declared by name and used by number; ``wait`` and ``post`` of each
    method take up to two semaphore numbers. Nothing is checked until `farm.ea.verify`.
    """

    def __init__(self, config: MachineConfig) -> None:
        self.config = config
        self._args: list[Arg] = []
        self._semaphores: list[str] = []
        self._instructions: list[Instruction] = []
        self._constants: dict[tuple[int, ...], int] = {}
        self._next_register = 0

    def __len__(self) -> int:
        return len(self._instructions)

    def arg(self, name: str, min_bytes: int = 0) -> int:
        """Declare the next argument; `build` raises its length to what the program touches."""
        self._args.append(Arg(name, min_bytes))
        return len(self._args) - 1

    def semaphore(self, name: str) -> int:
        """Declare the next semaphore."""
        self._semaphores.append(name)
        return len(self._semaphores) - 1

    def emit(self, instruction: Instruction) -> None:
        """Append `instruction` as it is."""
        self._instructions.append(instruction)

    def load(
        self,
        to: Row,
        arg: int,
        *,
        rows: int,
        cols: int,
        dstride: int,
        offset: int = 0,
        lstride: int = 0,
        widen: bool = False,
        wait: Semaphores = (),
        post: Semaphores = (),
    ) -> None:
        """Load `rows` x `cols` elements; `offset` and `dstride` in bytes, `lstride` in rows."""
        self.emit(
            Load(
                space=_transfer(to, widen),
                row=to.index,
                rows=rows,
                cols=cols,
                arg=arg,
                lstride=lstride,
                dstride=dstride,
                offset=offset,
                waits=tuple(wait),
                posts=tuple(post),
            )
        )

    def fill(
        self,
        to: Row,
        *,
        rows: int,
        cols: int,
        lstride: int = 0,
        wait: Semaphores = (),
        post: Semaphores = (),
    ) -> None:
        """Write zeros, by the load engine, to the rows that such a load would write."""
        self.emit(
            Load(
                space=_transfer(to, False),
                row=to.index,
                rows=rows,
                cols=cols,
                lstride=lstride,
                fill=True,
                waits=tuple(wait),
                posts=tuple(post),
            )
        )

    def store(
        self,
        arg: int,
        source: Row,
        *,
        rows: int,
        cols: int,
        dstride: int,
        offset: int = 0,
        lstride: int = 0,
        saturate: bool = False,
        wait: Semaphores = (),
        post: Semaphores = (),
    ) -> None:
        """Store `rows` x `cols` elements; `saturate` writes int32 rows as int8."""
        self.emit(
            Store(
                space=_transfer(source, False),
                arg=arg,
                row=source.index,
                rows=rows,
                cols=cols,
                lstride=lstride,
                dstride=dstride,
                offset=offset,
                saturate=saturate,
                waits=tuple(wait),
                posts=tuple(post),
            )
        )

    def gemm(
        self,
        c: Row,
        a: Row,
        w: Row,
        *,
        m: int,
        nt: int = 1,
        kt: int = 1,
        aks: int = 0,
        cns: int = 0,
        astep: int = 1,
        accumulate: bool = False,
        wait: Semaphores = (),
        post: Semaphores = (),
    ) -> None:
        """Multiply `m` rows by `kt` x `nt` weight tiles; strides in rows."""
        self.emit(
            Gemm(
                m=m,
                nt=nt,
                kt=kt,
                a=a.index,
                w=w.index,
                c=c.index,
                aks=aks,
                cns=cns,
                astep=astep,
                accumulate=accumulate,
                waits=tuple(wait),
                posts=tuple(post),
            )
        )

    def vec(
        self,
        op: VecOp,
        dst: Row,
        s1: Row | None,
        s2: Operand | None = None,
        *,
        rows: int,
        dinc: int = 1,
        sinc: int = 1,
        s2inc: int = 0,
        zero_point: int = 0,
        wait: Semaphores = (),
        post: Semaphores = (),
    ) -> None:
        """Apply `op` to `rows` rows; `s1` is None for SPLAT only, `s2` for unary ones only."""
        source, index, imm = _second(s2)
        self.emit(
            Vec(
                op=op,
                rows=rows,
                dsp=dst.space,
                dst=dst.index,
                s1sp=Space.SPAD if s1 is None else s1.space,
                s1=0 if s1 is None else s1.index,
                source=source,
                s2=index,
                dinc=dinc,
                sinc=0 if s1 is None else sinc,
                s2inc=s2inc,
                imm=imm or zero_point,
                waits=tuple(wait),
                posts=tuple(post),
            )
        )

    def constant(self, value: int) -> Operand:
        """Return an operand with the int32 `value` in all lanes, to be used at once.

        A small value is an immediate. Another takes a register, set by a SETB emitted here if no
        register still holds it; registers are reused round robin, so the operand is good until
        15 further register constants are made.
        """
        return Imm(value) if -32768 <= value <= 32767 else self._registers((value,))

    def constant_pair(self, first: int, second: int) -> Reg:
        """Return two neighbouring registers: low and high of CLAMP, multiplier and shift of RQ."""
        return self._registers((first, second))

    def _registers(self, values: tuple[int, ...]) -> Reg:
        if values in self._constants:
            return Reg(self._constants[values])
        if self._next_register + len(values) > REGISTERS:
            self._next_register = 0
        start = self._next_register
        self._next_register = start + len(values)
        taken = range(start, self._next_register)
        self._constants = {
            held: at
            for held, at in self._constants.items()
            if not any(at <= register < at + len(held) for register in taken)
        }
        for register, value in zip(taken, values, strict=True):
            self.emit(SetB(reg=register, value=value))
        self._constants[values] = start
        return Reg(start)

    def sync(self, engine: Engine, *, wait: Semaphores = (), post: Semaphores = ()) -> None:
        """Make `engine` wait and post without other work."""
        self.emit(Sync(engine=engine, waits=tuple(wait), posts=tuple(post)))

    def mark(self, engine: Engine, tag: int) -> None:
        """Make `engine` report `tag`."""
        self.emit(Mark(engine=engine, tag=tag))

    def fence(self) -> None:
        """Order everything before it ahead of everything after it."""
        self.emit(Fence())

    def build(self) -> Program:
        """Return the program so far, ended by a HALT, argument lengths raised to what it touches."""
        needed = needed_bytes(self._instructions, len(self._args))
        args = tuple(
            dataclasses.replace(arg, min_bytes=max(arg.min_bytes, size))
            for arg, size in zip(self._args, needed, strict=True)
        )
        return Program(self.config, args, tuple(self._semaphores), (*self._instructions, Halt()))


def _transfer(row: Row, widen: bool) -> Transfer:
    if row.space is Space.SPAD:
        return Transfer.SPAD_I8
    return Transfer.ACC_I8 if widen else Transfer.ACC_I32


def _second(operand: Operand | None) -> tuple[Source, int, int]:
    match operand:
        case None:
            return Source.ROW, 0, 0
        case Row(space=Space.ACC, index=index):
            return Source.ROW, index, 0
        case Imm(value=value):
            return Source.IMM, 0, value
        case Reg(index=index):
            return Source.REG, index, 0
        case _:
            raise InvalidProgram(
                "vec: second operand is a scratchpad row; move it to the accumulator first"
            )
