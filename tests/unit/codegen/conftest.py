"""Compiling functions, running them in this process, and comparing with the interpreter."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from farm.artifact import assemble
from farm.codegen import compile_function
from farm.codegen.llvm.compile import compile_device
from farm.codegen.llvm.machine import machine_for
from farm.codegen.llvm.statements import Kernel
from farm.codegen.llvm.stubs import emit_stub
from farm.codegen.llvm.unit import Software, Unit
from farm.core.elements import is_float
from farm.ir import (
    Buffer,
    DType,
    Function,
    LoopKind,
    Param,
    Role,
    interpret,
    parse,
    serialise,
    verify,
)
from farm.ir.concurrency import MAX_LANES
from farm.ir.expr import Load, Var, map_children
from farm.ir.stmt import Block, For, If, Store
from farm.runtime.native import native_loader
from farm.target import Target

HERE = Target.parse("llvm")
ANYTHING = frozenset({f"arch:{HERE.family.partition('/')[2]}", "cpu-feature:*", "cpu:*"})

INTEGERS = [-(2**63), -65, -8, -7, -3, -2, -1, 0, 1, 2, 3, 5, 7, 8, 31, 63, 64, 100, 2**64 - 1]
FLOATS = [
    *(0.0, 1e-45, 1e-40, 1.1754944e-38, 5e-324, 2.3e-308, 0.1, 0.5, 0.9999999, 1.0, 1.5, 2.5, 3.0),
    *(126.7, 127.5, 255.5, 8388607.5, 8388609.0, 2.0**31 - 1, 2.0**31, 2.0**32, 4503599627370497.5),
    *(
        2.0**53 + 2,
        9.2233720368547748e18,
        2.0**63,
        1.8446744073709550e19,
        2.0**64,
        1e20,
        3.4028235e38,
    ),
    *(1.7976931348623157e308, np.inf, np.nan),
]
HALVES = [
    *(0.0, 1.0, 1.5, 2.5, 0.1, 127.5, 255.5, 9.3e-41, 4.7e-41, 1.2e-38, 3e-8, 6e-8, 6.1e-5),
    *(2049.0, 65504.0, 65520.0, 2.0**31, 1.8e19, 3.39e38, np.inf, np.nan),
]


def values_of(dtype):
    """Awkward values of a type, sorted by nothing in particular."""
    kind = DType(dtype)
    if kind is DType.BOOL:
        return np.array([False, True])
    if kind.is_float:
        awkward = HALVES if kind.is_half else FLOATS
        with np.errstate(over="ignore"):
            return np.array([sign * value for value in awkward for sign in (1, -1)], kind.numpy)
    near = [kind.min, kind.min + 1, kind.max // 2, kind.max - 1, kind.max, *INTEGERS]
    return np.array(sorted({v for v in near if kind.min <= v <= kind.max}), kind.numpy)


def pairs_of(dtype):
    """All pairs of awkward values, as two arrays."""
    values = values_of(dtype)
    first, second = np.meshgrid(values, values, indexing="ij")
    return first.ravel().copy(), second.ravel().copy()


def elementwise(name, inputs, expressions, kind=LoopKind.SERIAL):
    """Make a function that computes, for each i, every expression of the inputs' elements.

    `inputs` maps names to arrays; `expressions` maps names to functions of the elements and i.
    """
    size = len(next(iter(inputs.values())))
    i = Var("i")

    def buffer(name, dtype):
        return Buffer(name, dtype, (size,), dtype.size_bytes)

    given = [buffer(name, DType(array.dtype.name)) for name, array in inputs.items()]
    values = {name: make(*[Load(b, (i,)) for b in given], i) for name, make in expressions.items()}
    outputs = [buffer(name, value.dtype) for name, value in values.items()]
    stores = [Store(b, (i,), value) for b, value in zip(outputs, values.values(), strict=True)]
    params = [Param(b, Role.INPUT) for b in given] + [Param(b, Role.OUTPUT) for b in outputs]
    body = For(i, size, Block(tuple(stores)), kind)
    if kind is LoopKind.VECTORIZED and size > MAX_LANES:
        outer, inner = Var("outer"), Var("inner")
        replaced = [_at(stmt, {i: outer * 32 + inner}) for stmt in stores]
        guarded = If(outer * 32 + inner < size, Block(tuple(replaced)))
        body = For(outer, -(-size // 32), For(inner, 32, guarded, kind))
    function = Function(name, tuple(params), body)
    verify(function)
    return function


def _at(store, values):
    """A store with variables replaced."""

    def change(expr):
        return values[expr] if isinstance(expr, Var) else map_children(expr, change)

    return Store(store.buffer, tuple(map(change, store.indices)), change(store.value))


def in_software(function, target):
    """Compile with every sequence that replaces a missing instruction."""
    parsed, machine = parse(serialise(function)), machine_for(target)
    built = compile_device(parsed, target)

    def text():
        from llvmlite import ir

        module = ir.Module(context=ir.Context())
        module.triple, module.data_layout = machine.triple, machine.data_layout()
        unit = Unit(module, frozenset(Software))
        kernel = Kernel(unit, parsed, built.symbol).emit()
        emit_stub(unit, parsed, built.symbol, kernel)
        return unit.text()

    return dataclasses.replace(built, data=machine.compile(text()))


def build_here(function, target=HERE):
    return compile_function(serialise(function), "device", target)


def run_here(function, inputs, library=(), target=HERE, build=build_here):
    """Compile a function and those that it calls for this machine and call it once."""
    modules = [build(f, target) for f in (function, *library)]
    loader = native_loader([str(target)], ANYTHING)
    with loader.load(assemble(HERE, modules)) as module:
        return module.call(function.name, inputs).outputs


def assert_same(actual, expected, names=None):
    """Compare arrays bit by bit, except that one NaN is as good as another."""
    for position, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert a.dtype == e.dtype
        assert a.shape == e.shape
        with np.errstate(invalid="ignore"):  # bfloat16 says it of a NaN
            same = a == e
            if is_float(a.dtype):
                same = (same & (np.signbit(a) == np.signbit(e))) | (np.isnan(a) & np.isnan(e))
        wrong = np.flatnonzero(~same)
        name = names[position] if names else position
        assert not wrong.size, (
            f"{name}: {wrong.size} wrong, first at {wrong[0]}: "
            f"{a.ravel()[wrong[0]]!r} instead of {e.ravel()[wrong[0]]!r}"
        )


def check_here(function, inputs, library=(), **options):
    """Run a function and compare with the interpreter."""
    expected = interpret(function, inputs, {f.name: f for f in library})
    names = [p.buffer.name for p in function.params if p.role is not Role.INPUT]
    assert_same(run_here(function, inputs, library, **options), expected, names)


@pytest.fixture(scope="session")
def elementwise_function():
    return elementwise


@pytest.fixture(scope="session")
def values():
    return values_of


@pytest.fixture(scope="session")
def pairs():
    return pairs_of


@pytest.fixture(scope="session")
def run():
    return run_here


@pytest.fixture(scope="session")
def check():
    return check_here


@pytest.fixture(scope="session")
def check_in_software():
    """Check with the sequences that replace instructions which a target may lack."""

    def check(function, inputs):
        check_here(function, inputs, build=in_software)

    return check


@pytest.fixture(scope="session", params=["native", "baseline", "software"])
def check_all_ways(request):
    """Check with this machine's instructions, with the oldest CPU's, and with those that it could lack."""
    arch = HERE.family.partition("/")[2]
    oldest = "x86-64" if arch == "x86_64" else "generic"
    options = {
        "native": {},
        "baseline": {"target": Target.parse(f"llvm -mtriple={arch}-linux-gnu -mcpu={oldest}")},
        "software": {"build": in_software},
    }[request.param]

    def check(function, inputs):
        check_here(function, inputs, **options)

    return check
