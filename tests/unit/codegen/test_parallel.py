"""Parallel loops on pools of threads, and without any."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from farm.artifact import assemble
from farm.codegen import compile_function
from farm.errors import InvalidInput
from farm.ir import (
    Buffer,
    DType,
    Function,
    LoopKind,
    Param,
    Role,
    Scope,
    interpret,
    serialise,
    verify,
)
from farm.ir.expr import Load, Var, const
from farm.ir.stmt import Allocate, Block, For, Store
from farm.runtime.native import native_loader
from farm.target import Target

HERE = Target.parse("llvm")
ANYTHING = frozenset({f"arch:{HERE.family.partition('/')[2]}", "cpu-feature:*", "cpu:*"})
ROWS, COLUMNS, WIDE = 23, 16, 20_000


def buffer(name, dtype, *shape, scope=Scope.GLOBAL):
    kind = DType(dtype)
    return Buffer(name, kind, shape, kind.size_bytes, scope)


def rows():
    """Rows in parallel, each with a small and a large buffer of its own, twice, under a serial loop."""
    x, y = buffer("x", "int32", ROWS, COLUMNS), buffer("y", "int32", 2, ROWS, COLUMNS)
    small = buffer("small", "int32", COLUMNS, scope=Scope.STACK)
    large = buffer("large", "int32", WIDE)
    o, r, c, w, d = (Var(name) for name in "orcwd")
    fill = For(w, WIDE, Store(large, (w,), (w + r).astype("int32")))
    scale = For(c, COLUMNS, Store(small, (c,), Load(x, (r, c)) * 3), LoopKind.VECTORIZED)
    value = Load(small, (d,)) + Load(large, (d * 1000 + o,))
    end = For(d, COLUMNS, Store(y, (o, r, d), value), LoopKind.VECTORIZED)
    body = Allocate(small, Allocate(large, Block((fill, scale, end))))
    nest = For(o, 2, For(r, ROWS, body, LoopKind.PARALLEL), LoopKind.UNROLLED)
    return Function("rows", (Param(x, Role.INPUT), Param(y, Role.OUTPUT)), nest)


def copy():
    """A parallel loop alone, with one iteration a part."""
    x, y = buffer("x", "float64", 5), buffer("y", "float64", 5)
    i = Var("i")
    body = For(i, 5, Store(y, (i,), Load(x, (i,)) + const(1.0, "float64")), LoopKind.PARALLEL)
    return Function("copy", (Param(x, Role.INPUT), Param(y, Role.OUTPUT)), body)


@pytest.fixture(scope="module")
def artifact():
    functions = [rows(), copy()]
    for function in functions:
        verify(function)
    return assemble(HERE, [compile_function(serialise(f), "device", HERE) for f in functions])


def threads_here():
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_results_are_the_same_with_any_number_of_threads(threads, artifact):
    x = np.random.default_rng(0).integers(-99, 99, (ROWS, COLUMNS)).astype(np.int32)
    before = threads_here()
    with native_loader([str(HERE)], ANYTHING, threads=threads).load(artifact) as module:
        assert threads_here() == before + threads - 1
        expected = interpret(rows(), [x])[0]
        for _ in range(3):
            assert np.array_equal(module.call("rows", [x]).outputs[0], expected)
        values = np.arange(5.0)
        samples = module.call("copy", [values], repeat=200)
        assert np.array_equal(samples.outputs[0], values + 1)
    assert threads_here() == before


def asleep(task):
    """Whether a thread sleeps; its name may hold anything."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("cores", [1, 64])
def test_idle_threads_go_to_sleep_and_wake_for_the_next_call(cores, artifact, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    before = set(Path("/proc/self/task").iterdir())
    with native_loader([str(HERE)], ANYTHING, threads=3).load(artifact) as module:
        workers = set(Path("/proc/self/task").iterdir()) - before
        assert len(workers) == 2
        for _ in range(2):
            assert module.call("copy", [np.arange(5.0)]).outputs[0].tolist() == [1, 2, 3, 4, 5]
            until = time.monotonic() + 60
            while not all(map(asleep, workers)) and time.monotonic() < until:
                time.sleep(0.001)
            assert all(map(asleep, workers))


@pytest.mark.parametrize("threads", [0, 65, -1])
def test_impossible_numbers_of_threads_are_refused(threads):
    with pytest.raises(InvalidInput, match="use 1 to 64"):
        native_loader([str(HERE)], ANYTHING, threads=threads)


def test_code_without_parallel_loops_starts_no_thread():
    x, y = buffer("x", "int8", 4), buffer("y", "int8", 4)
    i = Var("i")
    plain = Function(
        "plain",
        (Param(x, Role.INPUT), Param(y, Role.OUTPUT)),
        For(i, 4, Store(y, (i,), Load(x, (i,)))),
    )
    built = assemble(HERE, [compile_function(serialise(plain), "device", HERE)])
    before = threads_here()
    with native_loader([str(HERE)], ANYTHING, threads=4).load(built) as module:
        assert threads_here() == before
        assert module.call("plain", [np.arange(4, dtype=np.int8)]).outputs[0].tolist() == [
            0,
            1,
            2,
            3,
        ]
