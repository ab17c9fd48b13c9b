"""The printed form and the digest of known functions, kept in tests/golden/ir.

A digest addresses artifacts and caches: a change here makes every cached build useless, so it is a change of
behaviour. To accept one on purpose, run this file once with UPDATE_GOLDEN=1 in the environment and commit the files.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import farm.te as te
from farm.ir import Buffer, DType, FastMath, Function, LoopKind, Param, Role, Scope, verify
from farm.ir.expr import Load, Var
from farm.ir.stmt import Allocate, Block, For, Store
from farm.ir.wire import function_digest

GOLDEN = Path(__file__).parents[2] / "golden" / "ir"


def matmul() -> Function:
    a = te.placeholder((4, 8), "int8", name="a", align_bytes=64)
    b = te.placeholder((8, 3), "int8", name="b")
    k = te.reduce_axis(8, name="k")
    c = te.compute(
        (4, 3),
        lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), k),
        name="c",
    )
    return te.function("matmul", [a, b, c])


def softmax() -> Function:
    x = te.placeholder((2, 5), "float32", name="x")
    k, m = te.reduce_axis(5, name="k"), te.reduce_axis(5, name="m")
    top = te.compute((2,), lambda i: te.max(x[i, k], k), name="top")
    e = te.compute((2, 5), lambda i, j: te.exp(x[i, j] - top[i]), name="e")
    total = te.compute((2,), lambda i: te.sum(e[i, m], m), name="total")
    y = te.compute((2, 5), lambda i, j: e[i, j] / total[i], name="y")
    return te.function("softmax", [x, y])


def padded() -> Function:
    x = te.placeholder((6,), "uint8", name="x")
    inside = te.compute(
        (8,),
        lambda i: te.where((i >= 1) & (i < 7), x[i - 1], 255),
        name="inside",
    )
    flags = te.compute((8,), lambda i: ~(inside[i] >> 1).ne(inside[7 - i] % 3), name="flags")
    return te.function("padded", [x, flags], private=True).on("ea -config=ea16")


def network() -> Function:
    x = te.placeholder((4,), "float32", name="x")
    hidden = te.placeholder((4,), "float32", name="hidden")
    y = te.placeholder((4,), "float32", name="y")
    return te.sequence(
        "network", [x], [y], [te.call("first", x, hidden), te.call("second", hidden, y)]
    )


def kinds() -> Function:
    x, y = (Buffer(name, DType.FLOAT32, (4, 8), 4) for name in "xy")
    acc = Buffer("acc", DType.FLOAT32, (8,), 32, Scope.REGISTER)
    i, j, k = Var("i"), Var("j"), Var("k")
    load = For(j, 8, Store(acc, (j,), Load(x, (i, j)) * 2.0), LoopKind.VECTORIZED)
    back = For(
        k, 8, Store(y, (i, k), Load(acc, (k,))), LoopKind.UNROLLED, (("hint", 3), ("a", "b"))
    )
    rows = For(i, 4, Allocate(acc, Block((load, back))), LoopKind.PARALLEL)
    params = (Param(x, Role.INPUT), Param(y, Role.OUTPUT))
    return Function("kinds", params, rows, fast_math=FastMath(contract=True, reassociate=True))


@pytest.mark.parametrize("make", [kinds, matmul, softmax, padded, network])
def test_function_printed_and_digested_equals_the_golden_file(make: object) -> None:
    assert callable(make)
    function = make()
    verify(function)
    path = GOLDEN / f"{function.name}.txt"
    found = f"{function}{function_digest(function)}\n"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(found)
    assert found == path.read_text()
