"""Layers on the accelerator against the plain interpreter, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm import te
from farm.codegen import compile_function
from farm.ea.config import CONFIGS
from farm.ea.emulator import Machine
from farm.ea.encoding import decode_program
from farm.errors import UnsupportedFunction
from farm.ir import Role, interpret, serialise, signature_of
from farm.target import Target

CONFIG_NAMES = st.sampled_from(sorted(CONFIGS))


def run(function, inputs, config="ea16", chaos_seed=None):
    module = compile_function(serialise(function), "device", Target.parse(f"ea -config={config}"))
    assert module.signature == signature_of(function)
    program = decode_program(module.data)
    out = next(p.buffer for p in function.params if p.role is Role.OUTPUT)
    result = np.full(out.shape, 77, out.dtype.numpy)
    given_arrays = iter(inputs)
    buffers = [result if p.role is Role.OUTPUT else next(given_arrays) for p in function.params]
    Machine(program.config).run(program, buffers, chaos_seed=chaos_seed)
    return result


def arrays_for(function, rng):
    """Random inputs over the whole range of their types, ends included."""
    arrays = []
    for param in function.params:
        if param.role is Role.INPUT:
            info = np.iinfo(param.buffer.dtype.numpy)
            array = rng.integers(info.min, info.max, param.buffer.shape, info.dtype, endpoint=True)
            ends = rng.random(array.shape)
            array[ends < 0.1] = info.min
            array[ends > 0.9] = info.max
            arrays.append(array)
    return arrays


def dense(rows, depth, columns, dtype="int8", low=-128, swap=False):
    a = te.placeholder((rows, depth), "int8", name="a")
    w = te.placeholder((depth, columns), "int8", name="w")
    bias = te.placeholder((columns,), "int32", name="bias")
    multiplier = te.placeholder((columns,), "int32", name="multiplier")
    shift = te.placeholder((columns,), "int32", name="shift")
    k = te.reduce_axis(depth, "k")

    def term(i, j):
        left, right = a[i, k].astype("int32"), w[k, j].astype("int32")
        return right * left if swap else left * right

    c = te.compute((rows, columns), lambda i, j: te.sum(term(i, j), k), name="c")
    y = te.compute(
        (rows, columns),
        lambda i, j: te.clip(
            te.requantize(c[i, j] + bias[j], multiplier[j], shift[j]), low, 127
        ).astype(dtype),
        name="y",
    )
    return te.function("dense", [a, w, bias, multiplier, shift, y])


@given(
    rows=st.integers(1, 20),
    depth=st.integers(1, 40),
    columns=st.integers(1, 40),
    config=CONFIG_NAMES,
    low=st.sampled_from([-128, 0]),
    dtype=st.sampled_from(["int8", "int32"]),
    swap=st.booleans(),
    seed=st.integers(0, 1 << 32),
)
def test_dense_of_any_size_agrees_with_the_interpreter(
    rows, depth, columns, config, low, dtype, swap, seed
):
    function = dense(rows, depth, columns, dtype, low, swap)
    inputs = arrays_for(function, np.random.default_rng(seed))
    (expected,) = interpret(function, inputs)
    np.testing.assert_array_equal(run(function, inputs, config), expected)
    np.testing.assert_array_equal(run(function, inputs, config, chaos_seed=seed), expected)


@pytest.mark.parametrize("config", sorted(CONFIGS))
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(2000, 20, 17), (3, 9000, 5), (5, 40, 2500), (130, 700, 300)],
    ids=["tall", "deep", "wide", "all"],
)
def test_dense_larger_than_the_memories_agrees_with_numpy(rows, depth, columns, config):
    function = dense(rows, depth, columns, low=0)
    rng = np.random.default_rng(rows)
    a = rng.integers(-128, 128, (rows, depth), np.int8)
    w = rng.integers(-128, 128, (depth, columns), np.int8)
    bias = rng.integers(-5000, 5000, columns, np.int32)
    multiplier = rng.integers(1 << 30, 1 << 31, columns, np.int32)
    shift = rng.integers(34, 46, columns, np.int32)
    scaled = (a.astype(np.int64) @ w + bias) * multiplier
    rounded = (scaled + (np.int64(1) << (shift - 1).astype(np.int64))) >> shift
    expected = np.clip(rounded, 0, 127).astype(np.int8)
    inputs = [a, w, bias, multiplier, shift]
    np.testing.assert_array_equal(run(function, inputs, config), expected)
    np.testing.assert_array_equal(run(function, inputs, config, chaos_seed=7), expected)


def test_product_alone_gives_the_int32_sums():
    a = te.placeholder((5, 33), "int8", name="a")
    w = te.placeholder((33, 18), "int8", name="w")
    k = te.reduce_axis(33)
    c = te.compute(
        (5, 18), lambda i, j: te.sum(a[i, k].astype("int32") * w[k, j].astype("int32"), k), name="c"
    )
    function = te.function("product", [a, w, c])
    inputs = arrays_for(function, np.random.default_rng(0))
    np.testing.assert_array_equal(
        run(function, inputs), inputs[0].astype(np.int32) @ inputs[1].astype(np.int32)
    )


LEAVES = ("product", "matrix", "narrow", "vector", "narrow_vector", "constant")


@st.composite
def expressions(draw, depth=3):
    """Trees of element-wise operations as nested tuples."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        leaf = draw(st.sampled_from(LEAVES))
        value = draw(st.sampled_from([0, 1, -1, 5, 127, -128, 40000, -(1 << 31), (1 << 31) - 1]))
        return (leaf, value)
    op = draw(
        st.sampled_from(
            [
                "add",
                "sub",
                "mul",
                "min",
                "max",
                "and",
                "or",
                "xor",
                "shl",
                "shl8",
                "shr",
                "shr_by",
                "div",
                "mod",
                "cast8",
                "cast16",
                "rq",
                "rq_const",
                "add8",
            ]
        )
    )
    return (op, draw(expressions(depth=depth - 1)), draw(expressions(depth=depth - 1)))


def build(tree, at):
    """Return the te expression of a tree; `at` maps leaf names to expressions."""
    match tree:
        case ("constant", value):
            return te.const(value, "int32")
        case (leaf, int()):
            return at[leaf]
    op, left, right = tree
    a, b = build(left, at), build(right, at)
    binary = {
        "add": lambda: a + b,
        "sub": lambda: a - b,
        "mul": lambda: a * b,
        "min": lambda: te.minimum(a, b),
        "max": lambda: te.maximum(a, b),
        "and": lambda: a & b,
        "or": lambda: a | b,
        "xor": lambda: a ^ b,
        "shl": lambda: a << te.const(3, "int32"),
        "shl8": lambda: (a.astype("int8") << te.const(9, "int8")).astype("int32"),
        "shr": lambda: a >> te.const(5, "int32"),
        "shr_by": lambda: a >> b,
        "div": lambda: a // te.const(8, "int32"),
        "mod": lambda: a % te.const(16, "int32"),
        "cast8": lambda: a.astype("int8").astype("int32"),
        "cast16": lambda: a.astype("int16").astype("int32"),
        "add8": lambda: (a.astype("int8") + b.astype("int8")).astype("int32"),
        "rq": lambda: te.requantize(a, at["vector"], at["shift"]),
        "rq_const": lambda: te.requantize(a, te.const(1518500250, "int32"), te.const(33, "int32")),
    }
    return binary[op]()


@given(
    tree=expressions(),
    rows=st.integers(1, 9),
    columns=st.integers(1, 40),
    out=st.sampled_from(["int32", "int8"]),
    config=CONFIG_NAMES,
    seed=st.integers(0, 1 << 32),
)
def test_any_element_wise_expression_agrees_with_the_interpreter(
    tree, rows, columns, out, config, seed
):
    a = te.placeholder((rows, 3), "int8", name="a")
    w = te.placeholder((3, columns), "int8", name="w")
    matrix = te.placeholder((rows, columns), "int32", name="matrix")
    narrow = te.placeholder((rows, columns), "int8", name="narrow")
    vector = te.placeholder((columns,), "int32", name="vector")
    narrow_vector = te.placeholder((columns,), "int8", name="narrow_vector")
    shift = te.placeholder((columns,), "int32", name="shift")
    k = te.reduce_axis(3)
    c = te.compute(
        (rows, columns),
        lambda i, j: te.sum(a[i, k].astype("int32") * w[k, j].astype("int32"), k),
        name="c",
    )

    def body(i, j):
        leaves = {
            "product": c[i, j],
            "matrix": matrix[i, j],
            "narrow": narrow[i, j].astype("int32"),
            "vector": vector[j],
            "narrow_vector": narrow_vector[j].astype("int32"),
            "shift": shift[j],
        }
        return build(tree, leaves).astype(out)

    y = te.compute((rows, columns), body, name="y")
    used = [a, w, matrix, narrow, vector, narrow_vector, shift]
    function = te.function("layer", [*used, y])
    inputs = arrays_for(function, np.random.default_rng(seed))
    (expected,) = interpret(function, inputs)
    np.testing.assert_array_equal(run(function, inputs, config, chaos_seed=seed), expected)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_shift_by_more_than_the_bits_wraps_around_as_in_the_ir(dtype):
    x = te.placeholder((3, 20), "int8", name="x")
    for amount in (0, 7, 8, 9, 15, 17, 31, 33, -1):
        y = te.compute(
            (3, 20),
            lambda i, j, n=amount: (x[i, j].astype(dtype) << te.const(n, dtype)).astype("int32"),
            name="y",
        )
        function = te.function("shifted", [x, y])
        inputs = arrays_for(function, np.random.default_rng(6))
        np.testing.assert_array_equal(run(function, inputs), interpret(function, inputs)[0])


def test_stages_in_between_are_folded_into_one_expression():
    x = te.placeholder((4, 20), "int32", name="x")
    twice = te.compute((4, 20), lambda i, j: x[i, j] * 2, name="twice")
    y = te.compute((4, 20), lambda i, j: te.maximum(twice[i, j] + twice[i, j], 0), name="y")
    function = te.function("relu4", [x, y])
    inputs = arrays_for(function, np.random.default_rng(3))
    np.testing.assert_array_equal(run(function, inputs), interpret(function, inputs)[0])


def test_vector_function_runs_as_one_row():
    x = te.placeholder((50,), "int32", name="x")
    z = te.placeholder((50,), "int8", name="z")
    y = te.compute((50,), lambda j: x[j] - z[j].astype("int32"), name="y")
    function = te.function("difference", [x, z, y])
    inputs = arrays_for(function, np.random.default_rng(4))
    np.testing.assert_array_equal(run(function, inputs), interpret(function, inputs)[0])


def _unsupported():
    x = te.placeholder((4, 4), "int32", name="x")
    f = te.placeholder((4, 4), "float32", name="f")
    a = te.placeholder((4, 4), "int8", name="a")
    k = te.reduce_axis(4)
    q = te.reduce_axis(4)

    def compute(body):
        return te.compute((4, 4), body, name="y")

    def wide(tensor, i, j):
        return tensor[i, j].astype("int32")

    product = te.compute((4, 4), lambda i, j: te.sum(wide(a, i, k) * wide(a, k, j), k), name="p")
    twice = te.compute((4, 4), lambda i, j: te.sum(wide(a, i, q) * wide(a, q, j), q), name="q")
    one, two = compute(lambda i, j: x[i, j] + 1), compute(lambda i, j: x[i, j] + 2)
    some_columns = te.compute((4, 3), lambda i, j: product[i, j] + 1, name="y")
    some_rows = te.compute((2, 4), lambda i, j: product[i, j] + 1, name="y")
    return {
        "float": ([f, compute(lambda i, j: f[i, j] + 1.0)], "float32"),
        "select": (
            [x, compute(lambda i, j: te.where(x[i, j] > 0, x[i, j], 0))],
            "no select",
        ),
        "transposed": (
            [a, compute(lambda i, j: te.sum(wide(a, i, k) * wide(a, j, k), k))],
            "A[i, k] * W[k, j]",
        ),
        "maximum over an axis": ([x, te.compute((4,), lambda i: te.max(x[i, k], k))], "reduced"),
        "gather": ([x, compute(lambda i, j: x[j, i])], "neither [row, column] nor [column]"),
        "two products": (
            [a, compute(lambda i, j: product[i, j] + twice[i, j])],
            "two products",
        ),
        "two outputs": ([x, one, te.compute((4, 4), lambda i, j: two[i, j], name="z")], "outputs"),
        "some columns of a product": ([a, some_columns], "y has not all of t0"),
        "some rows of a product": ([a, some_rows], "y has not all of t0"),
        "odd divisor": ([x, compute(lambda i, j: x[i, j] // 3)], "//"),
        "wide output": ([x, compute(lambda i, j: x[i, j].astype("int16"))], "int16"),
    }


@pytest.mark.parametrize("case", sorted(_unsupported()))
def test_unsupported_function_is_refused_with_the_reason(case):
    tensors, reason = _unsupported()[case]
    function = te.function("f", tensors)
    with pytest.raises(UnsupportedFunction) as caught:
        compile_function(serialise(function), "device", Target.parse("ea"))
    assert reason in caught.value.message
    assert caught.value.message.startswith("function f on ea: ")
    assert "place it on the CPU" in caught.value.message


def test_same_function_gives_the_same_program():
    target = Target.parse("ea")
    first = compile_function(serialise(dense(9, 9, 9)), "device", target)
    assert compile_function(serialise(dense(9, 9, 9)), "device", target) == first
