"""Loops, branches, inner buffers and calls, compiled and interpreted."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import farm.te as te
from farm.artifact.abi import ReturnKind, encode_return, private_symbol
from farm.codegen import compile_function
from farm.codegen.llvm.statements import MAX_INNER_BYTES
from farm.errors import FarmError, InvalidArguments, UndefinedReference, UnsupportedFunction
from farm.ir import Buffer, DType, Function, Param, Role, serialise, verify
from farm.ir.expr import Binary, BinaryOp, Load, Var, const, select
from farm.ir.stmt import Allocate, Block, Call, For, If, Store
from farm.target import Target

RNG = np.random.default_rng(0)


def buffer(name, dtype, *shape, align=0):
    kind = DType(dtype)
    return Buffer(name, kind, shape, align or kind.size_bytes)


def function(name, params, body, **options):
    made = Function(name, tuple(Param(b, role) for b, role in params), body, **options)
    verify(made)
    return made


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def matmul(m, n, k, dtype="float32"):
    a, b = te.placeholder((m, k), dtype, name="a"), te.placeholder((k, n), dtype, name="b")
    axis = te.reduce_axis(k, name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis), name="c")
    return te.function("matmul", [a, b, c])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint32"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 9), (16, 24, 8)])
def test_matmul_equals_interpreter(shape, dtype, check):
    m, n, k = shape
    values = normal(m, k) * 50, normal(k, n) * 50
    with np.errstate(invalid="ignore"):
        arrays = [array.astype(np.int64).astype(dtype) for array in values]
    check(matmul(m, n, k, dtype), arrays)


def test_quantised_dense_equals_interpreter(check):
    a = te.placeholder((4, 16), "int8", name="a")
    w = te.placeholder((16, 8), "int8", name="w")
    bias = te.placeholder((8,), "int32", name="bias")
    k = te.reduce_axis(16, name="k")
    acc = te.compute(
        (4, 8),
        lambda i, j: te.sum(a[i, k].astype("int32") * w[k, j].astype("int32"), k),
        name="acc",
    )
    out = te.compute(
        (4, 8),
        lambda i, j: te.clip((acc[i, j] + bias[j]) >> 7, -128, 127).astype("int8"),
        name="out",
    )
    inputs = [RNG.integers(-128, 128, shape).astype(np.int8) for shape in ((4, 16), (16, 8))]
    inputs.append(RNG.integers(-(2**20), 2**20, 8).astype(np.int32))
    check(te.function("dense", [a, w, bias, out]), inputs)


def test_softmax_is_near_numpy(run):
    x = te.placeholder((5, 33), "float32", name="x")
    k, n = te.reduce_axis(33, name="k"), te.reduce_axis(33, name="n")
    peak = te.compute((5,), lambda i: te.max(x[i, k], k), name="peak")
    power = te.compute((5, 33), lambda i, j: te.exp(x[i, j] - peak[i]), name="power")
    total = te.compute((5,), lambda i: te.sum(power[i, n], n), name="total")
    y = te.compute((5, 33), lambda i, j: power[i, j] / total[i], name="y")
    array = normal(5, 33) * 10
    exact = np.exp(array.astype(np.float64) - array.max(axis=1, keepdims=True))
    exact /= exact.sum(axis=1, keepdims=True)
    actual = run(te.function("softmax", [x, y]), [array])[0]
    np.testing.assert_allclose(actual, exact, rtol=2e-5, atol=1e-30)


def test_padded_convolution_reads_nothing_outside(check):
    x = te.placeholder((6, 7), "int16", name="x")
    w = te.placeholder((3, 3), "int16", name="w")
    di, dj = te.reduce_axis(3, name="di"), te.reduce_axis(3, name="dj")

    def padded(i, j):
        inside = (i >= 1) & (i < 7) & (j >= 1) & (j < 8)
        return te.where(inside, x[i - 1, j - 1], 0)

    y = te.compute(
        (6, 7), lambda i, j: te.sum(padded(i + di, j + dj) * w[di, dj], (di, dj)), name="y"
    )
    inputs = [RNG.integers(-99, 99, shape).astype(np.int16) for shape in ((6, 7), (3, 3))]
    check(te.function("convolution", [x, w, y]), inputs)


def test_guarded_index_of_data_reads_nothing_outside(check):
    table, index = buffer("table", "float64", 10), buffer("index", "int64", 64)
    out, i = buffer("out", "float64", 64), Var("i")
    at = Binary(
        BinaryOp.MIN, Binary(BinaryOp.MAX, Load(index, (i,)), const(0, "int64")), const(9, "int64")
    )
    body = For(i, 64, Store(out, (i,), Load(table, (at,))))
    gather = function(
        "gather", [(table, Role.INPUT), (index, Role.INPUT), (out, Role.OUTPUT)], body
    )
    positions = RNG.integers(-(2**63), 2**63 - 1, 64)
    positions[:20] = np.arange(-5, 15)
    check(gather, [normal(10, dtype=np.float64), positions])


def test_branches_take_the_side_that_holds(check):
    x, y, i = buffer("x", "int32", 40), buffer("y", "int32", 40), Var("i")
    value = Load(x, (i,))
    nested = If(value > 50, Store(y, (i,), value * 2), Store(y, (i,), value - 1))
    body = For(
        i,
        40,
        Block(
            (
                Store(y, (i,), const(7, "int32")),
                If(value > 0, nested),
                If(i < 3, Store(y, (i,), value)),
            )
        ),
    )
    made = function("branches", [(x, Role.INPUT), (y, Role.OUTPUT)], body)
    check(made, [RNG.integers(-100, 100, 40).astype(np.int32)])


def test_inout_parameter_is_read_and_written(check):
    x, y, i = buffer("x", "float32", 9), buffer("y", "float32", 9), Var("i")
    body = For(i, 9, Store(y, (i,), Load(y, (i,)) * 3.0 + Load(x, (i,))))
    check(function("axpy", [(x, Role.INPUT), (y, Role.INOUT)], body), [normal(9), normal(9)])


def test_scalars_and_bools_are_loaded_and_stored(check):
    x, flag, y = buffer("x", "float32"), buffer("flag", "bool"), buffer("y", "bool", 1, 1, 1)
    zero = const(0, "int64")
    body = For(Var("i"), 1, Store(y, (zero, zero, Var("i")), Load(flag, ()) & (Load(x, ()) > 0.5)))
    made = function("scalars", [(x, Role.INPUT), (flag, Role.INPUT), (y, Role.OUTPUT)], body)
    for value in (0.25, 0.75):
        check(made, [np.array(value, np.float32), np.array(True)])


@pytest.mark.parametrize("elements", [100, 16_384, 40_000])
def test_inner_buffers_on_stack_or_static_hold_their_values(elements, check):
    x = te.placeholder((elements,), "int32", name="x")
    twice = te.compute((elements,), lambda i: x[i] * 2, name="twice")
    total = te.compute((elements,), lambda i: twice[elements - 1 - i] + twice[i], name="total")
    y = te.compute((elements,), lambda i: total[i] - x[i], name="y")
    check(te.function("inner", [x, y]), [RNG.integers(-99, 99, elements).astype(np.int32)])


def test_inner_buffer_with_wide_alignment_works(check):
    inner, x, y = (
        buffer("inner", "int8", 3, align=4096),
        buffer("x", "int8", 3),
        buffer("y", "int8", 3),
    )
    i, j = Var("i"), Var("j")
    loops = (
        For(i, 3, Store(inner, (i,), Load(x, (i,)))),
        For(j, 3, Store(y, (j,), Load(inner, (j,)))),
    )
    made = function("copy", [(x, Role.INPUT), (y, Role.OUTPUT)], Allocate(inner, Block(loops)))
    check(made, [np.array([1, -2, 3], np.int8)])


def test_inner_buffers_beyond_the_limit_are_refused():
    y, i = buffer("y", "int8", 2), Var("i")
    inner = buffer("inner", "int8", MAX_INNER_BYTES + 1)
    body = Allocate(inner, For(i, 2, Store(y, (i,), const(1, "int8"))))
    with pytest.raises(UnsupportedFunction, match="inner buffers too large"):
        compile_function(
            serialise(function("large", [(y, Role.OUTPUT)], body)), "device", Target.parse("llvm")
        )


def double(name="double", private=False):
    x, y, i = buffer("x", "int32", 2, 3), buffer("y", "int32", 2, 3), Var("i")
    j = Var("j")
    body = For(i, 2, For(j, 3, Store(y, (i, j), Load(x, (i, j)) * 2)))
    return function(name, [(x, Role.INPUT), (y, Role.OUTPUT)], body, private=private)


def calls(callee, rows=2):
    """Two calls one after the other, through an inner buffer."""
    x, inner, y = (buffer(name, "int32", rows, 3) for name in ("x", "inner", "y"))
    body = Allocate(inner, Block((Call(callee, (x, inner)), Call(callee, (inner, y)))))
    return function("caller", [(x, Role.INPUT), (y, Role.OUTPUT)], body)


def test_calls_of_a_public_function_equal_interpreter(check):
    check(calls("double"), [np.arange(6, dtype=np.int32).reshape(2, 3)], [double()])


def test_calls_of_a_private_helper_go_to_its_private_symbol(run):
    helper = double("helper", private=True)
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    callee = private_symbol("helper", Target.parse("llvm").id)
    assert np.array_equal(run(calls(callee), [x], [helper])[0], x * 4)


def test_status_of_a_callee_is_returned_unchanged(run):
    with pytest.raises(FarmError) as caught:
        run(calls("double", rows=5), [np.zeros((5, 3), np.int32)], [double()])
    assert caught.type is InvalidArguments
    assert caught.value.details["reason"] == ReturnKind.WRONG_SHAPE.name
    assert encode_return(ReturnKind.WRONG_SHAPE, 0) == ReturnKind.WRONG_SHAPE


@pytest.mark.parametrize("callee", ["caller", "__farm_launch_caller", "__memcpy"])
def test_call_of_itself_or_a_reserved_name_is_refused(callee):
    with pytest.raises(UndefinedReference):
        compile_function(serialise(calls(callee)), "device", Target.parse("llvm"))


def test_lazy_select_does_not_evaluate_the_other_side(check):
    x, y, i = buffer("x", "int32", 8), buffer("y", "int32", 20), Var("i")
    inside = select(i < 8, Load(x, (i,)), const(-1, "int32"))
    both = select(i >= 12, Load(x, (i - 12,)), inside)
    made = function("lazy", [(x, Role.INPUT), (y, Role.OUTPUT)], For(i, 20, Store(y, (i,), both)))
    check(made, [np.arange(8, dtype=np.int32)])


def test_reused_name_of_buffers_differs_between_functions(check):
    first = dataclasses.replace(double(), name="first")
    check(calls("first"), [np.ones((2, 3), np.int32)], [first])
