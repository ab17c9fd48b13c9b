"""Compiled functions of other instruction sets, under qemu-user or in wasmtime; the interpreter says what is right."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import needy
import numpy as np
import pytest

import farm.te as te
from farm import ops
from farm.artifact import assemble
from farm.artifact.abi import private_symbol
from farm.codegen import compile_function
from farm.codegen.llvm.functions import MAX_ULPS
from farm.ir import Buffer, DType, Function, LoopKind, Param, Role, interpret, serialise
from farm.ir.declaration import functions_of
from farm.ir.expr import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Load,
    Math,
    MathOp,
    Var,
    select,
)
from farm.ir.stmt import For, Store
from farm.ir.wire import function_digest
from farm.ops.schedules import scheduled
from farm.runtime.local import local_capabilities
from farm.runtime.native import native_loader
from farm.runtime.qemu import find_emulator, qemu_loader
from farm.target import Target

TARGETS = {
    "aarch64": "llvm -mtriple=aarch64-linux-gnu",
    "armv7": "llvm -mtriple=armv7-linux-gnueabihf",
    "riscv64": "llvm -mtriple=riscv64-linux-gnu",
    "riscv64/v": "llvm -mtriple=riscv64-linux-gnu -mattr=+v",
    "wasm": "wasm",
    "opencl": "opencl",
}
CPUS = [machine for machine in TARGETS if machine != "opencl"]
"""Those that take C, and calls of other functions."""
BITS = (BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR)
FLOAT_OPS = (*(BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV), BinaryOp.MIN, BinaryOp.MAX)
OPERATIONS = {
    dtype: BITS
    if dtype is DType.BOOL
    else FLOAT_OPS
    if dtype.is_float
    else tuple(op for op in BinaryOp if op is not BinaryOp.DIV)
    for dtype in DType
}


def load_unit_helpers():
    """The helpers of the unit tests of the same code."""
    path = Path(__file__).parents[2] / "unit" / "codegen" / "conftest.py"
    spec = importlib.util.spec_from_file_location("codegen_helpers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


helpers = load_unit_helpers()


# qemu 7.2 ends with an assertion of its own (decode_save_opc) when it translates vfncvt.rtz.x.f.w and its like.
UNTRANSLATED = {dtype for dtype in DType if dtype.is_integer}
HALVES = (DType.FLOAT16, DType.BFLOAT16)
VECTORIZED = (DType.BOOL, DType.INT8, DType.INT64, DType.UINT32, DType.FLOAT32, *HALVES)


def operations(machine):
    """Functions of each type: all operations, comparisons and casts of awkward pairs."""
    if machine == "opencl":  # PoCL takes a second for each; the kind of a loop means nothing to it
        yield from (operations_of(dtype, LoopKind.SERIAL, machine) for dtype in VECTORIZED[1:])
        return
    for dtype in DType:
        yield operations_of(dtype, LoopKind.SERIAL, machine)
    for dtype in VECTORIZED:
        yield operations_of(dtype, LoopKind.VECTORIZED, machine)


def operations_of(dtype, kind, machine):
    a, b = helpers.pairs_of(dtype)
    made = {}
    for op in OPERATIONS[dtype]:
        made[f"{op.value}_"] = lambda x, y, i, op=op: Binary(op, x, y)
    for op in CompareOp:
        made[op.value] = lambda x, y, i, op=op: Compare(op, x, y)
    broken = UNTRANSLATED if machine == "riscv64/v" and dtype.is_float else ()
    for to in (to for to in DType if to not in broken):
        made[f"to_{to}"] = lambda x, y, i, to=to: Cast(to, x)
    if dtype.is_float:
        for math in (MathOp.FLOOR, MathOp.SQRT):
            made[f"{math.value}_"] = lambda x, y, i, op=math: Math(op, x)
    if dtype.is_integer:
        made["by_seven"] = lambda x, y, i: x // 7 + x % 7
    made["chosen"] = lambda x, y, i: select(Compare(CompareOp.LT, x, y), x, y)
    name = f"{kind.value}_{dtype}"
    return helpers.elementwise(name, {"a": a, "b": b}, made, kind), [a, b]


def matmul():
    a, b = (
        te.placeholder((9, 20), "float32", name="a"),
        te.placeholder((20, 17), "float32", name="b"),
    )
    k = te.reduce_axis(20, name="k")
    c = te.compute((9, 17), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((9, 20), (20, 17))]
    return te.function("matmul", [a, b, c]), arrays


def parallel_rows():
    """A parallel loop with vectors in it: there are no threads here, so it runs in order."""
    x, y = (Buffer(name, DType.INT32, (9, 64), 4) for name in "xy")
    i, j = Var("i"), Var("j")
    inner = For(j, 64, Store(y, (i, j), Load(x, (i, j)) * 3), LoopKind.VECTORIZED)
    params = (Param(x, Role.INPUT), Param(y, Role.OUTPUT))
    x = np.arange(9 * 64, dtype=np.int32).reshape(9, 64)
    return Function("parallel_rows", params, For(i, 9, inner, LoopKind.PARALLEL)), [x]


def large_inner(private):
    x = te.placeholder((20_000,), "int32", name="x")
    twice = te.compute((20_000,), lambda i: x[i] * 2, name="twice")
    y = te.compute((20_000,), lambda i: twice[19_999 - i] - x[i], name="y")
    return te.function("large_inner", [x, y], private=private)


def caller(callee):
    x, y = (te.placeholder((20_000,), "int32", name=name) for name in "xy")
    between = te.placeholder((20_000,), "int32", name="between")
    steps = [te.call(callee, *pair) for pair in ((x, between), (between, y))]
    return te.sequence("caller", [x], [y], steps)


EXPECTED = {}


def expected(function, arrays):
    """What the interpreter gives, computed once for all machines: the arrays follow from the function."""
    key = function_digest(function)
    if key not in EXPECTED:
        EXPECTED[key] = interpret(function, arrays)
    return EXPECTED[key]


def functions(op, dtype):
    rng = np.random.default_rng(6)
    x = np.concatenate(
        [rng.uniform(-110, 90, 3000), rng.uniform(-1, 1, 3000), [np.inf, -np.inf, np.nan]]
    )
    x = x.astype(dtype)
    name = f"{op.value}_of_{dtype}"
    return helpers.elementwise(name, {"x": x}, {"y": lambda x, i: Math(op, x)}), x


@pytest.fixture(scope="module", params=TARGETS)
def machine(request):
    return request.param


def loader_for(machine, cache):
    if machine == "wasm":
        return pytest.importorskip("farm.runtime.wasm", exc_type=ImportError).wasm_loader(
            cache=cache
        )
    if machine == "opencl":
        pytest.importorskip("pyopencl", reason="pyopencl is missing: install kernel-farm[opencl]")
        here = local_capabilities(accelerators=False)
        provides = {*here.provides, "opencl-c:1.2", "opencl-extension:cl_khr_fp64"}
        return native_loader(("opencl", *here.targets), provides)
    if find_emulator(machine.partition("/")[0]) is None:
        pytest.skip(f"no emulator for {machine}: install the Debian package qemu-user")
    return qemu_loader(machine, cache=cache)


@pytest.fixture(scope="module")
def module(machine, tmp_path_factory):
    """All functions of this file, loaded at once."""
    loader = loader_for(machine, tmp_path_factory.mktemp("cache"))
    target = Target.parse(TARGETS[machine])
    made = [function for function, _ in operations(machine)]
    callee = private_symbol("large_inner", target.id)
    helpers = [large_inner(private=True), caller(callee)]
    made += [matmul()[0], parallel_rows()[0], *([] if target.is_accelerator else helpers)]
    made += [
        functions(op, dtype)[0]
        for op in (MathOp.EXP, MathOp.TANH)
        for dtype in ("float32", "float64")
    ]
    modules = [compile_function(serialise(function), "device", target) for function in made]
    host = Target.parse("llvm") if target.is_accelerator else target
    if target.is_accelerator:
        modules += [compile_function(serialise(function), "host", host) for function in made]
    with loader.load(assemble(host, modules)) as loaded:
        yield loaded


def test_operations_elsewhere_equal_interpreter(machine, module):
    for function, arrays in [*operations(machine), matmul(), parallel_rows()]:
        actual = module.call(function.name, arrays).outputs
        names = [param.buffer.name for param in function.params[len(arrays) :]]
        helpers.assert_same(
            actual, expected(function, arrays), [f"{function.name} {n}" for n in names]
        )


@pytest.mark.parametrize("machine", CPUS, indirect=True)
def test_calls_and_static_inner_buffers_elsewhere_equal_interpreter(module):
    x = np.arange(20_000, dtype=np.int32)
    library = {"large_inner": large_inner(private=False)}
    assert np.array_equal(
        module.call("caller", [x]).outputs[0], interpret(caller("large_inner"), [x], library)[0]
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", [MathOp.EXP, MathOp.TANH], ids=lambda op: op.value)
def test_functions_elsewhere_stay_within_their_bounds(op, dtype, machine, module):
    function, x = functions(op, dtype)
    y = module.call(function.name, [x]).outputs[0]
    reference = {MathOp.EXP: np.exp, MathOp.TANH: np.tanh}[op]
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.longdouble))
        nearest = exact.astype(dtype)
    finite = np.isfinite(nearest)
    error = np.abs(y[finite].astype(np.longdouble) - exact[finite]) / np.spacing(
        np.abs(nearest[finite])
    )
    assert error.max() <= (5 if machine == "opencl" else MAX_ULPS)  # what OpenCL allows for tanh
    assert np.array_equal(y[~finite], nearest[~finite], equal_nan=True)


def test_sums_of_four_products_at_once_equal_the_interpreter(tmp_path):
    loader = loader_for("aarch64/cortex-a76", tmp_path)
    target = Target.parse("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76")
    made, arrays = [], {}
    rng = np.random.default_rng(9)
    for dtype in ("int8", "uint8"):
        for ta in (False, True):
            name = f"product_{dtype}_{ta:d}"
            info = np.iinfo(dtype)
            shapes = ((40, 13) if ta else (13, 40)), (40, 32)
            arrays[name] = [rng.choice([info.min, info.max, 3], s).astype(dtype) for s in shapes]
            a, b = (te.placeholder(s, dtype, name=x) for s, x in zip(shapes, "ab", strict=True))
            made.append(te.function(name, [a, b, ops.matmul(a, b, transpose_a=ta)]))
    modules = [compile_function(serialise(scheduled(f, target)), "device", target) for f in made]
    with loader.load(assemble(target, modules)) as module:
        for function in made:
            given = arrays[function.name]
            np.testing.assert_array_equal(
                module.call(function.name, given).outputs[0], interpret(function, given)[0]
            )


@pytest.mark.parametrize("machine", CPUS, indirect=True)
def test_what_c_gets_of_the_library_has_cs_values_elsewhere(machine, tmp_path):
    pytest.importorskip("ziglang", reason="ziglang is missing: install kernel-farm[cross]")
    target = Target.parse(TARGETS[machine])
    (function,) = functions_of("needy.c", needy.SOURCE, [needy.DECLARED])
    built = compile_function(serialise(function), "device", target)
    with loader_for(machine, tmp_path).load(assemble(target, [built])) as module:
        needy.check(module.call("needy", needy.INPUTS).outputs)
