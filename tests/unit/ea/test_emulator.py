from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from farm.ea.assembly import assemble
from farm.ea.builder import Imm, ProgramBuilder, Reg, acc, spad
from farm.ea.config import EA8, EA16, EA32
from farm.ea.emulator import Machine
from farm.ea.encoding import decode_program, encode_program
from farm.ea.faults import Fault
from farm.ea.isa import Engine, VecOp
from farm.ea.verify import verify
from farm.errors import DeviceFault, InvalidArguments, InvalidProgram

HEAD = ".isa 1\n.mach ea16\n.args A[64], C[64]\n.sem x, y\n"


def run(text: str, **options):
    machine = Machine(EA16)
    buffers = [np.arange(64, dtype=np.int8), np.zeros(64, np.int8)]
    report = machine.run(assemble(HEAD + text), buffers, **options)
    return machine, report, buffers[1]


SIZES = [(1, 1, 1), (33, 17, 50), (100, 10, 64), (64, 40, 7), (77, 64, 129)]


@pytest.mark.parametrize("config", [EA8, EA16, EA32], ids=lambda config: config.name)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_dense_of_any_size_is_exact_on_every_machine_and_in_every_order(dense, config, m, n, k):
    layer = dense(config, m, n, k)
    program = decode_program(encode_program(layer.program()), config)
    assert verify(program) == []
    machine = Machine(config)
    for chaos_seed in (None, 0, 1):
        arrays = layer.arrays(seed=m)
        machine.run(program, arrays, chaos_seed=chaos_seed)
        assert np.array_equal(arrays[5], layer.expected(arrays))
    assert len(np.unique(arrays[5])) > min(10, m * n - 1)  # the scale leaves something to see


def test_dense_of_real_size_is_exact(dense):
    layer = dense(EA16, 540, 32, 64)
    program, arrays = layer.program(m_tile=128), layer.arrays(3)
    report = Machine(EA16).run(program, arrays)
    assert np.array_equal(arrays[5], layer.expected(arrays))
    assert (report.instructions, report.macs) == (len(program.instructions), 540 * 32 * 64)


@pytest.mark.parametrize("name", ["full", "afree", "cfull", "cfree", "ofull", "ofree"])
def test_dense_without_any_one_token_is_reported_and_goes_wrong(dense, name):
    layer = dense(EA16, 200, 16, 64)
    program = layer.program()
    token = program.semaphores.index(name)
    without = [
        dataclasses.replace(
            each,
            waits=tuple(number for number in each.waits if number != token),
            posts=tuple(number for number in each.posts if number != token),
        )
        for each in program.instructions
    ]
    broken = dataclasses.replace(program, instructions=tuple(without))
    assert {finding.fault for finding in verify(broken)} == {Fault.HAZARD}
    wrong = 0
    for seed in range(10):
        arrays = layer.arrays(seed)
        try:
            Machine(EA16).run(broken, arrays, chaos_seed=seed)
            wrong += not np.array_equal(arrays[5], layer.expected(arrays))
        except DeviceFault as fault:
            wrong += fault.details["fault"] == Fault.UNINIT
    assert wrong > 0


def test_epilogue_of_any_integer_expression_uses_immediates_registers_and_rows():
    """``clamp(((x*100003 + y) & 0xFFFFF) >> 3 | 1, -70000, 70000) - min(x, -5)`` over int32."""
    b = ProgramBuilder(EA16)
    x, y, out = b.arg("x"), b.arg("y"), b.arg("out")
    loaded, done = b.semaphore("loaded"), b.semaphore("done")
    rows, cols = 5, 16
    b.load(acc(0), x, rows=rows, cols=cols, dstride=64)
    b.load(acc(8), y, rows=1, cols=cols, dstride=0, post=[loaded])
    t, u = acc(16), acc(24)
    b.vec(VecOp.MIN, u, acc(0), b.constant(-5), rows=rows, wait=[loaded])
    b.vec(VecOp.MUL, t, acc(0), b.constant(100003), rows=rows)
    b.vec(VecOp.ADD, t, t, acc(8), rows=rows)
    b.vec(VecOp.AND, t, t, b.constant(0xFFFFF), rows=rows)
    b.vec(VecOp.SHR, t, t, b.constant(3), rows=rows)
    b.vec(VecOp.OR, t, t, b.constant(1), rows=rows)
    b.vec(VecOp.CLAMP, t, t, b.constant_pair(-70000, 70000), rows=rows)
    b.vec(VecOp.SUB, t, t, u, rows=rows, s2inc=1, post=[done])
    b.store(out, t, rows=rows, cols=cols, dstride=64, wait=[done])
    program = b.build()
    assert verify(program) == []
    rng = np.random.default_rng(5)
    xs = rng.integers(-(1 << 31), 1 << 31, (rows, cols)).astype(np.int32)
    ys = rng.integers(-1000, 1000, cols).astype(np.int32)
    result = np.zeros((rows, cols), np.int32)
    Machine(EA16).run(program, [xs, ys, result])
    wide = (xs.astype(np.int64) * 100003 + ys) & 0xFFFFF
    expected = np.clip(wide >> 3 | 1, -70000, 70000) - np.minimum(xs, -5).astype(np.int64)
    assert np.array_equal(result, expected.astype(np.int32))


def test_builder_constants_share_registers_until_these_are_taken_again():
    b = ProgramBuilder(EA16)
    assert b.constant(-32768) == Imm(-32768)
    assert [b.constant(1 << 20), b.constant(1 << 20)] == [Reg(0), Reg(0)]
    assert b.constant_pair(1, 2) == Reg(1)
    assert len(b) == 3
    assert [b.constant((1 << 20) + i) for i in range(1, 15)] == [*map(Reg, range(3, 16)), Reg(0)]
    assert b.constant(1 << 20) == Reg(1)  # its register was taken, and so is the pair's now
    assert b.constant_pair(1, 2) == Reg(2)


def test_builder_scratchpad_as_second_operand_is_refused():
    with pytest.raises(InvalidProgram, match="move it to the accumulator"):
        ProgramBuilder(EA16).vec(VecOp.ADD, acc(0), acc(0), spad(0), rows=1)


def test_vec_with_fixed_destination_reduces_over_rows():
    text = """
    ld.w c[0], A, rows=4 cols=16 dstride=16     | post x
    vec.splat c[9], #0, rows=1                   | wait x
    vec.add c[9], c[9], c[0], rows=4 dinc=0 sinc=0 s2inc=1 | post y
    st.c C, c[9], rows=1 cols=16 saturate        | wait y
    halt
    """
    _, _, out = run(text)
    assert out[:16].tolist() == np.clip(np.arange(64).reshape(4, 16).sum(0), 0, 127).tolist()


FAULTS = [
    ("ld.s s[16383], A, rows=2 cols=1\nhalt", "SPAD_OOB", 0, "LD", "[16383:16385)", "16384"),
    ("halt\nhalt\n", None, 0, "", "", ""),
    ("vec.splat c[1023], #1, rows=2\nhalt", "ACC_OOB", 0, "VE", "[1023:1025)", "1024"),
    ("ld.s s[0], A+60, rows=1 cols=5\nhalt", "DRAM_OOB", 0, "LD", "[60:65)", "64"),
    ("fence\nld.c c[0], A+2, rows=1 cols=1\nhalt", "MISALIGNED", 1, "LD", "[2:6)", "4"),
    ("ld.s s[0], A, rows=0 cols=1\nhalt", "BAD_FIELD", 0, "LD", None, None),
    ("sync.ge | wait x\nhalt", "SEM_UNDERFLOW", 0, "GE", "[0:1)", "0"),
    ("sync.ge | post x\nfence\nsync.ve | post x\nhalt", "SEM_MULTI", 2, "VE", None, None),
    ("sync.ge | post x\n" * 256 + "halt", "SEM_OVERFLOW", 255, "GE", "[0:256)", "255"),
    ("fence\n", "NO_HALT", 1, "none", None, None),
    ("st.s C, s[7], rows=1 cols=1\nhalt", "UNINIT", 0, "ST", "[7:8)", None),
    ("ld.s s[0], A, rows=60 cols=1\nhalt", "FUEL", 0, "LD", "[0:61)", "50"),
]


@pytest.mark.parametrize("chaos_seed", [None, 7])
@pytest.mark.parametrize(("text", "fault", "pc", "engine", "span", "limit"), FAULTS)
def test_run_faulty_program_stops_with_the_facts(text, fault, pc, engine, span, limit, chaos_seed):
    if fault is None:  # what follows HALT is not reached
        assert run(text, chaos_seed=chaos_seed)[1].instructions == 1
        return
    options = {"chaos_seed": chaos_seed, "fuel": 50 if fault == "FUEL" else 10**6}
    with pytest.raises(DeviceFault) as caught:
        run(text, **options)
    details = dict(caught.value.details)
    shown = details.pop("instruction")
    lines = [*text.strip().split("\n"), "end of program"]
    if fault not in ("DRAM_OOB", "MISALIGNED"):
        assert shown == lines[pc].replace("A,", "A+0,").replace("C,", "C+0,")
    expected = {"fault": fault, "pc": str(pc), "engine": engine, "range": span, "limit": limit}
    assert details == {key: value for key, value in expected.items() if value is not None}
    assert f"{fault} at pc {pc} ({shown})" in str(caught.value)


def test_machine_after_a_fault_refuses_until_reset():
    machine = Machine(EA16)
    buffers = [np.zeros(64, np.int8), np.zeros(64, np.int8)]
    good = assemble(HEAD + "halt")
    with pytest.raises(DeviceFault, match=r"^ea16: SEM_UNDERFLOW at pc 0"):
        machine.run(assemble(HEAD + "sync.ld | wait y\nhalt"), buffers)
    with pytest.raises(DeviceFault, match=r"^ea16 \(earlier\): SEM_UNDERFLOW at pc 0") as again:
        machine.run(good, buffers)
    assert again.value.details["fault"] == machine.fault.fault == Fault.SEM_UNDERFLOW
    machine.reset()
    assert machine.fault is None
    assert machine.run(good, buffers).instructions == 1


def test_machine_second_program_sees_nothing_of_the_first():
    machine, _, out = run("setb b[1], 99\nld.s s[0], A, rows=1 cols=1\nhalt")
    buffers = [np.zeros(64, np.int8), out]
    text = "vec.splat s[1], b[1], rows=1 | post x\nst.s C, s[1], rows=1 cols=16 | wait x\nhalt"
    out[:] = 5
    machine.run(assemble(HEAD + text), buffers)
    assert out[:16].tolist() == [0] * 16
    with pytest.raises(DeviceFault, match="UNINIT"):
        machine.run(assemble(HEAD + "st.s C, s[0], rows=1 cols=1\nhalt"), buffers)


def test_machine_program_for_another_configuration_is_a_version_fault():
    with pytest.raises(DeviceFault, match="the program is for ea16") as caught:
        Machine(EA8).run(assemble(HEAD + "halt"), [])
    assert caught.value.details["fault"] == Fault.VERSION


def test_machine_marks_are_reported_in_the_order_executed():
    text = "sync.ge | wait x\nmark.ge 1\nmark.ve 2\nsync.ld | post x\nfence\nmark.ld 3\nhalt"
    assert run(text, chaos_seed=1)[1].marks == ((Engine.VE, 2), (Engine.GE, 1), (Engine.LD, 3))


def test_machine_wait_for_two_tokens_of_one_semaphore_needs_both():
    text = "sync.ld | post x\nsync.ge | wait x x\nsync.ld | post x\nmark.ge 1\nhalt"
    with pytest.raises(DeviceFault, match="SEM_UNDERFLOW"):
        run(text)
    assert run(text, chaos_seed=0)[1].marks == ((Engine.GE, 1),)


def read_only(size: int) -> np.ndarray:
    array = np.zeros(size, np.int8)
    array.flags.writeable = False
    return array


SHARED = np.zeros(128, np.int8)


@pytest.mark.parametrize(
    ("buffers", "what"),
    [
        ([np.zeros(64, np.int8)], "1 given, the program has 2"),
        ([np.zeros(64, np.int8), np.zeros(63, np.int8)], r"argument C: too short \(63 bytes\)"),
        ([np.zeros(128, np.int8)[::2], np.zeros(64, np.int8)], "argument A: not contiguous"),
        ([np.zeros(64, ">i4"), np.zeros(64, np.int8)], "argument A: not contiguous little"),
        ([np.zeros(64, object), np.zeros(64, np.int8)], "argument A: not contiguous"),
        ([np.zeros(64, np.int8), read_only(64)], "argument C: read-only"),
        ([SHARED[:64], SHARED[60:124]], "argument C: stored to, and shares memory"),
    ],
)
def test_machine_unfit_buffers_are_refused_and_leave_it_well(buffers, what):
    machine = Machine(EA16)
    text = "ld.s s[0], A, rows=1 cols=1 | post x\nst.s C, s[0], rows=1 cols=1 | wait x\nhalt"
    with pytest.raises(InvalidArguments, match=what):
        machine.run(assemble(HEAD + text), buffers)
    assert machine.fault is None
