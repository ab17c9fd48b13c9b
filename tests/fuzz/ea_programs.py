"""Random programs for `ea`, and holding the compiled machine against the plain one.

Run as a program (``make fuzz-ea PROGRAMS=100000``) it is the campaign: as many random valid programs,
and as many of them damaged; prints what it saw, and the seed of the first disagreement.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np

from farm.ea.access import dram_access, row_accesses
from farm.ea.checks import instruction_problems
from farm.ea.config import CONFIGS, MachineConfig
from farm.ea.emulator import Machine
from farm.ea.encoding import WORD_BYTES, decode_at, encode
from farm.ea.execute import Memory
from farm.ea.isa import (
    MAX_SEMAPHORES,
    PAIRED,
    UNARY,
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
    engine_of,
)
from farm.ea.program import Arg, Program
from farm.ea.timing import simulate
from farm.errors import DeviceFault, InvalidProgram
from farm.runtime.ea.machine import CompiledMachine
from farm.runtime.ea.program import LoadedProgram

ARG_BYTES = (1024, 4096, 300)
TRIES = 20


def random_program(rng: random.Random, config: MachineConfig, length: int = 16) -> Program:
    """Return a program that runs to its HALT: rows are written before they are read.

    Every token is posted before it is awaited, by one engine for one engine.
    """
    instructions: list[Instruction] = []
    memory, semaphores = Memory(config), _Semaphores(rng)
    for _ in range(length):
        made = _fitting(rng, config, memory)
        if made is not None:
            for access in row_accesses(made, config):
                if access.write:
                    memory.written[access.space][access.index] = True
            instructions.append(semaphores.attach(made))
    args = tuple(Arg(f"arg{index}", size) for index, size in enumerate(ARG_BYTES))
    names = tuple(f"sem{index}" for index in range(MAX_SEMAPHORES))
    return Program(config, args, names, (*instructions, Halt()))


def damaged(rng: random.Random, program: Program) -> Program | None:
    """Return a program with something changed, or None if it has become no program at all."""
    instructions = list(program.instructions)
    pc = rng.randrange(len(instructions))
    match rng.randrange(4):
        case 0:
            word = bytearray(encode(instructions[pc]))
            for _ in range(rng.randint(1, 3)):
                bit = rng.randrange(8 * WORD_BYTES)
                word[bit // 8] ^= 1 << bit % 8
            try:
                instructions[pc] = decode_at(pc, bytes(word))
            except InvalidProgram:
                return None
        case 1:
            del instructions[pc]
        case 2:
            other = rng.randrange(len(instructions))
            instructions[pc], instructions[other] = instructions[other], instructions[pc]
        case _:
            tokens = tuple(rng.randrange(MAX_SEMAPHORES) for _ in range(rng.randint(1, 2)))
            if engine_of(instructions[pc]) is None:
                return None
            instructions[pc] = dataclasses.replace(
                instructions[pc], **{rng.choice(("waits", "posts")): tokens}
            )
    return dataclasses.replace(program, instructions=tuple(instructions))


@dataclass
class _Semaphores:
    rng: random.Random

    def __post_init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.users: dict[int, tuple[Engine, Engine]] = {}

    def attach(self, instruction: Instruction) -> Instruction:
        engine = engine_of(instruction)
        if engine is None:
            return instruction
        waits = [number for number, count in self.counts.items() if count]
        waits = [number for number in waits if self.users[number][1] is engine]
        waits = self.rng.sample(waits, min(len(waits), self.rng.randint(0, 2)))
        posts = [number for number, users in self.users.items() if users[0] is engine]
        if len(self.users) < MAX_SEMAPHORES:
            number = len(self.users)
            self.users[number] = (engine, self.rng.choice(list(Engine)))
            posts.append(number)
        posts = self.rng.sample(posts, min(len(posts), self.rng.randint(0, 2)))
        self.counts.subtract(waits)
        self.counts.update(posts)
        return dataclasses.replace(instruction, waits=tuple(waits), posts=tuple(posts))


def _fitting(rng: random.Random, config: MachineConfig, memory: Memory) -> Instruction | None:
    makers = (_load, _load, _store, _gemm, _vec, _vec, _other)
    for _ in range(TRIES):
        made = rng.choice(makers)(rng, config)
        if not instruction_problems(made, config, ARG_BYTES) and all(
            access.write or memory.written[access.space][access.index].all()
            for access in row_accesses(made, config)
        ):
            return made
    return None


def _near(rng: random.Random, limit: int) -> int:
    """Return a row, most often a low one, so that instructions meet."""
    return rng.randrange(limit) if rng.random() < 0.1 else rng.randrange(min(limit, 12))


def _load(rng: random.Random, config: MachineConfig) -> Load:
    space, fill = rng.choice(list(Transfer)), rng.random() < 0.3
    fill = fill and space is not Transfer.ACC_I8
    rows = rng.choice((1, 2, 5, 40, 80))
    limit = config.spad_rows if space is Transfer.SPAD_I8 else config.acc_rows
    step = 4 if space is Transfer.ACC_I32 else 1
    return Load(
        space=space,
        arg=0 if fill else rng.randrange(3),
        row=_near(rng, limit),
        rows=rows,
        cols=rng.choice((1, config.dim, config.dim + 3, 3 * config.dim, rng.randint(1, 70))),
        lstride=rows + rng.randrange(3),
        dstride=0 if fill else step * rng.randrange(40),
        offset=0 if fill else step * rng.randrange(60),
        fill=fill,
    )


def _store(rng: random.Random, config: MachineConfig) -> Store:
    space = rng.choice([Transfer.SPAD_I8, Transfer.ACC_I32])
    cols, saturate = rng.choice((1, config.dim, config.dim + 5)), rng.random() < 0.5
    limit = config.spad_rows if space is Transfer.SPAD_I8 else config.acc_rows
    width = 4 if space is Transfer.ACC_I32 and not saturate else 1
    return Store(
        space=space,
        arg=rng.randrange(3),
        row=_near(rng, limit),
        rows=rng.randint(1, 9),
        cols=cols,
        lstride=rng.randrange(20),
        dstride=width * (cols + rng.randrange(5)),
        offset=width * rng.randrange(20),
        saturate=saturate and space is Transfer.ACC_I32,
    )


def _gemm(rng: random.Random, config: MachineConfig) -> Gemm:
    m = rng.choice((1, 2, 3, 4, 5, 8, 13))
    return Gemm(
        m=m,
        nt=rng.randint(1, 3),
        kt=rng.randint(1, 3),
        a=_near(rng, config.spad_rows),
        w=_near(rng, config.spad_rows),
        c=_near(rng, config.acc_rows),
        aks=rng.randrange(12),
        cns=m + rng.randrange(3),
        astep=rng.randrange(4),
        accumulate=rng.random() < 0.5,
    )


def _vec(rng: random.Random, config: MachineConfig) -> Vec:
    op, source = rng.choice(list(VecOp)), rng.choice(list(Source))
    if op in UNARY or op is VecOp.LUT8:
        source = Source.ROW
    elif op is VecOp.SPLAT or (op in PAIRED and source is Source.IMM):
        source = Source.REG
    second = source is Source.ROW and op not in UNARY
    dsp, s1sp = rng.choice(list(Space)), rng.choice(list(Space))
    if op is VecOp.WIDEN:
        dsp, s1sp = Space.ACC, Space.SPAD
    splat = op is VecOp.SPLAT
    limits = {Space.SPAD: config.spad_rows, Space.ACC: config.acc_rows}
    return Vec(
        op=op,
        rows=rng.choice((1, 2, 3, 9)),
        dsp=dsp,
        dst=_near(rng, limits[dsp]),
        s1sp=Space.SPAD if splat else s1sp,
        s1=0 if splat else _near(rng, limits[s1sp]),
        source=source,
        s2=rng.randrange(14) if second or source is Source.REG else 0,
        dinc=rng.randrange(4),
        sinc=0 if splat else rng.randrange(4),
        s2inc=rng.randrange(2) if second and op is not VecOp.LUT8 else 0,
        imm=rng.randint(-(1 << 15), (1 << 15) - 1) if source is Source.IMM or op is VecOp.RQ else 0,
    )


def _other(rng: random.Random, config: MachineConfig) -> Instruction:
    del config
    engine = rng.choice(list(Engine))
    return rng.choice(
        (
            SetB(reg=rng.randrange(16), value=rng.randint(-(1 << 31), (1 << 31) - 1)),
            SetB(reg=rng.randrange(16), value=rng.randrange(64)),
            Sync(engine=engine),
            Mark(engine=engine, tag=rng.randrange(1 << 16)),
            Fence(),
        )
    )


def buffers(seed: int) -> list[np.ndarray]:
    """Return arguments with every byte value, the first and the last ends of the range more often."""
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(0, 256, size, dtype=np.uint8) for size in ARG_BYTES]
    for array in arrays:
        array[rng.random(len(array)) < 0.2] = rng.choice([0, 127, 128, 255])
    return arrays


def disagreement(
    program: Program, seed: int, plain: Machine, compiled: CompiledMachine, fuel: int
) -> tuple[str | None, str]:
    """Run a program on both machines; return where they differ, if they do, and how it ended."""
    ends, results = [], []
    loaded = LoadedProgram.of(program)
    for machine, what in ((plain, program), (compiled, loaded)):
        arrays = buffers(seed)
        machine.reset()
        try:
            report = machine.run(what, arrays, fuel=fuel)  # type: ignore[arg-type]
            ends.append(("ok", report.instructions, report.fuel))
        except DeviceFault as fault:
            ends.append((str(fault.details["fault"]), str(fault), 0))
        results.append(arrays)
    if ends[0] != ends[1]:
        return f"ends: {ends}", ends[0][0]
    for index, (a, b) in enumerate(zip(*results, strict=True)):
        if not np.array_equal(a, b):
            return f"argument {index}, bytes {np.flatnonzero(a != b)[:8]}", ends[0][0]
    if ends[0][0] == "ok":
        return _other_times(program, loaded, compiled), "ok"
    return None, ends[0][0]


def _other_times(program: Program, loaded: LoadedProgram, compiled: CompiledMachine) -> str | None:
    expected, seen = simulate(program), compiled.time(loaded, spans=True)
    for field in dataclasses.fields(expected):
        a, b = getattr(expected, field.name), getattr(seen, field.name)
        if a != b:
            return f"{field.name}: {a} and {b}"
    return None


def moves_data(program: Program) -> bool:
    """Tell whether a program stores anything."""
    return any(isinstance(each, Store) and dram_access(each) for each in program.instructions)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1000, help="valid ones, and damaged ones")
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    options = parser.parse_args()
    machines = [(Machine(config), CompiledMachine(config)) for config in CONFIGS.values()]
    ends: dict[str, Counter[str]] = {"valid": Counter(), "damaged": Counter()}
    begin = time.monotonic()
    for seed in range(options.seed, options.seed + options.programs):
        rng = random.Random(seed)
        plain, compiled = machines[seed % len(machines)]
        program = random_program(rng, plain.config)
        broken = None
        while broken is None:
            broken = damaged(rng, program)
        for kind, each in (("valid", program), ("damaged", broken)):
            fuel = rng.randrange(400) if kind == "damaged" and rng.random() < 0.1 else 1 << 32
            difference, end = disagreement(each, seed, plain, compiled, fuel)
            ends[kind][end] += 1
            if difference is not None:
                print(f"seed {seed}, {kind}, {plain.config.name}: {difference}", file=sys.stderr)
                return 1
    took = round(time.monotonic() - begin, 1)
    print(json.dumps({"programs": options.programs, "seconds": took, **ends, "differ": 0}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
