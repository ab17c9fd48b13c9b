"""Convolutions and pools on the accelerator against plain arithmetic and the plain interpreter, bit for bit.

EA_LAYERS is how many random layers each test makes.
"""

from __future__ import annotations

import functools
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm import ops, te
from farm.codegen import compile_function
from farm.ea.config import CONFIGS
from farm.ea.emulator import Machine
from farm.ea.encoding import decode_program
from farm.ea.isa import Gemm, Vec
from farm.errors import InvalidInput, UnsupportedFunction
from farm.graph.arithmetic import COMPUTE
from farm.ir import DType, Role, interpret, serialise
from farm.runtime.ea.machine import CompiledMachine
from farm.runtime.ea.program import LoadedProgram
from farm.target import Target
from farm.tune.templates import template_for

LAYERS = int(os.environ.get("EA_LAYERS", "6"))
INTERPRETED = 4_000
"""Multiply-adds of a layer that the interpreter, which is slow, computes too."""
MACHINES = functools.cache(CompiledMachine)
CONFIG_NAMES = st.sampled_from(sorted(CONFIGS))


def compiled(function, config):
    module = compile_function(serialise(function), "device", Target.parse(f"ea -config={config}"))
    return decode_program(module.data)


def run(program, function, inputs, chaos_seed=None, compiled_machine=False, checked=False):
    """Run a program in order, in an adversarial order, or on the compiled machine."""
    out = next(p.buffer for p in function.params if p.role is Role.OUTPUT)
    result = np.full(out.shape, 77, out.dtype.numpy)
    given_arrays = iter(inputs)
    buffers = [result if p.role is Role.OUTPUT else next(given_arrays) for p in function.params]
    if compiled_machine:
        MACHINES(program.config).run(LoadedProgram.of(program), buffers, checked=checked)
    else:
        Machine(program.config).run(program, buffers, chaos_seed=chaos_seed)
    return result


def arrays_for(function, seed):
    rng = np.random.default_rng(seed)
    arrays = []
    for param in function.params:
        if param.role is Role.INPUT:
            info = np.iinfo(param.buffer.dtype.numpy)
            arrays.append(
                rng.integers(info.min, info.max, param.buffer.shape, info.dtype, endpoint=True)
            )
    return arrays


def scheduled(function, config, seed):
    """Return the function with hints drawn from its space: other tiles, in another order."""
    try:
        template = template_for(function, f"ea -config={config}")
    except InvalidInput:  # nothing to choose
        return function
    numbers = template.space.draw(np.random.default_rng(seed), min(4, template.space.size))
    drawn = [template.space.configuration(number) for number in numbers]
    # Of few, the one with the largest tiles: tiny ones make long programs.
    chosen = max(drawn, key=lambda it: it["rows"] * it.get("lines", 1) * it["blocks"])
    return template.schedule(chosen).function


def agrees(function, config, seed, compute, work):
    """Check the default's program and that of other tiles, on both machines and in another order."""
    inputs = arrays_for(function, seed)
    expected = compute(*inputs)
    if work <= INTERPRETED:
        np.testing.assert_array_equal(interpret(function, inputs)[0], expected)
    program = compiled(function, config)
    np.testing.assert_array_equal(run(program, function, inputs), expected)
    found = run(program, function, inputs, compiled_machine=True, checked=True)
    np.testing.assert_array_equal(found, expected)
    other = scheduled(function, config, seed)
    program = compiled(other, config)
    np.testing.assert_array_equal(run(program, other, inputs, chaos_seed=seed), expected)
    np.testing.assert_array_equal(run(program, other, inputs, compiled_machine=True), expected)


def plain(operator, operands, **attributes):
    """Return what an operator computes, by the arithmetic that graphs are defined with."""
    return COMPUTE[operator](DType.INT8, operands, attributes)


def wrapped(sums):
    return sums.astype(np.int64).astype(np.int32)


def requantised(name, tensors, sums, fused):
    """Return a function of sums, rescaled to int8 if `fused`, and what it makes of the sums."""
    if not fused:
        return te.function(name, [*tensors, sums]), wrapped
    columns = sums.shape[-1]
    bias = te.placeholder((columns,), "int32", name="bias")
    multiplier = te.placeholder((columns,), "int32", name="multiplier")
    shift = te.placeholder((columns,), "int32", name="shift")
    y = ops.relu(ops.requantize(ops.add(sums, bias), multiplier, shift))

    def rest(found, b, m, s):
        total = wrapped(wrapped(found) + b.astype(np.int64))
        return np.maximum(plain("requantize", [total, m, s], axis=-1, zero_point=0), 0)

    return te.function(name, [*tensors, bias, multiplier, shift, y]), rest


@st.composite
def windows(draw):
    """Kernels, strides, dilation and zeros around, and a size of image that they fit."""
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    least = [d * (k - 1) + 1 - 2 * p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    size = [max(1, n) + draw(st.integers(0, 6)) for n in least]
    return {"stride": stride, "padding": padding, "dilation": dilation}, kernel, size


@settings(max_examples=2 * LAYERS)
@given(
    window=windows(),
    images=st.integers(1, 2),
    depth=st.integers(1, 40),
    outputs=st.integers(1, 40),
    groups=st.sampled_from([1, 1, 1, 2, 3]),
    fused=st.booleans(),
    config=CONFIG_NAMES,
    seed=st.integers(0, 1 << 32),
)
def test_convolution_of_any_form_agrees_with_plain_arithmetic(
    window, images, depth, outputs, groups, fused, config, seed
):
    options, kernel, size = window
    options = {**options, "layout": "NHWC", "groups": groups}
    x = te.placeholder((images, *size, depth * groups), "int8", name="x")
    w = te.placeholder((*kernel, depth, outputs * groups), "int8", name="w")
    sums = ops.conv2d(x, w, **options)
    function, rest = requantised("convolution", [x, w], sums, fused)

    def compute(pixels, weights, *more):
        return rest(plain("conv2d", [pixels, weights], **options), *more)

    work = math.prod((*sums.shape, *kernel, depth))
    agrees(function, config, seed, compute, work)


@settings(max_examples=LAYERS)
@given(
    window=windows(),
    channels=st.integers(1, 70),
    fused=st.booleans(),
    config=CONFIG_NAMES,
    seed=st.integers(0, 1 << 32),
)
def test_depthwise_convolution_agrees_with_plain_arithmetic(window, channels, fused, config, seed):
    options, kernel, size = window
    options = {**options, "layout": "NHWC", "groups": channels}
    x = te.placeholder((1, *size, channels), "int8", name="x")
    w = te.placeholder((*kernel, 1, channels), "int8", name="w")
    sums = ops.conv2d(x, w, **options)
    function, rest = requantised("depthwise", [x, w], sums, fused)

    def compute(pixels, weights, *more):
        return rest(plain("conv2d", [pixels, weights], **options), *more)

    agrees(function, config, seed, compute, math.prod((*sums.shape, *kernel)))
    if channels > 1:  # the vector engine multiplies: matrices would be nearly empty
        engines = {type(each) for each in compiled(function, config).instructions}
        assert Gemm not in engines


@settings(max_examples=2 * LAYERS)
@given(
    window=windows(),
    images=st.integers(1, 2),
    channels=st.integers(1, 70),
    kind=st.sampled_from(["max", "mean", "least", "rescaled"]),
    config=CONFIG_NAMES,
    seed=st.integers(0, 1 << 32),
)
def test_pool_agrees_with_plain_arithmetic(window, images, channels, kind, config, seed):
    options, kernel, size = window
    stride = options["stride"]
    padding = tuple(min(p, k - 1) for p, k in zip(options["padding"], kernel, strict=True))
    size = [max(n, k) for n, k in zip(size, kernel, strict=True)]
    x = te.placeholder((images, *size, channels), "int8", name="x")
    given_too, compute = [], lambda pixels: pixels.min((1, 2))
    if kind == "least":
        r, s = te.reduce_axis(size[0], "r"), te.reduce_axis(size[1], "s")
        y = te.compute((images, channels), lambda b, c: te.min(x[b, r, s, c], (r, s)), name="least")
    else:
        pool = ops.max_pool2d if kind == "max" else ops.avg_pool2d
        y = pool(x, kernel, stride=stride, padding=padding, layout="NHWC")
        attributes = {"kernel": kernel, "stride": stride, "padding": padding, "layout": "NHWC"}
        name = "max_pool2d" if kind == "max" else "avg_pool2d"
        compute = lambda pixels: plain(name, [pixels], **attributes)  # noqa: E731
        if kind == "rescaled":
            factor = te.placeholder((channels,), "int32", name="factor")
            wide = te.compute(y.shape, lambda *at: y[at].astype("int32"), name="wide")
            given_too, y = [factor], ops.multiply(wide, factor)
            pooled = compute
            compute = lambda pixels, factors: wrapped(  # noqa: E731
                pooled(pixels).astype(np.int64) * factors
            )
    work = math.prod((*y.shape, *(size if kind == "least" else kernel)))
    agrees(te.function("pool", [x, *given_too, y]), config, seed, compute, work)


def tensor(name, *shape, dtype="int8"):
    return te.placeholder(shape, dtype, name=name)


@pytest.mark.parametrize(
    ("config", "size", "channels", "outputs", "kernel", "options"),
    [
        ("ea16", (40, 50), 70, 90, (3, 3), {"padding": (1, 1)}),
        ("ea8", (3, 1200), 5, 9, (3, 5), {"padding": (1, 2)}),
        ("ea8", (400, 4), 40, 3, (5, 1), {"stride": (3, 1)}),
        ("ea32", (30, 31), 3, 20, (11, 11), {"stride": (4, 4), "padding": (2, 2)}),
        ("ea8", (9, 9), 300, 40, (3, 3), {"padding": (2, 2), "dilation": (2, 2)}),
        ("ea16", (5, 6), 12, 8, (9, 9), {"padding": (9, 9)}),
        ("ea32", (20, 20), 33, 50, (1, 1), {"stride": (2, 3)}),
    ],
    ids=["large", "wide", "tall", "big kernel", "deep", "mostly zeros", "subsampled"],
)
def test_convolution_larger_than_the_memories_agrees_with_plain_arithmetic(
    config, size, channels, outputs, kernel, options
):
    x, w = tensor("x", 1, *size, channels), tensor("w", *kernel, channels, outputs)
    filled = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1, **options}
    sums = ops.conv2d(x, w, layout="NHWC", **filled)
    function, rest = requantised("convolution", [x, w], sums, True)
    inputs = arrays_for(function, 1)
    found = plain("conv2d", inputs[:2], layout="NHWC", **filled)
    program = compiled(function, config)
    np.testing.assert_array_equal(
        run(program, function, inputs, compiled_machine=True), rest(found, *inputs[2:])
    )


@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    config=CONFIG_NAMES,
    seed=st.integers(0, 1 << 32),
)
@settings(max_examples=2 * LAYERS)
def test_sum_of_two_tensors_of_any_rank_through_a_table_agrees_with_the_interpreter(
    shape, config, seed
):
    a, b = tensor("a", *shape), tensor("b", *shape)
    factor = tensor("factor", shape[-1], dtype="int32")
    multiplier, shift = (tensor(name, shape[-1], dtype="int32") for name in ("m", "s"))
    table = tensor("table", 256)
    wide = [te.compute(t.shape, lambda *i, t=t: t[i].astype("int32"), name="w") for t in (a, b)]
    total = ops.add(ops.multiply(wide[0], factor), wide[1])
    y = ops.lookup(ops.requantize(total, multiplier, shift, 3), table)
    function = te.function("both", [a, b, factor, multiplier, shift, table, y])
    agrees(function, config, seed, lambda *inputs: interpret(function, inputs)[0], math.inf)


def _refused():
    image, weights = tensor("x", 1, 6, 6, 4), tensor("w", 3, 3, 4, 8)
    k, q = te.reduce_axis(4), te.reduce_axis(4)

    def conv(x, w, **options):
        return [x, w], ops.conv2d(x, w, layout="NHWC", **options)

    channels_first, turned = tensor("x", 1, 4, 6, 6), tensor("w", 8, 4, 3, 3)
    bordered = ops.pad(image, [(0, 0), (1, 1), (1, 1), (0, 0)], 5)
    wide = tensor("z", 4, 4, dtype="int32")
    cube, cubes = tensor("x", 4, 4, 4, 4, 3), tensor("w", 2, 2, 2, 3, 5)
    r, s, t, c = (te.reduce_axis(n, name) for n, name in ((2, "r"), (2, "s"), (2, "t"), (3, "c")))
    return {
        "channels first": (
            ([channels_first], ops.max_pool2d(channels_first, 2)),
            "the innermost axis of x is not its channels (use NHWC)",
        ),
        "channels first, with weights": (
            ([channels_first, turned], ops.conv2d(channels_first, turned)),
            "the innermost axis of the result is not the outputs of w (use NHWC",
        ),
        "far apart": (
            conv(tensor("x", 1, 60, 60, 4), weights, stride=17),
            "its windows are 17 pixels apart, more than 15",
        ),
        "fives around it": (
            ([image, weights], ops.conv2d(bordered, weights, layout="NHWC")),
            "there is 5 around x, not 0",
        ),
        "int32": (
            ([wide], te.compute((4,), lambda j: te.sum(wide[k, j], k), name="y")),
            "z is not an int8 input",
        ),
        "across lanes": (
            (
                [image],
                te.compute((1, 6, 6), lambda b, i, j: te.max(image[b, i, j, q], q), name="y"),
            ),
            "no instruction reduces across the lanes of a row",
        ),
        "three axes": (
            (
                [cube, cubes],
                te.compute(
                    (4, 3, 3, 3, 5),
                    lambda b, i, j, h, o: te.sum(
                        cube[b, i + r, j + s, h + t, c].astype("int32")
                        * cubes[r, s, t, c, o].astype("int32"),
                        (r, s, t, c),
                    ),
                    name="y",
                ),
            ),
            "windows slide over more than two axes",
        ),
    }


@pytest.mark.parametrize("case", sorted(_refused()))
def test_windows_that_the_machine_has_not_are_refused_with_the_reason(case):
    (tensors, y), reason = _refused()[case]
    function = te.function("f", [*{t.name: t for t in tensors}.values(), y])
    with pytest.raises(UnsupportedFunction) as caught:
        compiled(function, "ea16")
    assert reason in caught.value.message
    assert caught.value.message.endswith("place it on the CPU")


def test_mean_of_whole_images_takes_one_instruction_for_each_block():
    x = tensor("x", 1, 8, 8, 16)
    function = te.function("mean", [x, ops.avg_pool2d(x, 8, layout="NHWC")])
    program = compiled(function, "ea16")
    assert max(each.rows for each in program.instructions if isinstance(each, Vec)) == 64
    assert len(program.instructions) < 16
