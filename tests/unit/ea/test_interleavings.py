"""The hazard checker against the machine: what it passes gives the same bits in every order."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from farm.ea.builder import ProgramBuilder, acc, spad
from farm.ea.checks import instruction_problems
from farm.ea.config import EA8
from farm.ea.emulator import Machine
from farm.ea.faults import Fault
from farm.ea.isa import Engine, Fence, Gemm, Instruction, Load, Store, Vec, engine_of
from farm.ea.program import Program
from farm.ea.verify import verify

TINY = dataclasses.replace(EA8, name="tiny", dim=4, spad_rows=64, acc_rows=96)
DRAM_BYTES = 400
PAIRS = [(p, c) for p in Engine for c in Engine if p is not c]


def random_body(rng: random.Random, random_instruction) -> list[Instruction]:
    """Return legal instructions, some of them ordered by tokens."""
    body: list[Instruction] = []
    owed: dict[Engine, list[int]] = {engine: [] for engine in Engine}
    while len(body) < 25:
        made = random_instruction(rng.choice([Load, Store, Gemm, Vec]), rng)
        if instruction_problems(made, TINY, [DRAM_BYTES]):
            continue
        engine = engine_of(made)
        waits, owed[engine] = owed[engine][:2], owed[engine][2:]
        posts = []
        for consumer in rng.sample(list(Engine), 2):
            if consumer is not engine:
                posts.append(PAIRS.index((engine, consumer)))
                owed[consumer].append(posts[-1])
        body.append(dataclasses.replace(made, waits=tuple(waits), posts=tuple(posts)))
    return body


def framed(body: list[Instruction]) -> Program:
    """Set all rows before `body`, store them all after it."""
    b = ProgramBuilder(TINY)
    b.arg("dram", DRAM_BYTES)
    seed, spad_out, acc_out = b.arg("seed"), b.arg("spad"), b.arg("acc")
    b.load(spad(0), seed, rows=TINY.spad_rows, cols=4, dstride=4)
    b.load(acc(0), seed, rows=TINY.acc_rows, cols=4, dstride=16, widen=True)
    b.fence()
    for instruction in body:
        b.emit(instruction)
    b.fence()
    b.store(spad_out, spad(0), rows=TINY.spad_rows, cols=4, dstride=4)
    b.store(acc_out, acc(0), rows=TINY.acc_rows, cols=4, dstride=16)
    return b.build()


def fenced(body: list[Instruction]) -> tuple[Program, int]:
    """Put a fence before each instruction that is not ordered otherwise."""
    fences = 0
    while True:
        program = framed(body)
        findings = verify(program)
        if not findings:
            return program, fences
        assert {each.fault for each in findings} == {Fault.HAZARD}
        body = [*body]
        body.insert(findings[0].pc - 3, Fence())
        fences += 1


def outcome(program: Program, seed: int, chaos_seed: int | None) -> list[bytes]:
    rng = np.random.default_rng(seed)
    sizes = [DRAM_BYTES, 4096, 4096, 4096]
    buffers = [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]
    Machine(TINY).run(program, buffers, chaos_seed=chaos_seed)
    return [buffer.tobytes() for buffer in buffers]


@pytest.mark.parametrize("seed", range(12))
def test_program_that_passes_gives_the_same_bits_in_every_order(seed, random_instruction):
    program, fences = fenced(random_body(random.Random(seed), random_instruction))
    assert fences < 25  # tokens order some of it
    reference = outcome(program, seed, None)
    for chaos_seed in range(6):
        assert outcome(program, seed, chaos_seed) == reference


def test_programs_that_do_not_pass_mostly_differ_in_some_order(random_instruction):
    differ = 0
    for seed in range(12):
        program = framed(random_body(random.Random(seed), random_instruction))
        assert verify(program)
        results = [outcome(program, seed, chaos_seed) for chaos_seed in (None, 0, 1, 2, 3)]
        differ += any(result != results[0] for result in results)
    assert differ >= 6
