"""The cycle model, against costs worked out by hand from ``docs/ea-isa.md``."""

from __future__ import annotations

import json

import pytest

from farm.ea.config import EA8, EA16, EA32
from farm.ea.isa import (
    Engine,
    Fence,
    Gemm,
    Halt,
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
from farm.ea.program import Arg, Program
from farm.ea.timing import Cost, Stall, cost, simulate
from farm.errors import InvalidProgram


def program(*instructions, config=EA16):
    args = (Arg("A", 1 << 20), Arg("B", 1 << 20))
    names = tuple(f"sem{index}" for index in range(4))
    return Program(config, args, names, (*instructions, Halt()))


def load(rows=1, cols=16, stride=16, offset=0, **more):
    more = {"space": Transfer.SPAD_I8, "lstride": rows} | more
    return Load(row=0, rows=rows, cols=cols, dstride=stride, offset=offset, **more)


@pytest.mark.parametrize(
    ("instruction", "occupancy"),
    [
        (load(), 1 + 2),
        (load(offset=8), 2 + 2),  # 16 bytes from byte 8 lie in two beats
        (load(rows=64), 64 + 4 * 2),  # dense: one run of 1024 bytes in 4 bursts
        (load(rows=64, stride=32), 64 * (1 + 2)),  # each row a run of its own
        (load(rows=3, stride=24), (1 + 2 + 1) + 3 * 2),  # from bytes 0, 24 and 48
        (load(rows=4, stride=0), 4 * (1 + 2)),  # a repeated run is fetched each time
        (load(cols=40, rows=2, stride=40), 5 + 2),
        (load(space=Transfer.ACC_I32, stride=64), 4 + 2),
        (load(rows=10, cols=40, stride=0, fill=True), 30),  # a row a cycle, no bus
    ],
)
def test_a_transfer_costs_its_beats_and_bursts(instruction, occupancy):
    price = cost(instruction, EA16)
    filled = instruction.fill
    assert price == Cost(occupancy, 0 if filled else 100, bus=not filled)


def test_a_store_of_narrowed_values_moves_bytes_not_words():
    store = Store(space=Transfer.ACC_I32, arg=0, row=0, rows=1, cols=16)
    assert cost(store, EA16).occupancy == 4 + 2
    narrow = Store(space=Transfer.ACC_I32, arg=0, row=0, rows=1, cols=16, saturate=True)
    assert cost(narrow, EA16).occupancy == 1 + 2


@pytest.mark.parametrize("config", [EA8, EA16, EA32], ids=lambda config: config.name)
def test_a_gemm_costs_a_cycle_for_each_row_and_tile_and_twice_that_in_one_bank(config):
    dim, bank = config.dim, config.spad_rows // config.spad_banks
    apart = Gemm(m=100, nt=2, kt=3, a=0, w=bank, c=0, aks=100, cns=100)
    assert cost(apart, config) == Cost(dim + 6 * 100, 2 * dim)
    few = Gemm(m=1, nt=2, kt=3, a=0, w=bank, c=0, aks=1, cns=1)
    assert cost(few, config).occupancy == dim + 6 * dim
    shared = Gemm(m=100, nt=2, kt=3, a=0, w=bank - 1, c=0, aks=100, cns=100)
    assert cost(shared, config).occupancy == 2 * (dim + 6 * 100)


@pytest.mark.parametrize(("op", "interval"), [(VecOp.ADD, 1), (VecOp.RQ, 2), (VecOp.LUT8, 4)])
def test_a_vector_operation_costs_its_interval_a_row(op, interval):
    vec = Vec(op=op, rows=50, dsp=Space.ACC, dst=0, source=Source.ROW, s2=0)
    assert cost(vec, EA16) == Cost(50 * interval + 8)


@pytest.mark.parametrize(
    "instruction", [SetB(reg=0, value=1), Sync(engine=Engine.GE), Mark(engine=Engine.ST, tag=1)]
)
def test_what_moves_nothing_takes_a_cycle(instruction):
    assert cost(instruction, EA16) == Cost(1)


def test_an_empty_program_takes_the_cycle_of_its_halt():
    timing = simulate(program())
    assert (timing.cycles, timing.bound_cycles) == (1, 0)


def test_engines_overlap_but_for_tokens_and_the_wait_is_told():
    timing = simulate(
        program(
            load(rows=64, posts=(0,)),
            Sync(engine=Engine.GE, waits=(0,)),
            SetB(reg=0, value=1),
        )
    )
    starts = {span.pc: span.start for span in timing.spans}
    # Dispatched at 0, 1 and 2. The load is complete after 72 cycles on the bus and 100 of latency.
    assert starts == {0: 1, 1: 1 + 72 + 100, 2: 3}
    assert timing.stalls[Engine.GE] == {Stall.DISPATCH: 2, Stall.TOKEN: 171, Stall.BUS: 0}
    assert timing.cycles == 174 + 1
    assert timing.busy == {Engine.LD: 72, Engine.GE: 1, Engine.VE: 1, Engine.ST: 0}


def test_the_bus_goes_to_who_asked_first():
    store = Store(space=Transfer.SPAD_I8, arg=1, row=0, rows=8, cols=16, dstride=16)
    timing = simulate(program(load(rows=32), store, load(rows=32)))
    starts = {span.pc: span.start for span in timing.spans}
    assert starts == {0: 1, 1: 1 + 36, 2: 1 + 36 + 10}
    assert timing.stalls[Engine.ST][Stall.BUS] == 35


def test_a_full_queue_holds_the_dispatcher():
    depth = EA16.queue_depth
    vec = Vec(op=VecOp.MOV, rows=92, dsp=Space.ACC, dst=0)
    timing = simulate(program(*[vec] * (depth + 2), Sync(engine=Engine.GE)))
    starts = {span.pc: span.start for span in timing.spans}
    # The second vector operation leaves the queue at 101, which lets the last one in.
    assert starts[depth + 1] == 1 + 100 * (depth + 1)
    assert starts[depth + 2] == starts[1] + 1 + 1


def test_a_fence_waits_for_what_was_started():
    timing = simulate(program(load(rows=64), Fence(), SetB(reg=0, value=1)))
    assert {span.pc: span.start for span in timing.spans}[2] == 173 + 1 + 1


def test_a_wait_that_is_never_served_is_told():
    with pytest.raises(InvalidProgram, match="no engine can go on"):
        simulate(program(Sync(engine=Engine.GE, waits=(0,))))
    with pytest.raises(InvalidProgram, match="does not end in HALT"):
        simulate(Program(EA16, (), (), ()))


def test_no_program_beats_its_roofline(dense):
    for config in (EA8, EA16, EA32):
        timing = simulate(dense(config, 200, 40, 64).program(m_tile=32 if config is EA8 else 64))
        assert 0 < timing.bound_cycles < timing.cycles
        assert timing.bound["gemm"] <= timing.busy[Engine.GE]


def test_a_trace_names_every_instruction_on_its_engine(dense):
    code = dense(EA16, 40, 20, 32).program()
    timing = simulate(code)
    events = json.loads(timing.chrome_trace(code))["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {0: "LD", 1: "GE", 2: "VE", 3: "ST"}
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(code.instructions) - 1
    assert all(event["ts"] + event["dur"] <= timing.cycles for event in spans)
    gemm = next(event for event in spans if event["name"] == "gemm")
    assert gemm["tid"] == Engine.GE
    assert gemm["args"]["text"].startswith("gemm")
