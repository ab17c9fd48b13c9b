"""The compiled machine against the plain one: data, faults, cycles."""

from __future__ import annotations

import random
import struct
import zlib

import numpy as np
import pytest
from fuzz.ea_programs import buffers, damaged, disagreement, random_program

from farm.ea.assembly import assemble
from farm.ea.config import CONFIGS, EA8, EA16
from farm.ea.emulator import Machine
from farm.ea.encoding import encode_program
from farm.ea.isa import Engine, Gemm, Halt, Load, Sync, Transfer
from farm.ea.program import Arg, Program
from farm.ea.timing import simulate
from farm.errors import DeviceFault, InvalidArguments, InvalidProgram
from farm.runtime.ea import code
from farm.runtime.ea.machine import CompiledMachine
from farm.runtime.ea.program import LoadedProgram

HEAD = ".isa 1\n.mach ea16\n.args A[64], C[64]\n.sem x, y\n"
COPY = "ld.s s[0], A, rows=4 cols=16 dstride=16 | post x\nst.s C, s[0], rows=4 cols=16 dstride=16 | wait x\n"


@pytest.fixture(scope="module")
def machines():
    return {name: (Machine(config), CompiledMachine(config)) for name, config in CONFIGS.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_random_programs_agree_in_every_byte_cycle_and_fault(machines, name):
    plain, compiled = machines[name]
    ends = set()
    for seed in range(40):
        rng = random.Random(f"{name} {seed}")
        program = random_program(rng, plain.config)
        difference, end = disagreement(program, seed, plain, compiled, 1 << 32)
        assert (difference, end) == (None, "ok"), seed
        broken = damaged(rng, program)
        if broken is not None:
            fuel = rng.choice((1 << 32, 100))
            difference, end = disagreement(broken, seed, plain, compiled, fuel)
            assert difference is None, seed
            ends.add(end)
    assert len(ends) > 3


def test_a_fault_is_told_in_the_same_words_and_stays_until_reset(machines):
    machine = CompiledMachine(EA16)
    bad = LoadedProgram.of(assemble(HEAD + "ld.s s[16380], A, rows=8 cols=8\nhalt\n"))
    good = LoadedProgram.of(assemble(HEAD + COPY + "halt\n"))
    arrays = [np.arange(64, dtype=np.int8), np.zeros(64, np.int8)]
    with pytest.raises(DeviceFault, match=r"SPAD_OOB at pc 0 .*16388") as fault:
        machine.run(bad, arrays)
    with pytest.raises(DeviceFault, match="earlier"):
        machine.run(good, arrays)
    machine.reset()
    machine.run(good, arrays)
    assert np.array_equal(arrays[0], arrays[1])
    with pytest.raises(DeviceFault) as plain:
        machines["ea16"][0].run(bad.program, arrays)
    assert str(plain.value) == str(fault.value)


def test_what_a_program_stored_before_its_fault_is_stored():
    arrays = [np.arange(64, dtype=np.int8), np.zeros(64, np.int8)]
    program = assemble(HEAD + COPY + "st.s C, s[9], rows=1 cols=1\nhalt\n")
    with pytest.raises(DeviceFault, match="UNINIT at pc 2"):
        CompiledMachine(EA16).run(LoadedProgram.of(program), arrays)
    assert np.array_equal(arrays[0], arrays[1])


def test_nothing_of_one_run_is_left_for_the_next():
    machine = CompiledMachine(EA16)
    arrays = [np.arange(64, dtype=np.int8), np.zeros(64, np.int8)]
    machine.run(LoadedProgram.of(assemble(HEAD + COPY + "halt\n")), arrays)
    reader = LoadedProgram.of(assemble(HEAD + "st.s C, s[0], rows=1 cols=16\nhalt\n"))
    with pytest.raises(DeviceFault, match="UNINIT"):
        machine.run(reader, arrays)


def test_fuel_ends_a_program_before_it_is_done():
    fills = Load(space=Transfer.SPAD_I8, row=0, rows=4095, cols=16, lstride=4095, fill=True)
    program = LoadedProgram.of(Program(EA16, (), (), (*[fills] * 3, Halt())))
    machine = CompiledMachine(EA16)
    assert machine.run(program, []).fuel == 3 * 4096 + 1
    with pytest.raises(DeviceFault, match="FUEL at pc 2"):
        machine.run(program, [], fuel=3 * 4096 - 1)


def test_checked_mode_refuses_a_hazard_that_one_order_hides():
    racing = assemble(HEAD + COPY.replace("| post x", "").replace("| wait x", "") + "halt\n")
    arrays = [np.arange(64, dtype=np.int8), np.zeros(64, np.int8)]
    machine = CompiledMachine(EA16)
    machine.run(LoadedProgram.of(racing), arrays)
    with pytest.raises(InvalidProgram, match="HAZARD"):
        machine.run(LoadedProgram.of(racing), arrays, checked=True)


def test_another_machines_program_is_refused():
    program = LoadedProgram.of(Program(EA8, (), (), (Halt(),)))
    with pytest.raises(DeviceFault, match="VERSION"):
        CompiledMachine(EA16).run(program, [])
    with pytest.raises(InvalidProgram, match="another machine"):
        LoadedProgram(encode_program(program.program), EA16)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ([np.zeros(64, np.int8)], "1 given"),
        ([np.zeros(64, np.int8), np.zeros(63, np.int8)], "too short"),
        ([np.zeros(64, np.int8), np.zeros((64, 2), np.int8)[:, 0]], "not contiguous"),
        ([np.zeros(64, np.int8), np.frombuffer(bytes(64), np.int8)], "read-only"),
    ],
)
def test_buffers_that_do_not_fit_are_refused(arrays, words):
    program = LoadedProgram.of(assemble(HEAD + COPY + "halt\n"))
    machine = CompiledMachine(EA16)
    with pytest.raises(InvalidArguments, match=words):
        machine.run(program, arrays)
    assert machine.fault is None


def test_an_image_with_an_absurd_length_is_refused():
    image = encode_program(Program(EA16, (Arg("A", 64),), (), (Halt(),)))
    image = image[:32] + struct.pack("<Q", 1 << 63) + image[40:]
    image = image[:12] + bytes(4) + image[16:]
    image = image[:12] + struct.pack("<I", zlib.crc32(image)) + image[16:]
    with pytest.raises(InvalidProgram, match="bad length"):
        LoadedProgram(image, EA16)


def test_time_needs_no_data_and_agrees_on_a_real_layer(machines):
    tiles = []
    for row in range(30):
        tiles.append(
            Load(
                space=Transfer.SPAD_I8,
                arg=0,
                row=64 * row,
                rows=64,
                cols=16,
                dstride=16,
                lstride=64,
                offset=1024 * row,
                posts=(0,),
            )
        )
        tiles.append(Gemm(m=16, nt=1, kt=1, a=64 * row, w=64 * row + 32, c=16 * row, waits=(0,)))
    program = Program(
        EA16, (Arg("A", 1 << 20),), ("full",), (*tiles, Sync(engine=Engine.ST), Halt())
    )
    assert machines["ea16"][1].time(LoadedProgram.of(program), spans=True) == simulate(program)


def test_the_compiled_machine_is_kept_and_a_torn_one_made_again(tmp_path, monkeypatch):
    compiled = []
    original = code.compile_machine

    def counting(config):
        compiled.append(config.name)
        return original(config)

    def load(folder):
        code.machine_code.cache_clear()  # as a new process
        return code.machine_code(EA8, folder)

    monkeypatch.setattr(code, "compile_machine", counting)
    load(tmp_path)
    load(tmp_path)
    assert compiled == ["ea8"]
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    load(tmp_path)
    assert file.read_bytes() == whole
    file.write_bytes(whole[:-1])
    load(file / "which is no folder")
    assert compiled == ["ea8"] * 3


def test_buffers_of_the_comparison_hold_every_byte():
    assert all(len(np.unique(array)) > 150 for array in buffers(0)[:2])


def test_a_fault_far_into_a_long_program_is_told_without_decoding_all_of_it(monkeypatch):
    fill = Load(space=Transfer.SPAD_I8, row=0, rows=1, cols=16, lstride=1, fill=True)
    bad = Sync(engine=Engine.GE, waits=(3,))
    image = encode_program(Program(EA16, (), (), (*[fill] * 5000, bad, Halt())))
    loaded = LoadedProgram(image, EA16)
    decoded = []
    monkeypatch.setattr("farm.runtime.ea.program.decode_program", decoded.append)
    with pytest.raises(DeviceFault, match=r"SEM_UNDERFLOW at pc 5000 \(sync\.ge \| wait sem3\)"):
        CompiledMachine(EA16).run(loaded, [])
    assert decoded == []
