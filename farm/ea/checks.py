"""What one instruction may be, whatever stands around it.

Owns field ranges, the rules between fields, bounds of rows and bytes, and alignment. Does not own
rules between instructions (`farm.ea.verify`, `farm.ea.hazards`). The verifier applies these to a
whole program ahead, the emulator to each instruction as it starts.

Invariant: an instruction without problems can be encoded and executed without leaving the memories.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from farm.ea.access import dram_access, element_bytes, row_accesses
from farm.ea.config import MachineConfig
from farm.ea.faults import Fault, Problem
from farm.ea.isa import (
    NO_SEMAPHORE,
    PAIRED,
    REGISTERS,
    UNARY,
    Fence,
    Gemm,
    Halt,
    Instruction,
    Load,
    Source,
    Space,
    Store,
    Transfer,
    Vec,
    VecOp,
    layout_of,
)


def instruction_problems(
    instruction: Instruction, config: MachineConfig, arg_bytes: Sequence[int]
) -> list[Problem]:
    """Return every rule that `instruction` breaks by itself.

    Parameters
    ----------
    arg_bytes
        Length of each argument's window.
    """
    problems = list(_field_problems(instruction))
    if problems:
        return problems  # what follows relies on fields that fit
    match instruction:
        case Load() | Store():
            problems += _dma_problems(instruction, config)
        case Gemm():
            problems += _gemm_problems(instruction)
        case Vec():
            problems += _vec_problems(instruction)
        case _:
            return problems
    return problems or [
        *_row_problems(instruction, config),
        *_dram_problems(instruction, arg_bytes),
    ]


def _bad(what: str, value: int, low: int, high: int) -> Problem:
    return Problem(
        Fault.BAD_FIELD, f"{what} is {value}, allowed {low} to {high}", (value, value + 1), high + 1
    )


def _field_problems(instruction: Instruction) -> Iterator[Problem]:
    layout = layout_of(instruction)
    for field in layout.fields:
        value = getattr(instruction, field.name)
        if not field.legal(value):
            yield _bad(field.name, value, field.low, field.high)
    dispatched = isinstance(instruction, Fence | Halt)
    for word, numbers in (("wait", instruction.waits), ("post", instruction.posts)):
        if len(numbers) > (0 if dispatched else 2):
            yield _bad(f"number of {word}s", len(numbers), 0, 0 if dispatched else 2)
        for number in numbers:
            if not 0 <= number < NO_SEMAPHORE:
                yield _bad(f"{word} semaphore", number, 0, NO_SEMAPHORE - 1)


def _rule(broken: bool, what: str, fault: Fault = Fault.BAD_FIELD) -> Iterator[Problem]:
    if broken:
        yield Problem(fault, what)


def _at_least_one(**counts: int) -> Iterator[Problem]:
    for name, value in counts.items():
        yield from _rule(value < 1, f"{name} is {value}; it must be at least 1")


def _dma_problems(dma: Load | Store, config: MachineConfig) -> Iterator[Problem]:
    yield from _at_least_one(rows=dma.rows, cols=dma.cols)
    if isinstance(dma, Load):
        yield from _load_problems(dma, config)
    else:
        yield from _store_problems(dma)
    if element_bytes(dma) == 4:
        stride = dma.dstride if dma.rows > 1 else 0
        for name, value in (("offset", dma.offset), ("dstride", stride)):
            if value % 4:
                what = f"{name} {value} is not a multiple of 4"
                yield Problem(Fault.MISALIGNED, what, (value, value + 4), 4)


def _load_problems(load: Load, config: MachineConfig) -> Iterator[Problem]:
    apart = config.blocks(load.cols) <= 1 or load.lstride >= load.rows
    yield from _rule(
        not apart, f"blocks overlap: lstride {load.lstride} is less than rows {load.rows}"
    )
    if load.fill:
        yield from _rule(
            bool(load.arg or load.offset or load.dstride),
            "a fill reads nothing; arg, offset and dstride must be 0",
        )
        yield from _rule(load.space is Transfer.ACC_I8, "a fill does not widen; use ACC_I32")


def _store_problems(store: Store) -> Iterator[Problem]:
    yield from _rule(store.space is Transfer.ACC_I8, "a store cannot widen; use ACC_I32")
    yield from _rule(
        store.saturate and store.space is not Transfer.ACC_I32, "only int32 rows can be saturated"
    )
    row_bytes = store.cols * element_bytes(store)
    yield from _rule(
        store.rows > 1 and store.dstride < row_bytes,
        f"rows overlap in DRAM: dstride {store.dstride} is less than the row's {row_bytes} bytes",
    )


def _gemm_problems(gemm: Gemm) -> Iterator[Problem]:
    yield from _at_least_one(m=gemm.m, nt=gemm.nt, kt=gemm.kt)
    yield from _rule(
        gemm.nt > 1 and gemm.cns < gemm.m,
        f"blocks of C overlap: cns {gemm.cns} is less than m {gemm.m}",
    )


def _vec_problems(vec: Vec) -> Iterator[Problem]:
    yield from _at_least_one(rows=vec.rows)
    row = vec.source is Source.ROW
    if vec.op is VecOp.SPLAT:
        yield from _rule(row, "splat takes an immediate or a register")
        yield from _rule(bool(vec.s1sp or vec.s1 or vec.sinc), "splat has no s1; leave it 0")
    if vec.op in UNARY:
        yield from _rule(not row or vec.s2 > 0 or vec.s2inc > 0, "this operation has no operand 2")
    if vec.op in PAIRED:
        yield from _rule(vec.source is Source.IMM, "a pair of operands cannot be an immediate")
    if vec.op is VecOp.LUT8:
        yield from _rule(not row or vec.s2inc > 0, "lut8 takes a table in rows, with s2inc 0")
    if vec.op is VecOp.WIDEN:
        wrong = vec.s1sp is not Space.SPAD or vec.dsp is not Space.ACC
        yield from _rule(wrong, "widen goes from the scratchpad to the accumulator")
    yield from _operand_problems(vec)


def _operand_problems(vec: Vec) -> Iterator[Problem]:
    source = vec.source
    yield from _rule(source is not Source.ROW and vec.s2inc > 0, "only rows can advance (s2inc)")
    yield from _rule(source is Source.IMM and vec.s2 > 0, "an immediate leaves s2 0")
    if source is Source.REG:
        last = REGISTERS - (2 if vec.op in PAIRED else 1)
        if vec.s2 > last:
            yield _bad("register", vec.s2, 0, last)
    used = source is Source.IMM or vec.op is VecOp.RQ
    yield from _rule(not used and vec.imm != 0, "this operation does not use imm; leave it 0")


_OUT_OF_BOUNDS = {Space.SPAD: Fault.SPAD_OOB, Space.ACC: Fault.ACC_OOB}


def _row_problems(instruction: Instruction, config: MachineConfig) -> Iterator[Problem]:
    limits = {Space.SPAD: config.spad_rows, Space.ACC: config.acc_rows}
    for access in row_accesses(instruction, config):
        limit = limits[access.space]
        if access.end > limit:
            name, span = access.space.name, (access.base, access.end)
            what = f"rows [{span[0]}:{span[1]}) of {name}, which has {limit}"
            yield Problem(_OUT_OF_BOUNDS[access.space], what, span, limit)


def _dram_problems(instruction: Instruction, arg_bytes: Sequence[int]) -> Iterator[Problem]:
    access = dram_access(instruction)
    if access is None:
        return
    limit = arg_bytes[access.arg] if access.arg < len(arg_bytes) else 0
    if access.end > limit:
        span = (access.offset, access.end)
        what = f"bytes [{span[0]}:{span[1]}) of argument {access.arg}, which has {limit}"
        yield Problem(Fault.DRAM_OOB, what, span, limit)
