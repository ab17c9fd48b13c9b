"""Intrinsics: what is registered, what matches, and how a mismatch is explained."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import farm.te as te
from farm.errors import ScheduleError
from farm.ir import Buffer, DType, Function, Param, Role, interpret
from farm.ir.expr import Load, Var, const
from farm.ir.stmt import For, Stmt, Store
from farm.schedule import Schedule, TensorIntrin, register_intrin

ZERO = const(0, "int64")


def dot(unrolled: bool = False, factor: int = 1) -> Function:
    """Return ``out[0] += sum of a[k] * b[k]`` for four int32, as a loop or as one expression."""
    a, b, out = (Buffer(n, DType.INT32, (s,), 4) for n, s in (("a", 4), ("b", 4), ("out", 1)))
    k = Var("k")

    def term(at: object) -> object:
        return Load(a, (at,)) * Load(b, (at,))  # type: ignore[arg-type]

    start = Load(out, (ZERO,))
    body: Stmt = For(k, 4, Store(out, (ZERO,), start + term(k)))  # type: ignore[operator]
    if unrolled:
        value = start
        for n in range(4):
            value = value + term(const(n, "int64")) * factor  # type: ignore[operator]
        body = Store(out, (ZERO,), value)
    roles = ((a, Role.INPUT), (b, Role.INPUT), (out, Role.INOUT))
    return Function("dot4", tuple(Param(buffer, role) for buffer, role in roles), body)


def product(dtype: str = "int32", depth: int = 8) -> Function:
    a, b = te.placeholder((3, depth), dtype, "a"), te.placeholder((depth, 5), dtype, "b")
    k = te.reduce_axis(depth, "k")
    c = te.compute((3, 5), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    return te.function("product", [a, b, c])


def prepared(function: Function, factor: int = 4) -> Schedule:
    sch = Schedule(function)
    sch.decompose_reduction("c", "i")
    sch.split("k", [None, factor])
    return sch


def test_matching_loops_are_replaced_and_compute_the_same() -> None:
    register_intrin(TensorIntrin("dot4", dot(), dot(unrolled=True)))
    sch = prepared(product())
    sch.tensorize("k_1", "dot4")
    assert "k_1" not in str(sch)
    arrays = [
        np.arange(24, dtype=np.int32).reshape(3, 8),
        np.arange(40, dtype=np.int32).reshape(8, 5),
    ]
    (found,) = interpret(sch.function, arrays)
    np.testing.assert_array_equal(found, arrays[0] @ arrays[1])


def undecomposed() -> Schedule:
    sch = Schedule(product())
    sch.split("k", [None, 4])
    return sch


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: prepared(product(), 2),
            "its loops have the extents [2]; the intrinsic's have [4]",
        ),
        (lambda: prepared(product("int64")), "c holds int64, the intrinsic's out int32"),
        (lambda: prepared(product(depth=7)), "c does not run in every iteration"),
        (undecomposed, "c combines values by add and starts them (decompose_reduction splits"),
    ],
)
def test_mismatch_is_explained(make: Callable[[], Schedule], message: str) -> None:
    register_intrin(TensorIntrin("dot4", dot(), dot(unrolled=True)))
    with pytest.raises(
        ScheduleError, match=f"^tensorize of loop k_1 by dot4: {re.escape(message)}"
    ):
        make().tensorize("k_1", "dot4")


def test_functions_that_differ_are_no_intrinsic() -> None:
    with pytest.raises(
        ScheduleError, match=r"^intrinsic wrong: desc and impl give different results"
    ):
        register_intrin(TensorIntrin("wrong", dot(), dot(unrolled=True, factor=2)))
