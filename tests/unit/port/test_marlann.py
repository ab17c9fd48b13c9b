"""MARLANN, a package of its own: instructions, emulator, and layers bit for bit as the plain interpreter has them."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plug_ins import EXAMPLES

from farm import ops, te
from farm.codegen.accelerator import with_knobs
from farm.errors import DeviceFault, InvalidProgram, UnsupportedFunction
from farm.ir import interpret

FOLDER = EXAMPLES / "marlann"


@pytest.fixture(scope="module", autouse=True)
def _package():
    """Let this process import the package from its folder; it is forgotten at the end."""
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))
    for name in [it for it in sys.modules if it.partition(".")[0] == "marlann"]:
        del sys.modules[name]


def isa():
    from marlann import isa

    return isa


def machine():
    from marlann.machine import Machine

    return Machine()


def accelerator():
    from marlann import MARLANN

    return MARLANN


# Encoding


@st.composite
def instructions(draw):
    it = isa()
    name = draw(st.sampled_from(sorted(it.FORMS)))
    limits = {"maddr": (1 << 17) - 1, "len": 512, "caddr": 511, "arg": 511}
    operands = tuple(draw(st.integers(0, limits[field])) for field in it.FORMS[name][1])
    return it.Instruction(name, operands)


@given(st.data())
def test_instruction_is_the_same_after_encoding_and_as_text(data):
    instruction = data.draw(instructions())
    word = isa().encode(instruction)
    assert 0 <= word < 1 << 32
    assert isa().decode(word) == instruction
    assert isa().assemble(str(instruction)) == [word]


@settings(max_examples=200)
@given(st.integers(0, (1 << 32) - 1))
def test_word_is_an_instruction_with_just_this_word_or_refused(word):
    try:
        found = isa().decode(word)
    except InvalidProgram:
        return
    assert isa().encode(found) == word


def test_words_are_those_of_the_description():
    # opcode in bits 5..0, MADDR from bit 15, LEN from bit 15, CADDR and ARG from bit 6
    for text, word in (
        ("Sync", 0),
        ("Call 0x1F000", 0x1F000 << 15 | 1),
        ("Execute 5, 512", 512 << 15 | 5 << 6 | 3),
        ("LoadCoeff1 8, 511", 8 << 15 | 511 << 6 | 6),
        ("ContinueLoad 3", 3 << 6 | 7),
        ("AddSBP 131071", 131071 << 15 | 11),
        ("ReLU1 2, 7", 2 << 15 | 7 << 6 | 22),
        ("LdMax0 6", 6 << 15 | 37),
        ("MMAXN 4, 9", 4 << 15 | 9 << 6 | 45),
    ):
        assert isa().assemble(text) == [word]


@pytest.mark.parametrize(
    "text",
    [
        "Jump 3",
        "Sync 1",
        "Call",
        "Call 131072",
        "Execute 0, 513",
        "Call x",
        "SetCBP 512",
        "Store 1",
    ],
)
def test_impossible_text_is_refused(text):
    with pytest.raises(InvalidProgram, match="marlann"):
        isa().assemble(text)


# The emulator


def run_code(it, text, at=0x8000):
    """Run a text with Return behind it, from an address."""
    words = np.array(isa().assemble(f"{text}\nReturn"), np.uint32)
    it.write(at, words)
    it.run(at)


BYTES = st.lists(st.integers(-128, 127), min_size=8, max_size=8)


@given(x=BYTES, c0=BYTES, c1=BYTES, start=st.integers(-(1 << 23), (1 << 23) - 1))
def test_multiply_adds_wrap_at_24_bits_in_both_accumulators(x, c0, c1, start):
    it = machine()
    it.write(0x100, np.array(x, np.int8))
    it.write(0x200, np.array([c0, c1], np.int8))
    it.accumulators = [start, start]
    run_code(it, "LoadCoeff0 0x200, 3\nLoadCoeff1 0x208, 3\nSetLBP 0x80\nSetCBP 1\nMACC 0x80, 2")
    products = [int(np.dot(np.array(x, np.int64), np.array(c, np.int64))) for c in (c0, c1)]
    wanted = [(start + p + (1 << 23)) % (1 << 24) - (1 << 23) for p in products]
    assert it.accumulators == wanted
    run_code(it, "MACCZ 0x80, 2")
    assert it.accumulators == products


@given(x=BYTES, c=BYTES, start=st.integers(-(1 << 23), (1 << 23) - 1))
def test_max_ignores_coefficients_of_the_least_number(x, c, start):
    it = machine()
    it.write(0x100, np.array(x, np.int8))
    it.write(0x200, np.array(c, np.int8))
    run_code(it, "LoadCoeff0 0x200, 0")
    kept = [a * b for a, b in zip(x, c, strict=True) if b != -128]
    for name, first in (("MMAX", start), ("MMAXZ", 0), ("MMAXN", -(1 << 23))):
        it.accumulators = [start, start]
        run_code(it, f"{name} 0x100, 0")
        assert it.accumulators[0] == max([first, *kept])


@given(
    value=st.integers(-(1 << 23), (1 << 23) - 1),
    other=st.integers(-(1 << 23), (1 << 23) - 1),
    shift=st.integers(0, 40),
)
def test_results_are_shifted_saturated_saved_and_loaded(value, other, shift):
    it = machine()
    it.accumulators = [value, other]
    run_code(
        it, f"SetSBP 0x10\nStore 0x30, {shift}\nReLU1 0x50, {shift}\nSave 0x60\nStore0 0x80, 0"
    )
    stored = [min(max(each >> shift, -128), 127) for each in (value, other)]
    memory = it.memory.view(np.int8)
    assert memory[0x40:0x42].tolist() == stored
    assert memory[0x60:0x62].tolist() == [0, max(stored[1], 0)]
    assert it.memory[0x70:0x78].view(np.int32).tolist() == [value, other]
    assert memory[0x91] == 0
    run_code(it, "LdAdd1 0x70\nLdMax0 0x74")
    assert it.accumulators[0] == max(value, other)
    assert it.accumulators[1] == (2 * other + (1 << 23)) % (1 << 24) - (1 << 23)


def test_calls_return_and_code_is_executed_from_its_memory():
    it = machine()
    it.write(0x300, np.array(isa().assemble("AddLBP 2\nAddSBP 4"), np.uint32))
    it.write(0x400, np.array(isa().assemble("Execute 10, 2\nReturn"), np.uint32))
    run_code(it, "LoadCode 0x300, 10\nContinueLoad 1\nSetLBP 0x1FFFF\nCall 0x400\nCall 0x400\nSync")
    assert (it.lbp, it.sbp) == (3, 8)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("MACC 1, 0", "ALIGN"),
        ("MACC 0x1FFFC, 0", "MEMORY"),
        ("Save 0x1FFFE", "MEMORY"),
        ("Save 1", "ALIGN"),
        ("Call 2", "ALIGN"),
        ("Execute 0, 1", "CODE"),
        ("Execute 500, 13", "CODE"),
        ("ContinueLoad 1", "LOAD"),
        ("LoadCoeff0 0, 510\nContinueLoad 2", "LOAD"),
        ("LoadCode 2, 0", "ALIGN"),
        ("LoadCode 0x8000, 0\nSync\nContinueLoad 1", "LOAD"),
        ("Call 0x8000", "CALLS"),
    ],
)
def test_wrong_program_is_a_typed_fault(text, fault):
    with pytest.raises(DeviceFault) as error:
        run_code(machine(), text)
    assert error.value.details["fault"] == fault


def test_sequencer_code_in_the_code_memory_is_a_fault():
    it = machine()
    it.write(0x300, np.array(isa().assemble("Sync"), np.uint32))
    with pytest.raises(DeviceFault, match="word 0 is Sync"):
        run_code(it, "LoadCode 0x300, 0\nExecute 0, 1")


@settings(max_examples=60)
@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=30), st.integers(0, 99))
def test_random_program_ends_or_is_refused_and_never_leaves_its_memory(words, seed):
    from marlann import machine as module

    it = machine()
    rng = np.random.default_rng(seed)
    known = [
        isa().encode(isa().Instruction("MACC", (2 * int(n), 1))) for n in rng.integers(0, 1000, 3)
    ]
    # Opcodes that exist, so that programs get somewhere.
    mixed = [
        word & ~63 | int(rng.choice([0, 1, 3, 4, 5, 7, 8, 9, 16, 24, 32, 40])) for word in words
    ]
    program = np.array([*known, *mixed], np.uint64).astype(np.uint32)
    it.write(0, program)
    fuel, module.FUEL = module.FUEL, 20_000
    try:
        it.run(0)
    except (DeviceFault, InvalidProgram):
        pass
    finally:
        module.FUEL = fuel
    assert all(-(1 << 23) <= each < 1 << 23 for each in it.accumulators)
    assert it.memory.shape == (1 << 17,)


# Layers


def epilogue(product, bias, shift, low):
    def body(*at):
        value = product[at] if bias is None else product[at] + bias[at[-1]].astype("int32")
        return te.clip(value >> shift, low, 127).astype("int8")

    return te.compute(product.shape, body, name="narrow")


def layer(kind, shape, bias_type, shift, low):
    if kind == "dense":
        m, n, k = shape
        x, w = te.placeholder((m, k), "int8", name="x"), te.placeholder((n, k), "int8", name="w")
        product = ops.dense(x, w)
    else:
        h, c, o, kernel, stride, dilation, padding = shape
        x = te.placeholder((2, h, h + 1, c), "int8", name="x")
        w = te.placeholder((*kernel, c, o), "int8", name="w")
        product = ops.conv2d(x, w, layout="NHWC", stride=stride, dilation=dilation, padding=padding)
    outputs = product.shape[-1]
    bias = None if bias_type is None else te.placeholder((outputs,), bias_type, name="bias")
    whole = product if shift is None else epilogue(product, bias, shift, low)
    used = [x, w, *([] if bias is None or shift is None else [bias]), whole]
    return te.function("layer", used)


def check(function, knobs, seed):
    it = accelerator()
    space = it.knobs(function, None)
    chosen = {name: values[knobs[name] % len(values)] for name, values in space.items()}
    program = it.compile(function, None, chosen)
    rng = np.random.default_rng(seed)
    inputs = []
    for param in function.params[:-1]:
        low, high = param.buffer.dtype.min, param.buffer.dtype.max
        made = rng.integers(low, high, param.buffer.shape, param.buffer.dtype.numpy, endpoint=True)
        if seed % 3 == 0:  # as far apart as can be
            made = rng.choice(np.array([low, high], made.dtype), made.shape)
        inputs.append(made)
    out = function.params[-1].buffer
    arrays = [*inputs, np.full(out.shape, 0x5A, out.dtype.numpy)]
    cycles = it.launch(program, None, "")(arrays)
    (wanted,) = interpret(function, inputs)
    assert np.array_equal(arrays[-1], wanted)
    assert cycles == it.cycles(program, None) > 0
    assert it.assemble(it.disassemble(program)) == program


CHOICES = st.fixed_dictionaries(
    {name: st.integers(0, 5) for name in ("pairs", "rows", "pairs_outside")}
)
BIASES = st.sampled_from([None, "int8", "int16"])


@settings(max_examples=25)
@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 20), st.integers(1, 40)),
    bias=BIASES,
    shift=st.sampled_from([None, 0, 4, 9]),
    low=st.sampled_from([-128, 0]),
    knobs=CHOICES,
    seed=st.integers(0, 999),
)
def test_dense_layer_is_bit_equal_to_the_interpreter(shape, bias, shift, low, knobs, seed):
    check(layer("dense", shape, bias, shift, low), knobs, seed)


@settings(max_examples=25)
@given(
    shape=st.tuples(
        st.integers(3, 5), st.integers(1, 5), st.integers(1, 6),
        st.tuples(st.integers(1, 3), st.integers(1, 3)), st.integers(1, 2), st.integers(1, 2), st.integers(0, 1),
    ),
    bias=BIASES,
    shift=st.sampled_from([None, 5]),
    low=st.sampled_from([-128, 0]),
    knobs=CHOICES,
    seed=st.integers(0, 999),
)  # fmt: skip
def test_convolution_is_bit_equal_to_the_interpreter(shape, bias, shift, low, knobs, seed):
    from hypothesis import assume

    h, _, _, kernel, _, dilation, padding = shape
    assume(all(dilation * (each - 1) + 1 <= h + 2 * padding for each in kernel))
    function = layer("conv2d", shape, bias, shift, low)
    assume(accelerator().supports(function, None) == "")  # extents of 1 may make it something else
    check(function, knobs, seed)


def test_layer_that_needs_many_runs_is_cut_and_bit_equal():
    x, w = te.placeholder((12, 500), "int8", name="x"), te.placeholder((330, 500), "int8", name="w")
    function = te.function("layer", [x, w, ops.dense(x, w)])
    it = accelerator()
    program = it.compile(function, None, {})
    rng = np.random.default_rng(5)
    a, b = rng.integers(-128, 128, (12, 500), np.int8), rng.integers(-128, 128, (330, 500), np.int8)
    a[0], b[0] = -128, -128  # the largest sum
    out = np.zeros((12, 330), np.int32)
    it.launch(program, None, "")([a, b, out])
    assert np.array_equal(out, a.astype(np.int32) @ b.T.astype(np.int32))


@pytest.mark.parametrize(
    ("depth", "bias", "fits"),
    [(511, None, True), (512, None, False), (510, "int16", True), (511, "int16", False)],
)
def test_depth_whose_sums_may_leave_24_bits_is_refused(depth, bias, fits):
    function = layer("dense", (1, 2, depth), bias, 3, -128)
    said = accelerator().supports(function, None)
    assert ("24 bits" in said) != fits
    if not fits:
        with pytest.raises(UnsupportedFunction):
            accelerator().compile(function, None, {})


def test_other_functions_are_refused_with_the_reason():
    x, w = te.placeholder((2, 3), "float32", name="x"), te.placeholder((4, 3), "float32", name="w")
    for function, why in (
        (te.function("f", [x, w, ops.dense(x, w)]), "not a product or a convolution of int8"),
        (layer("dense", (2, 2, 2), "int8", 3, -5), "more than a bias"),
        (te.function("f", [x, ops.softmax(x)]), "no layer"),
    ):
        assert why in accelerator().supports(function, None)


def test_knobs_change_the_cycles_and_travel_with_the_function():
    function = layer("dense", (16, 32, 64), "int8", 5, 0)
    it = accelerator()
    space = it.knobs(function, None)
    took = {
        value: it.cycles(it.compile(function, None, {"pairs": value}), None)
        for value in space["pairs"]
    }
    assert len(set(took.values())) > 1
    assert with_knobs(function, {"pairs": space["pairs"][1]}) != function


@pytest.mark.parametrize("cut", [0, 3, 4, 100, -4, -1])
def test_damaged_program_is_refused(cut):
    it = accelerator()
    program = it.compile(layer("dense", (2, 2, 2), None, None, 0), None, {})
    with pytest.raises(InvalidProgram):
        it.launch(program[:cut], None, "")
