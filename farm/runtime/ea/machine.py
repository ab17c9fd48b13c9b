"""The compiled machine: programs of one configuration at the speed of the host.

Owns compiling the machine (once for a configuration, CPU and compiler; kept in a cache folder), and
running programs on it. Does not own what programs mean: `farm.ea` is the reference.

Invariant: a run has the same effects and the same fault as `farm.ea.emulator.Machine` in stream
order, and the same cycles as `farm.ea.timing.simulate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from farm.ea.access import row_accesses
from farm.ea.checks import instruction_problems
from farm.ea.config import MachineConfig
from farm.ea.emulator import DEFAULT_FUEL, windows_of
from farm.ea.faults import Fault, Finding, Problem
from farm.ea.isa import Engine, Halt, engine_of
from farm.ea.problems import (
    never_written,
    no_halt,
    no_token,
    out_of_fuel,
    second_user,
    too_many_tokens,
)
from farm.ea.program import Program
from farm.ea.timing import Span, Stall, Timing
from farm.ea.verify import check
from farm.runtime.ea.code import machine_code
from farm.runtime.ea.matmul import scratch_bytes
from farm.runtime.ea.program import LoadedProgram
from farm.runtime.ea.scheduling import SPAN_NUMBERS, post_numbers, queue_numbers
from farm.runtime.ea.shared import FAULTS, Control
from farm.runtime.toolchain import cache_folder


@dataclass(frozen=True, slots=True)
class Run:
    """What a run did.

    Parameters
    ----------
    instructions
        Executed, HALT included.
    fuel
        Used up, as in `farm.ea.emulator.RunReport`.
    """

    instructions: int
    fuel: int


class CompiledMachine:
    """One accelerator, compiled for this host.

    Parameters
    ----------
    config
        Its numbers; it runs programs for no other.
    cache
        Folder for compiled machines; by default this user's.
    """

    def __init__(self, config: MachineConfig, cache: Path | None = None) -> None:
        self.config = config
        self._code = machine_code(config, cache_folder() if cache is None else cache)
        self._fault: Finding | None = None
        self._spad = np.zeros((config.spad_rows, config.dim), np.int8)
        self._acc = np.zeros((config.acc_rows, config.dim), np.int32)
        self._written = tuple(np.zeros(n, np.int8) for n in (config.spad_rows, config.acc_rows))
        self._registers = np.zeros(16, np.int32)
        self._scratch = np.zeros(scratch_bytes(config) + 64, np.int8)

    @property
    def fault(self) -> Finding | None:
        """The fault that stopped it, None if it can run."""
        return self._fault

    def reset(self) -> None:
        """Clear the fault. Memory needs no clearing: no program can read what it did not write."""
        self._fault = None

    def run(
        self,
        loaded: LoadedProgram,
        buffers: Sequence[NDArray[Any]],
        *,
        fuel: int = DEFAULT_FUEL,
        checked: bool = False,
    ) -> Run:
        """Run a program to its HALT, as `farm.ea.emulator.Machine.run` does in stream order.

        Parameters
        ----------
        checked
            Verify the whole program first (hazards too); raises InvalidProgram.

        Raises
        ------
        DeviceFault
            The program faulted, now or earlier: correct it and reset.
        InvalidArguments
            The buffers do not fit; the machine is unchanged.
        """
        self._refuse_other(loaded)
        windows = windows_of(loaded.args, loaded.stored, buffers)
        lengths = [len(window) for window in windows]
        if checked:
            check(loaded.program, lengths)
        run, problem = self._check(loaded, lengths, fuel)
        self._registers[:] = 0
        pointers = np.array([window.ctypes.data for window in windows] or [0], np.uint64)
        self._code.compute(
            loaded.table,
            pointers,
            self._spad,
            self._acc,
            self._registers,
            self._scratch,
            run.instructions,
        )
        if problem is not None:
            self._stop(problem)
        return run

    def time(
        self, loaded: LoadedProgram, *, fuel: int = DEFAULT_FUEL, spans: bool = False
    ) -> Timing:
        """Return what a program takes, without running it on data.

        Raises
        ------
        DeviceFault
            It would fault with arguments of its minimum lengths.
        """
        self._refuse_other(loaded)
        lengths = [arg.min_bytes for arg in loaded.args]
        _, problem = self._check(loaded, lengths, fuel)
        if problem is not None:
            self._stop(problem)
        count = len(loaded.table)
        control = np.zeros(Control.SIZE, np.int64)
        times = np.empty((max(count, 1), SPAN_NUMBERS), np.int64)
        queues = np.zeros(queue_numbers(self.config), np.int64)
        posts = np.empty(post_numbers(count), np.int64)
        if self._code.time(loaded.table, queues, posts, times, control, count):
            raise AssertionError("a program without faults cannot stand still")
        return self._timing(loaded, control, times if spans else None)

    def _timing(
        self, loaded: LoadedProgram, control: NDArray[np.int64], times: NDArray[np.int64] | None
    ) -> Timing:
        numbers = control.tolist()
        busy = {engine: numbers[Control.BUSY + engine] for engine in Engine}
        stalls = {
            engine: {why: numbers[Control.STALLS + len(Stall) * engine + why] for why in Stall}
            for engine in Engine
        }
        shown = () if times is None else _spans(loaded.program, times)
        work = numbers[Control.WORK : Control.WORK + 3]
        bound = {"bus": -(-work[0] // self.config.bus_bytes), "gemm": work[1], "vector": work[2]}
        return Timing(numbers[Control.CYCLES], self.config.clock_hz, busy, stalls, bound, shown)

    def _check(
        self, loaded: LoadedProgram, lengths: list[int], fuel: int
    ) -> tuple[Run, Finding | None]:
        control = np.zeros(Control.SIZE, np.int64)
        control[Control.FUEL_LIMIT], control[Control.ARGS] = min(fuel, (1 << 63) - 1), len(lengths)
        for written in self._written:
            written[:] = 0
        windows = np.array(lengths or [0], np.int64)
        code = self._code.check(loaded.table, windows, *self._written, control, len(loaded.table))
        run = Run(int(control[Control.EXECUTED]), int(control[Control.FUEL_USED]))
        if not code:
            return run, None
        pc = int(control[Control.FAULT_PC])
        return run, loaded.finding(self._problem(loaded, lengths, FAULTS[code - 1], control), pc)

    def _problem(
        self, loaded: LoadedProgram, lengths: list[int], fault: Fault, control: NDArray[np.int64]
    ) -> Problem:
        """Return the facts of a fault, in the words of all machines."""
        pc, number = int(control[Control.FAULT_PC]), int(control[Control.SEMAPHORE])
        if fault is Fault.NO_HALT:
            return no_halt()
        if fault is Fault.FUEL:
            return out_of_fuel(int(control[Control.FUEL_USED]), int(control[Control.FUEL_LIMIT]))
        if fault is Fault.SEM_UNDERFLOW:
            return no_token(number)
        if fault is Fault.SEM_OVERFLOW:
            limit = self.config.semaphore_max
            return too_many_tokens(number, limit + 1, limit)
        instruction = loaded.instruction(pc)
        if fault is Fault.SEM_MULTI:
            engine, first = engine_of(instruction), Engine(int(control[Control.FIRST_USER]))
            assert engine is not None
            posting = int(control[Control.EXECUTED]) > pc
            return second_user(number, "posted" if posting else "awaited", engine, first)
        if fault is Fault.UNINIT:
            for access in row_accesses(instruction, self.config):
                unwritten = never_written(access, self._written[access.space] != 0)
                if unwritten is not None:
                    return unwritten
        return instruction_problems(instruction, self.config, lengths)[0]

    def _refuse_other(self, loaded: LoadedProgram) -> None:
        if self._fault is not None:
            self._stop(self._fault, " (earlier)")
        if loaded.config != self.config:
            what = f"the program is for {loaded.config.name} ({loaded.config.config_id})"
            self._stop(loaded.finding(Problem(Fault.VERSION, what), 0))

    def _stop(self, finding: Finding, note: str = "") -> NoReturn:
        self._fault = finding
        raise finding.device_fault(f"{self.config.name}{note}")


def _spans(program: Program, times: NDArray[np.int64]) -> tuple[Span, ...]:
    spans = []
    for pc, instruction in enumerate(program.instructions):
        if isinstance(instruction, Halt):
            break
        engine = engine_of(instruction)
        if engine is not None:
            spans.append(Span(pc, engine, *times[pc].tolist()))
    return tuple(sorted(spans, key=lambda span: (span.start, span.engine)))
