"""Compiled code of the cycle model: `farm.ea.timing` for programs of any length.

Owns the event loop and the costs in compiled form. Does not own the model: where the two differ,
`farm.ea.timing` is right.
"""

from __future__ import annotations

from llvmlite import ir

from farm.ea import table
from farm.ea.config import MachineConfig
from farm.ea.isa import NO_SEMAPHORE, Engine, Gemm, Halt, Load, Store, Transfer, Vec, VecOp
from farm.ea.timing import VEC_START_CYCLES, Stall, vec_interval
from farm.runtime.ea.emit import I32, I64, Code, Int, Memory, Variable
from farm.runtime.ea.shared import OPCODES, Control, Row, define, row_at

TIME = "farm_ea_time"
"""``int64_t (table, queues, posts, spans, control, instructions)`` -> 0, or 1 if nothing can go on."""

ENGINES = len(Engine)
SPAN_NUMBERS = 3
"""Start, end and completion of each instruction in ``spans``."""
_NEVER = (1 << 62) - 1


def queue_numbers(config: MachineConfig) -> int:
    """Return the size of ``queues``: for each engine, pc, dispatch and start of the last in it."""
    return ENGINES * config.queue_depth * 3


def post_numbers(instructions: int) -> int:
    """Return the size of ``posts``: for each semaphore, when each post was complete."""
    return NO_SEMAPHORE * 2 * max(instructions, 1)


def emit_time(module: ir.Module, config: MachineConfig) -> None:
    """Add the function `TIME` to a module."""
    code, (rows, queues, posts, spans, control), count = define(module, TIME, I32, *[I64] * 4)
    _Scheduler(code, config, rows, queues, posts, spans, control, count).emit()


def _numbers(code: Code, count: int) -> Memory:
    """Return numbers on the stack, all 0."""
    place = code.builder.alloca(ir.ArrayType(I64, count))
    cells = Memory(code, code.builder.bitcast(place, I64.as_pointer()), I64)
    for index in range(count):
        cells[index] = 0
    return cells


class _Scheduler:
    def __init__(
        self,
        code: Code,
        config: MachineConfig,
        rows: Memory,
        queues: Memory,
        posts: Memory,
        spans: Memory,
        control: Memory,
        count: Int,
    ) -> None:
        self._code = code
        self._config = config
        self._rows = rows
        self._queues = queues
        self._posts = posts
        self._spans = spans
        self._control = control
        self._count = count
        self._posts_each = count * 2
        self._dispatched, self._started, self._free, self._done, self._ready = (
            _numbers(code, ENGINES) for _ in range(5)
        )
        self._posted, self._taken = (_numbers(code, NO_SEMAPHORE + 1) for _ in range(2))
        self._clock, self._next, self._bus_free = (Variable(code, 0) for _ in range(3))

    def emit(self) -> None:
        code = self._code
        for index in range(Control.BUSY, Control.SIZE):
            self._control[index] = 0
        with code.forever():
            self._dispatch()
            best, engine = Variable(code, _NEVER), Variable(code, 0)
            for each in Engine:
                with code.when(self._started[each] < self._dispatched[each]):
                    ready = self._ready_at(each)
                    with code.when(ready < best.get()):
                        best.set(ready)
                        engine.set(each)
            with code.when(best.get().equals(_NEVER), likely=False):
                code.leave(1)
            self._start(engine.get(), best.get())
        code.builder.unreachable()

    def _dispatch(self) -> None:
        """Fill the queues in stream order as far as they go."""
        code = self._code
        with code.forever() as out:
            with code.when(self._next.get() >= self._count):
                code.builder.branch(out)
            row = row_at(self._rows, self._next.get())
            engine = row.column(table.ENGINE)
            with code.when(engine.equals(table.DISPATCHER)):
                self._hold(row, out)
            with code.when(engine.differs(table.DISPATCHER)):
                self._enqueue(engine, out)
            self._next.add(1)

    def _hold(self, row: Row, out: ir.Block) -> None:
        """FENCE and HALT: wait until every engine is idle."""
        code, idle = self._code, Variable(self._code, 0)
        for each in Engine:
            with code.when(self._started[each] < self._dispatched[each]):
                code.builder.branch(out)
            idle.raise_to(self._done[each])
        self._clock.raise_to(idle.get())
        self._clock.add(1)
        with code.when(row.column(table.OPCODE).equals(OPCODES[Halt])):
            self._control[Control.CYCLES] = self._clock.get()
            code.leave(0)

    def _enqueue(self, engine: Int, out: ir.Block) -> None:
        code, depth = self._code, self._config.queue_depth
        number = self._dispatched[engine]
        with code.when(number - self._started[engine] >= depth):
            code.builder.branch(out)
        slot = self._slot(engine, number)
        with code.when(number >= depth):
            self._clock.raise_to(slot[2])  # takes the place of the one that left the queue
        slot[0] = self._next.get()
        slot[1] = self._clock.get()
        self._dispatched[engine] = number + 1
        self._clock.add(1)

    def _slot(self, engine: Int | int, number: Int) -> Memory:
        depth = self._config.queue_depth
        return self._queues.at((self._code.number(engine) * depth + number % depth) * 3)

    def _ready_at(self, engine: Engine) -> Int:
        """Return when the engine's next instruction could start, but for the bus."""
        code = self._code
        slot = self._slot(engine, self._started[engine])
        row = row_at(self._rows, slot[0])
        time = Variable(code, code.maximum(self._free[engine], slot[1] + 1))
        first, second = row.column(table.WAIT0), row.column(table.WAIT1)
        with code.when(first.differs(NO_SEMAPHORE)):
            self._await(time, first, code.number(0))
            with code.when(second.differs(NO_SEMAPHORE)):
                self._await(time, second, first.equals(second).choose(1, 0))
        return time.get()

    def _await(self, time: Variable, number: Int, more: Int) -> None:
        code = self._code
        index = self._taken[number] + more
        known = index < self._posted[number]
        with code.when(known):
            time.raise_to(self._posts[number * self._posts_each + index])
        with code.when(~known):
            time.set(_NEVER)

    def _start(self, engine: Int, ready: Int) -> None:
        code = self._code
        number = self._started[engine]
        slot = self._slot(engine, number)
        pc, row = slot[0], row_at(self._rows, slot[0])
        occupancy, latency, bus = self._cost(row)
        free = self._free[engine]
        there = code.maximum(free, slot[1] + 1)
        start = bus.differs(0).choose(code.maximum(ready, self._bus_free.get()), ready)
        end = start + occupancy
        self._account(engine, occupancy, (there - free, ready - there, start - ready))
        slot[2] = start
        self._started[engine] = number + 1
        self._free[engine] = end
        done = code.maximum(self._done[engine], end + latency)
        self._done[engine] = done
        with code.when(bus.differs(0)):
            self._bus_free.set(end)
        for column in (table.WAIT0, table.WAIT1):
            wait = row.column(column)
            self._taken[wait] = self._taken[wait] + 1  # the number for none counts for nothing
        for column in (table.POST0, table.POST1):
            post = row.column(column)
            with code.when(post.differs(NO_SEMAPHORE)):
                self._posts[post * self._posts_each + self._posted[post]] = done
                self._posted[post] = self._posted[post] + 1
        span = self._spans.at(pc * SPAN_NUMBERS)
        for index, value in enumerate((start, end, done)):
            span[index] = value

    def _account(self, engine: Int, occupancy: Int, stalls: tuple[Int, Int, Int]) -> None:
        busy = engine + int(Control.BUSY)
        self._control[busy] = self._control[busy] + occupancy
        for reason, cycles in zip(Stall, stalls, strict=True):
            place = engine * len(Stall) + (int(Control.STALLS) + int(reason))
            self._control[place] = self._control[place] + cycles

    def _work(self, resource: int, amount: Int) -> None:
        place = Control.WORK + resource
        self._control[place] = self._control[place] + amount

    def _cost(self, row: Row) -> tuple[Int, Int, Int]:
        """Return occupancy, latency and whether the bus is used."""
        code, config = self._code, self._config
        occupancy, latency, bus = Variable(code, 1), Variable(code, 0), Variable(code, 0)
        with code.switch(row.column(table.OPCODE)) as switch:
            with switch.case(OPCODES[Load]):
                fill = row.flag(Load, "fill")
                with code.when(fill):
                    blocks = row.field(Load, "cols").ceil_div(config.dim)
                    occupancy.set(row.field(Load, "rows") * blocks)
                with code.when(~fill):
                    wide = row.field(Load, "space").equals(Transfer.ACC_I32)
                    self._dma(row, Load, wide.choose(4, 1), occupancy)
                    latency.set(config.bus_latency_cycles)
                    bus.set(1)
            with switch.case(OPCODES[Store]):
                wide = row.field(Store, "space").equals(Transfer.ACC_I32)
                narrow = row.flag(Store, "saturate")
                self._dma(row, Store, (wide & ~narrow).choose(4, 1), occupancy)
                latency.set(config.bus_latency_cycles)
                bus.set(1)
            with switch.case(OPCODES[Gemm]):
                self._gemm(row, occupancy)
                latency.set(2 * config.dim)
            with switch.case(OPCODES[Vec]):
                interval = code.number(1)
                for op in VecOp:
                    if vec_interval(op) > 1:
                        same = row.field(Vec, "op").equals(op)
                        interval = same.choose(vec_interval(op), interval)
                work = row.field(Vec, "rows") * interval
                self._work(2, work)
                occupancy.set(work + VEC_START_CYCLES)
        return occupancy.get(), latency.get(), bus.get()

    def _dma(self, row: Row, kind: type[Load | Store], element: Int, occupancy: Variable) -> None:
        code, config = self._code, self._config
        rows, stride = row.field(kind, "rows"), row.field(kind, "dstride")
        row_bytes = row.field(kind, "cols") * element
        dense = stride.equals(row_bytes)
        runs, size = dense.choose(1, rows), dense.choose(rows * row_bytes, row_bytes)
        self._work(0, rows * row_bytes)
        beats = Variable(code, 0)
        with code.repeat(runs) as run:
            start = (row.field(kind, "offset") + run * stride) % config.bus_bytes
            beats.add((start + size).ceil_div(config.bus_bytes))
        bursts = size.ceil_div(config.burst_bytes)
        occupancy.set(beats.get() + runs * bursts * config.burst_cycles)

    def _gemm(self, row: Row, occupancy: Variable) -> None:
        code, config = self._code, self._config
        m, nt, kt = (row.field(Gemm, name) for name in ("m", "nt", "kt"))
        a, w = row.field(Gemm, "a"), row.field(Gemm, "w")
        last_a = a + (kt - 1) * row.field(Gemm, "aks") + (m - 1) * row.field(Gemm, "astep")
        last_w = w + nt * kt * config.dim - 1
        bank = config.spad_rows // config.spad_banks
        self._work(1, nt * kt * m)
        shared = (a // bank <= last_w // bank) & (w // bank <= last_a // bank)
        cycles = nt * kt * code.maximum(m, config.dim) + config.dim
        occupancy.set(shared.choose(cycles * 2, cycles))
