"""The reference machine: runs programs with numpy, in stream order or in another legal order.

Owns dispatch, engine queues, semaphores, fuel and the faulted state. Does not own arithmetic
(`farm.ea.execute`) or static rules (`farm.ea.checks`). It has no notion of time.

Invariant: a run either does everything up to HALT or stops at one typed fault; after a fault
nothing runs until `Machine.reset`. A correct program (`farm.ea.verify`) gives the same bits for
every `chaos_seed`.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from farm.ea.access import row_accesses
from farm.ea.checks import instruction_problems
from farm.ea.config import MachineConfig
from farm.ea.execute import Memory, Window, execute
from farm.ea.faults import Fault, Finding, Problem
from farm.ea.isa import Engine, Gemm, Halt, Instruction, Mark, Store, engine_of
from farm.ea.problems import (
    never_written,
    no_halt,
    no_token,
    out_of_fuel,
    second_user,
    too_many_tokens,
)
from farm.ea.program import Arg, Program
from farm.errors import InvalidArguments

DEFAULT_FUEL = 1 << 32


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run did.

    Parameters
    ----------
    instructions
        Executed, HALT included.
    fuel
        Used up: one an instruction, and one a row that it touches.
    macs
        Multiply-accumulates of GEMMs, padding included.
    marks
        Engine and tag of each MARK, in the order executed.
    """

    instructions: int
    fuel: int
    macs: int
    marks: tuple[tuple[Engine, int], ...]


class Machine:
    """One accelerator.

    Parameters
    ----------
    config
        Its numbers; it runs programs for no other configuration.
    """

    def __init__(self, config: MachineConfig) -> None:
        self.config = config
        self._memory = Memory(config)
        self._fault: Finding | None = None

    @property
    def fault(self) -> Finding | None:
        """The fault that stopped it, None if it can run."""
        return self._fault

    def reset(self) -> None:
        """Clear the fault. Memory needs no clearing: no program can read what it did not write."""
        self._fault = None

    def run(
        self,
        program: Program,
        buffers: Sequence[NDArray[Any]],
        *,
        fuel: int = DEFAULT_FUEL,
        chaos_seed: int | None = None,
    ) -> RunReport:
        """Run `program` to its HALT.

        Parameters
        ----------
        buffers
            One C-contiguous array an argument, little-endian, at least as long as the program
            says; those stored to are written in place.
        fuel
            Stop with a fault before using more (see `RunReport.fuel`).
        chaos_seed
            None runs in stream order; a number runs in a legal order drawn from it, where engines
            overtake each other as far as queues and semaphores let them.

        Raises
        ------
        DeviceFault
            The program faulted, now or earlier: correct it and reset. ``details`` has the facts.
        InvalidArguments
            The buffers do not fit; the machine is unchanged.
        """
        if self._fault is not None:
            self._stop(self._fault, " (earlier)")
        if program.config != self.config:
            what = f"the program is for {program.config.name} ({program.config.config_id})"
            self._stop(Problem(Fault.VERSION, what).at(program, 0))
        windows = windows_of(program.args, stored_args(program), buffers)
        self._memory.forget()
        run = _Run(program, self._memory, windows, fuel)
        try:
            if chaos_seed is None:
                run.in_order()
            else:
                run.out_of_order(random.Random(chaos_seed))
        except _Stopped as stopped:
            self._fault = stopped.finding
        if self._fault is not None:
            self._stop(self._fault)
        return RunReport(run.instructions, run.fuel_used, run.macs, tuple(run.marks))

    def _stop(self, finding: Finding, note: str = "") -> NoReturn:
        self._fault = finding
        raise finding.device_fault(f"{self.config.name}{note}")


class _Stopped(Exception):
    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


class _Run:
    """The state of one run besides memory."""

    def __init__(self, program: Program, memory: Memory, windows: list[Window], fuel: int) -> None:
        self._program = program
        self._memory = memory
        self._windows = windows
        self._lengths = [len(window) for window in windows]
        self._fuel = fuel
        self._counts: Counter[int] = Counter()
        self._producer: dict[int, Engine] = {}
        self._consumer: dict[int, Engine] = {}
        self.instructions = 0
        self.fuel_used = 0
        self.macs = 0
        self.marks: list[tuple[Engine, int]] = []

    def in_order(self) -> None:
        """Execute in stream order."""
        for pc, instruction in enumerate(self._program.instructions):
            self._execute(pc)
            if isinstance(instruction, Halt):
                return
        self._no_halt()

    def out_of_order(self, rng: random.Random) -> None:
        """Execute with one queue an engine, an engine picked at random running for a while."""
        queues: dict[Engine, deque[int]] = {engine: deque() for engine in Engine}
        pc = 0
        while True:
            pc, halted = self._dispatch(pc, queues)
            ready = [engine for engine, queue in queues.items() if queue and self._ready(queue[0])]
            if ready:
                queue = queues[rng.choice(ready)]
                for _ in range(rng.choice((1, 2, 8, 32))):
                    if not queue or not self._ready(queue[0]):
                        break
                    self._execute(queue.popleft())
            elif any(queues.values()):
                self._await(min(queue[0] for queue in queues.values() if queue))
            elif halted:
                return
            elif pc >= len(self._program.instructions):
                self._no_halt()

    def _dispatch(self, pc: int, queues: dict[Engine, deque[int]]) -> tuple[int, bool]:
        """Fill the queues in stream order; return the next pc and whether HALT was reached."""
        instructions = self._program.instructions
        while pc < len(instructions):
            engine = engine_of(instructions[pc])
            if engine is None:
                if any(queues.values()):
                    break  # FENCE and HALT hold the dispatcher until all engines are idle
                self._execute(pc)
                if isinstance(instructions[pc], Halt):
                    return pc + 1, True
            elif len(queues[engine]) >= self._program.config.queue_depth:
                break
            else:
                queues[engine].append(pc)
            pc += 1
        return pc, False

    def _ready(self, pc: int) -> bool:
        waits = Counter(self._program.instructions[pc].waits)
        return all(self._counts[number] >= count for number, count in waits.items())

    def _fail(self, pc: int, problem: Problem) -> NoReturn:
        raise _Stopped(problem.at(self._program, pc))

    def _no_halt(self) -> NoReturn:
        self._fail(len(self._program.instructions), no_halt())

    def _execute(self, pc: int) -> None:
        instruction = self._program.instructions[pc]
        problems = instruction_problems(instruction, self._program.config, self._lengths)
        if problems:
            self._fail(pc, problems[0])
        self._burn(pc, instruction)
        self._await(pc)
        self._touch(pc, instruction)
        execute(instruction, self._memory, self._windows)
        self._post(pc)
        self.instructions += 1
        if isinstance(instruction, Gemm):
            tiles = instruction.nt * instruction.kt
            self.macs += tiles * instruction.m * self._program.config.dim**2
        elif isinstance(instruction, Mark):
            self.marks.append((instruction.engine, instruction.tag))

    def _burn(self, pc: int, instruction: Instruction) -> None:
        rows = sum(each.inner * each.outer for each in row_accesses(instruction, self._config))
        self.fuel_used += 1 + rows
        if self.fuel_used > self._fuel:
            self._fail(pc, out_of_fuel(self.fuel_used, self._fuel))

    @property
    def _config(self) -> MachineConfig:
        return self._program.config

    def _await(self, pc: int) -> None:
        """Take the tokens that `pc` awaits; there is nobody left to post a missing one."""
        instruction = self._program.instructions[pc]
        for number in instruction.waits:
            self._sole(pc, number, self._consumer, "awaited")
            if self._counts[number] == 0:
                self._fail(pc, no_token(number))
            self._counts[number] -= 1

    def _post(self, pc: int) -> None:
        limit = self._config.semaphore_max
        for number in self._program.instructions[pc].posts:
            self._sole(pc, number, self._producer, "posted")
            self._counts[number] += 1
            count = self._counts[number]
            if count > limit:
                self._fail(pc, too_many_tokens(number, count, limit))

    def _sole(self, pc: int, number: int, users: dict[int, Engine], deed: str) -> None:
        engine = engine_of(self._program.instructions[pc])
        assert engine is not None
        first = users.setdefault(number, engine)
        if first is not engine:
            self._fail(pc, second_user(number, deed, engine, first))

    def _touch(self, pc: int, instruction: Instruction) -> None:
        """Check that what is read was written, note what is written."""
        for access in row_accesses(instruction, self._config):
            written = self._memory.written[access.space]
            problem = never_written(access, written)
            if problem is not None:
                self._fail(pc, problem)
            if access.write:
                written[access.index] = True


def stored_args(program: Program) -> frozenset[int]:
    """Return the arguments that a program stores to."""
    return frozenset(each.arg for each in program.instructions if isinstance(each, Store))


def windows_of(
    args: Sequence[Arg], stored: Collection[int], buffers: Sequence[NDArray[Any]]
) -> list[Window]:
    """Check a program's buffers and return their bytes.

    Raises
    ------
    InvalidArguments
        They are too few, too short, not plain memory, or stored to and shared.
    """
    if len(buffers) != len(args):
        raise InvalidArguments(
            f"buffers: {len(buffers)} given, the program has {len(args)}; pass one each"
        )
    for index, (arg, buffer) in enumerate(zip(args, buffers, strict=True)):
        plain = buffer.flags.c_contiguous and not buffer.dtype.hasobject
        if not plain or buffer.dtype.newbyteorder("<") != buffer.dtype:
            raise InvalidArguments(
                f"argument {arg.name}: not contiguous little-endian memory ({buffer.dtype}); "
                "pass a copy that is"
            )
        if buffer.nbytes < arg.min_bytes:
            raise InvalidArguments(
                f"argument {arg.name}: too short ({buffer.nbytes} bytes); "
                f"pass at least {arg.min_bytes}"
            )
        if index in stored:
            _check_target(arg.name, index, buffer, buffers)
    return [buffer.reshape(-1).view(np.uint8) for buffer in buffers]


def _check_target(
    name: str, index: int, buffer: NDArray[Any], buffers: Sequence[NDArray[Any]]
) -> None:
    if not buffer.flags.writeable:
        raise InvalidArguments(f"argument {name}: read-only but stored to; pass a writable array")
    for other, each in enumerate(buffers):
        if other != index and np.may_share_memory(buffer, each):
            raise InvalidArguments(
                f"argument {name}: stored to, and shares memory with argument {other}; copy one"
            )
