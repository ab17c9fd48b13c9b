"""The small functions that the examples of schedules start from."""

from __future__ import annotations

import farm.te as te
from farm.ir import Buffer, DType, Function, LoopKind, Param, Role
from farm.ir.expr import Const, Var
from farm.ir.stmt import For, Store


def scale(extent: int = 10) -> Function:
    a = te.placeholder((extent,), name="a")
    return te.function("scale", [a, te.compute((extent,), lambda i: a[i] * 2.0, name="b")])


def matmul(m: int = 4, n: int = 8, depth: int = 6, dtype: str = "float32") -> Function:
    a, b = te.placeholder((m, depth), dtype, "a"), te.placeholder((depth, n), dtype, "b")
    k = te.reduce_axis(depth, "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    return te.function("matmul", [a, b, c])


def scale_shift(extent: int = 10) -> Function:
    a = te.placeholder((extent,), name="a")
    s = te.compute((extent,), lambda i: a[i] * 2.0, name="s")
    return te.function("scale_shift", [a, te.compute((extent,), lambda o: s[o] + 1.0, name="y")])


def blur(m: int = 4, n: int = 6) -> Function:
    x = te.placeholder((m + 1, n + 1), name="x")
    h = te.compute((m + 1, n), lambda r, c: x[r, c] + x[r, c + 1], name="h")
    y = te.compute((m, n), lambda i, j: h[i, j] + h[i + 1, j], name="y")
    return te.function("blur", [x, y])


def total(extent: int = 12) -> Function:
    a, k = te.placeholder((extent,), name="a"), te.reduce_axis(extent, "k")
    return te.function("total", [a, te.compute((), lambda: te.sum(a[k], k), name="t")])


def fill(extent: int = 8) -> Function:
    return te.function("fill", [te.compute((extent,), lambda i: te.const(7, "int32"), name="f")])


def filling(kind: LoopKind) -> Function:
    """Return a function that fills four elements, with a loop of a kind."""
    out, i = Buffer("out", DType.INT32, (4,), 4), Var("i")
    body = For(i, 4, Store(out, (i,), Const(7, DType.INT32)), kind)
    return Function("fill4", (Param(out, Role.OUTPUT),), body)


def names() -> dict[str, object]:
    """Return what the examples may use without importing it."""
    from farm.schedule import Schedule

    return {
        "Schedule": Schedule,
        "scale": scale(),
        "matmul": matmul(),
        "scale_shift": scale_shift(),
        "blur": blur(),
        "total": total(),
        "fill": fill(),
        "fill_desc": filling(LoopKind.SERIAL),
        "fill_impl": filling(LoopKind.VECTORIZED),
    }


def chain() -> Function:
    """Seven rows through three computations, each of which needs one more row of the one before."""
    x = te.placeholder((9, 4), "int32", name="x")
    h = te.compute((9, 4), lambda i, j: x[i, j] * 3, name="h")
    y = te.compute((8, 4), lambda i, j: h[i, j] + h[i + 1, j], name="y")
    z = te.compute((7, 4), lambda i, j: y[i, j] - y[i + 1, j], name="z")
    return te.function("chain", [x, z])
