"""The cycle model: when each instruction of a program runs, and what it waits for.

Owns what an instruction costs (`cost`), the order in which engines get the bus, and the report
(`Timing`). Does not own data: time depends on the program only, never on values.

Invariant: deterministic, and exact for the model in ``docs/ea-isa.md``; this is the plain
implementation, which the compiled one (`farm.runtime.ea`) has to agree with cycle for cycle.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from farm.ea.access import dram_access, row_accesses
from farm.ea.config import MachineConfig
from farm.ea.disassembly import format_instruction
from farm.ea.isa import Engine, Fence, Gemm, Halt, Instruction, Load, Store, Vec, VecOp, engine_of
from farm.ea.program import Program
from farm.errors import InvalidProgram

VEC_START_CYCLES = 8
_SLOW_VEC = {
    VecOp.MUL: 2,
    VecOp.CLAMP: 2,
    VecOp.RQ: 2,
    VecOp.LUT8: 4,
    VecOp.RSUM: 4,
    VecOp.RMAX: 4,
}


class Stall(IntEnum):
    """Why an engine with work left did nothing."""

    DISPATCH = 0
    """Its next instruction had not been dispatched."""
    TOKEN = 1
    """It waited for a semaphore."""
    BUS = 2
    """The other DMA engine had the bus."""


def vec_interval(op: VecOp) -> int:
    """Return the cycles a row takes in the vector engine."""
    return _SLOW_VEC.get(op, 1)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one instruction takes, in cycles.

    Parameters
    ----------
    occupancy
        How long its engine is busy, and for `bus` the bus.
    latency
        From then until its effects are complete.
    bus
        Whether it moves data to or from DRAM.
    """

    occupancy: int
    latency: int = 0
    bus: bool = False


def cost(instruction: Instruction, config: MachineConfig) -> Cost:
    """Return what an instruction of an engine costs."""
    match instruction:
        case Load(fill=True):
            return Cost(instruction.rows * config.blocks(instruction.cols))
        case Load() | Store():
            return Cost(_dma_cycles(instruction, config), config.bus_latency_cycles, bus=True)
        case Gemm():
            tiles = instruction.kt * instruction.nt * max(instruction.m, config.dim)
            factor = 2 if _share_a_bank(instruction, config) else 1
            return Cost(factor * (config.dim + tiles), 2 * config.dim)
        case Vec():
            return Cost(VEC_START_CYCLES + instruction.rows * vec_interval(instruction.op))
        case _:
            return Cost(1)


def _dma_cycles(dma: Load | Store, config: MachineConfig) -> int:
    access = dram_access(dma)
    assert access is not None
    runs, size = access.rows, access.row_bytes
    if access.stride == size:
        runs, size = 1, runs * size  # dense rows are one run
    beats = 0
    for run in range(runs):
        start = (access.offset + run * access.stride) % config.bus_bytes
        beats += -(-(start + size) // config.bus_bytes)
    return beats + config.burst_cycles * runs * -(-size // config.burst_bytes)


def _share_a_bank(gemm: Gemm, config: MachineConfig) -> bool:
    a, w, *_ = row_accesses(gemm, config)
    bank = config.spad_rows // config.spad_banks
    return a.base // bank <= (w.end - 1) // bank and w.base // bank <= (a.end - 1) // bank


@dataclass(frozen=True, slots=True)
class Span:
    """One instruction in time: its engine is busy from `start` to `end`; complete at `done`."""

    pc: int
    engine: Engine
    start: int
    end: int
    done: int


@dataclass(frozen=True, slots=True)
class Timing:
    """What a program takes on a machine.

    Parameters
    ----------
    cycles
        From the first dispatch until HALT.
    clock_hz
        Nominal clock, for `seconds`.
    busy
        Cycles in which each engine worked.
    stalls
        Cycles in which an engine waited for the reason, with instructions left to do.
    bound
        Roofline: no order of the same work could take fewer cycles, for bus, GEMM and vector engine each.
    spans
        In the order of starts; empty if not asked for.
    """

    cycles: int
    clock_hz: int
    busy: Mapping[Engine, int]
    stalls: Mapping[Engine, Mapping[Stall, int]]
    bound: Mapping[str, int]
    spans: tuple[Span, ...] = field(default=(), repr=False)

    @property
    def seconds(self) -> float:
        """Time at the nominal clock."""
        return self.cycles / self.clock_hz

    @property
    def bound_cycles(self) -> int:
        """The highest of the bounds."""
        return max(self.bound.values())

    def chrome_trace(self, program: Program) -> str:
        """Return the spans as JSON for a trace viewer (chrome://tracing, Perfetto); 1 us is a cycle."""
        events: list[dict[str, Any]] = [
            {
                "ph": "M",
                "pid": 0,
                "tid": int(engine),
                "name": "thread_name",
                "args": {"name": engine.name},
            }
            for engine in Engine
        ]
        for span in self.spans:
            text = format_instruction(program.instructions[span.pc], program)
            events.append(
                {
                    "ph": "X",
                    "pid": 0,
                    "tid": int(span.engine),
                    "ts": span.start,
                    "dur": span.end - span.start,
                    "name": text.split()[0],
                    "args": {"pc": span.pc, "text": text, "done": span.done},
                }
            )
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})


def roofline(program: Program) -> dict[str, int]:
    """Return the least cycles for the program's work: ``bus``, ``gemm`` and ``vector``."""
    moved = rows = gemm = 0
    for instruction in program.instructions:
        access = dram_access(instruction)
        if access is not None:
            moved += access.rows * access.row_bytes
        if isinstance(instruction, Gemm):
            gemm += instruction.m * instruction.nt * instruction.kt  # a row and a tile a cycle
        elif isinstance(instruction, Vec):
            rows += instruction.rows * vec_interval(instruction.op)
        elif isinstance(instruction, Halt):
            break
    return {"bus": -(-moved // program.config.bus_bytes), "gemm": gemm, "vector": rows}


def simulate(program: Program) -> Timing:
    """Run the cycle model on a program.

    Parameters
    ----------
    program
        Its fields must fit and its waits follow their posts; bounds do not matter.

    Raises
    ------
    InvalidProgram
        No engine can go on: a wait is never served; or there is no HALT.
    """
    return _Simulation(program).run()


class _EngineState:
    def __init__(self) -> None:
        self.queue: deque[tuple[int, int]] = deque()  # pc, when it was dispatched
        self.starts: list[int] = []
        self.dispatched = 0
        self.free = 0
        self.done = 0
        self.busy = 0
        self.stalls = dict.fromkeys(Stall, 0)


class _Simulation:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._config = program.config
        self._engines = {engine: _EngineState() for engine in Engine}
        self._posted: dict[int, list[int]] = {}
        self._taken: dict[int, int] = {}
        self._bus_free = 0
        self._clock = 0  # when the dispatcher can dispatch next
        self._next = 0
        self._spans: list[Span] = []

    def run(self) -> Timing:
        while not self._dispatch():
            ready = [
                (time, engine)
                for engine in Engine
                if (time := self._ready(self._engines[engine])) is not None
            ]
            if not ready:
                raise InvalidProgram(f"pc {self._next}: no engine can go on; a wait is not served")
            self._start(*min(ready))
        return Timing(
            self._clock,
            self._config.clock_hz,
            {engine: state.busy for engine, state in self._engines.items()},
            {engine: dict(state.stalls) for engine, state in self._engines.items()},
            roofline(self._program),
            tuple(sorted(self._spans, key=lambda span: (span.start, span.engine))),
        )

    def _dispatch(self) -> bool:
        """Fill the queues; return whether HALT was reached."""
        instructions = self._program.instructions
        while self._next < len(instructions):
            instruction = instructions[self._next]
            engine = engine_of(instruction)
            if engine is None:
                if any(state.queue for state in self._engines.values()):
                    return False
                idle = max(state.done for state in self._engines.values())
                self._clock = max(self._clock, idle) + 1
                if isinstance(instruction, Halt):
                    return True
                assert isinstance(instruction, Fence)
            else:
                state, depth = self._engines[engine], self._config.queue_depth
                if len(state.queue) >= depth:
                    return False
                if state.dispatched >= depth:  # takes the place of the one that left the queue
                    self._clock = max(self._clock, state.starts[state.dispatched - depth])
                state.queue.append((self._next, self._clock))
                state.dispatched += 1
                self._clock += 1
            self._next += 1
        if not any(state.queue for state in self._engines.values()):
            raise InvalidProgram("the program does not end in HALT")
        return False

    def _waits(self, pc: int) -> Iterator[int | None]:
        """Yield when each token that an instruction takes is there, None if not yet known."""
        seen: dict[int, int] = {}
        for number in self._program.instructions[pc].waits:
            index = self._taken.get(number, 0) + seen.get(number, 0)
            seen[number] = seen.get(number, 0) + 1
            posted = self._posted.get(number, [])
            yield posted[index] if index < len(posted) else None

    def _ready(self, state: _EngineState) -> int | None:
        """Return when the engine's next instruction could start, but for the bus."""
        if not state.queue:
            return None
        pc, dispatched = state.queue[0]
        time = max(state.free, dispatched + 1)
        for token in self._waits(pc):
            if token is None:
                return None
            time = max(time, token)
        return time

    def _start(self, ready: int, engine: Engine) -> None:
        state = self._engines[engine]
        pc, dispatched = state.queue.popleft()
        instruction = self._program.instructions[pc]
        price = cost(instruction, self._config)
        there = max(state.free, dispatched + 1)
        start = max(ready, self._bus_free) if price.bus else ready
        end = start + price.occupancy
        state.stalls[Stall.DISPATCH] += there - state.free
        state.stalls[Stall.TOKEN] += ready - there
        state.stalls[Stall.BUS] += start - ready
        state.busy += price.occupancy
        state.starts.append(start)
        state.free = end
        state.done = max(state.done, end + price.latency)  # an engine completes in order
        if price.bus:
            self._bus_free = end
        for number in instruction.waits:
            self._taken[number] = self._taken.get(number, 0) + 1
        for number in instruction.posts:
            self._posted.setdefault(number, []).append(state.done)
        self._spans.append(Span(pc, engine, start, end, state.done))
