"""What each primitive refuses: it names itself, the loop or block, and the dependence or reason."""
# ruff: noqa: E501 - messages are compared in full

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from unit.schedule.examples import blur, fill, matmul, scale, scale_shift, total

import farm.te as te
from farm.errors import ScheduleError
from farm.ir import Buffer, DType, Function, Param, Role
from farm.ir.expr import Load, Var
from farm.ir.stmt import Call, For, If, Store
from farm.schedule import Schedule
from farm.schedule.primitive import PRIMITIVES


def started() -> Schedule:
    sch = Schedule(matmul())
    sch.decompose_reduction("c", "i")
    return sch


def recurrence() -> Function:
    """Return ``a[i + 1] = a[i] + a[i + 1]``, which runs in order only."""
    a, i, j = Buffer("a", DType.INT32, (4, 9), 4), Var("i"), Var("j")
    value = Load(a, (i, j)) + Load(a, (i, j + 1))
    return Function(
        "scan", (Param(a, Role.INOUT),), For(i, 4, For(j, 8, Store(a, (i, j + 1), value)))
    )


def diagonal() -> Function:
    """Return ``a[i + 1, j] = a[i, j + 1]``: the loops cannot change places."""
    a, i, j = Buffer("a", DType.INT32, (5, 5), 4), Var("i"), Var("j")
    body = Store(a, (i + 1, j), Load(a, (i, j + 1)))
    return Function("diagonal", (Param(a, Role.INOUT),), For(i, 4, For(j, 4, body)))


def normal() -> Schedule:
    x, k = te.placeholder((4, 8), name="x"), te.reduce_axis(8, "k")
    t = te.compute((4,), lambda i: te.sum(x[i, k], k), name="t")
    y = te.compute((4, 8), lambda p, q: x[p, q] - t[p], name="y")
    return Schedule(te.function("normal", [x, y]))


def batch_of_one() -> Schedule:
    a, b = (te.placeholder((1, 3, 4), name=name) for name in "ab")
    k = te.reduce_axis(4, "k")
    c = te.compute((1, 3, 3), lambda z, i, j: te.sum(a[z, i, k] * b[z, j, k], k), name="c")
    d = te.compute((1, 3, 3), lambda *at: te.maximum(c[at], 1.0), name="d")
    return Schedule(te.function("batch", [a, b, d]))


def tail(sch: Schedule, *steps: Callable[[Schedule], object]) -> Schedule:
    for step in steps:
        step(sch)
    return sch


def shifted(reads_again: bool) -> Schedule:
    """Return ``s = a * 2; t = s (after y); y = s + 1``, where the second may or may not be there."""
    a = te.placeholder((6,), name="a")
    s = te.compute((6,), lambda i: a[i] * 2.0, name="s")
    y = te.compute((6,), lambda i: s[i] + 1.0, name="y")
    if not reads_again:
        return Schedule(te.function("shifted", [a, y]))
    return Schedule(te.function("shifted", [a, y, te.compute((6,), lambda i: s[5 - i], name="t")]))


def neighbours() -> Schedule:
    """Return ``y[i] = e[i] - e[max(i - 1, 0)]``, of which the second part is read in the loop that stores y."""
    x = te.placeholder((5, 4), name="x")
    e = te.compute((5, 4), lambda i, j: x[i, j] * 2.0, name="e")
    n = te.compute((5, 4), lambda i, j: e[te.maximum(i - 1, 0), j], name="n")
    y = te.compute((5, 4), lambda i, j: e[i, j] - n[i, j], name="y")
    sch = Schedule(te.function("neighbours", [x, y]))
    sch.compute_at("n", sch.get_loops("y")[0])
    return sch


REFUSALS: list[tuple[Callable[[], object], str]] = [
    (lambda: Schedule(scale()).get_block("z"), "block z: not in this function; it has b"),
    (
        lambda: Schedule(scale()).store_inplace("b", 0),
        "store_inplace of block b: a is a parameter, which callers see",
    ),
    (
        lambda: Schedule(scale_shift()).store_inplace("s", 0),
        "store_inplace of block s: a is a parameter",
    ),
    (
        lambda: Schedule(blur()).store_inplace("y", 0),
        "store_inplace of block y: h and y differ in shape or type",
    ),
    (
        lambda: normal().store_inplace("y", 1),
        "store_inplace of block y: t and y differ in shape or type",
    ),
    (
        lambda: shifted(reads_again=True).store_inplace("t", 0),
        "store_inplace of block t: it reads elements of s other than its own",
    ),
    (
        lambda: shifted(reads_again=True).store_inplace("y", 0),
        "store_inplace of block y: t loads s[(5 - i_2)] after y would have overwritten it",
    ),
    (
        lambda: neighbours().store_inplace("y", 0),
        "store_inplace of block y: n loads e",
    ),
    (  # what is added would start the same elements again
        lambda: tail(
            batch_of_one(),
            lambda sch: sch.transform_layout(
                "c", ("write", 0), "lambda z, i, j: (i, z // 2, j, z % 2)"
            ),
        ).pad_einsum("c", [4, 1, 1, 1]),
        "pad_einsum of block c: z is no index of c",
    ),
    (lambda: Schedule(scale()).get_loops("z"), "block z: not in this function; it has b"),
    (lambda: Schedule(scale()).get_producers("z"), "block z: not in this function; it has b"),
    (lambda: Schedule(scale()).get_consumers("z"), "block z: not in this function; it has b"),
    (lambda: Schedule(scale()).take("fast_math", {"contract": 1}), "fast_math of scale: contract"),
    (
        lambda: Schedule(scale()).split("i", [2, 3]),
        "split of loop i: factors 2 * 3 do not reach its extent 10",
    ),
    (lambda: Schedule(scale()).split("i", [None, None]), "split of loop i: two factors are None"),
    (
        lambda: Schedule(scale()).split("i", [None, 4], tail="refuse"),
        "split of loop i: its extent 10 is not 3 * 4",
    ),
    (
        lambda: Schedule(scale()).split("i", [None, 0]),
        "split of loop i, factor: 0 is no integer from 1",
    ),
    (
        lambda: Schedule(scale()).split("x", [None, 2]),
        "loop x: not there (any more); use get_loops",
    ),
    (lambda: Schedule(matmul()).fuse("j", "k"), "fuse of loops j, k: c reduces over some of them"),
    (
        lambda: Schedule(matmul()).fuse("i", "k"),
        "fuse of loops i and k: another loop is between them",
    ),
    (lambda: Schedule(matmul()).fuse("j", "i"), "fuse of loops j, i: name them outermost first"),
    (
        lambda: Schedule(diagonal()).reorder("j", "i"),
        "reorder of loops j, i: a stores a[(i + 1), j], and a loads a[i, (j + 1)] in a later iteration, which would run first",
    ),
    (
        lambda: tail(
            Schedule(matmul()), lambda s: s.split("k", [None, 3]), lambda s: s.reorder("k_1", "k_0")
        ),
        "reorder of loops k_1, k_0: c would combine its float32 values in another order (k_0 inside k_1), which rounds differently; allow it with fast_math(reassociate=True)",
    ),
    (
        lambda: Schedule(matmul()).parallel("k"),
        "parallel of loop k: its iterations depend on each other: every iteration updates c (c stores c[i, j])",
    ),
    (
        lambda: Schedule(recurrence()).vectorize("j"),
        "vectorize of loop j: its iterations depend on each other: a stores a[i, (j + 1)], and a later iteration of it where a loads a[i, j]",
    ),
    (
        lambda: Schedule(matmul(depth=2000)).unroll("k"),
        "unroll of loop k: its extent is 2000; split it first",
    ),
    (lambda: Schedule(scale()).annotate("i", "K", 1), "annotate of loop i: loop i: annotation 'K'"),
    (
        lambda: Schedule(scale()).unannotate("i", "k"),
        "unannotate of loop i: no annotation 'k'; it has none",
    ),
    (
        lambda: Schedule(matmul()).compute_at("c", "i"),
        "compute_at of block c at loop i: c is inside that loop already",
    ),
    (
        lambda: Schedule(blur()).compute_at("y", "r"),
        "compute_at of block y at loop r: r comes before y",
    ),
    (
        lambda: normal().reverse_compute_at("y", "k"),
        "reverse_compute_at of block y at loop k: t is not complete there: t stores an element of it again in later iterations of k",
    ),
    (
        lambda: Schedule(blur()).reverse_compute_at("y", "r"),
        "reverse_compute_at of block y at loop r: it loads h at several places",
    ),
    (lambda: Schedule(scale()).compute_inline("b"), "compute_inline of block b: b is a parameter"),
    (
        lambda: normal().compute_inline("t"),
        "compute_inline of block t: it is a reduction; use compute_at",
    ),
    (
        lambda: started().decompose_reduction("c", "i"),
        "decompose_reduction of block c at loop i: c is started by another block already",
    ),
    (
        lambda: tail(
            Schedule(matmul()),
            lambda s: s.reorder("k", "i"),
            lambda s: s.decompose_reduction("c", "i"),
        ),
        "decompose_reduction of block c at loop i: k around it is reduced over",
    ),
    (
        lambda: Schedule(total()).rfactor("k"),
        "rfactor of loop k: t would combine its float32 values in another order",
    ),
    (lambda: Schedule(matmul()).rfactor("i"), "rfactor of loop i: c does not reduce over it"),
    (
        lambda: Schedule(scale()).cache_read("b", 1),
        "cache_read of block b, read_buffer_index: 1 is no integer from 0 to 0",
    ),
    (
        lambda: Schedule(scale()).cache_read("b", 0, "shared"),
        "cache_read of block b, storage_scope: unknown ('shared'); use one of global, stack, register",
    ),
    (lambda: started().cache_write("c"), "cache_write of block c: c is also stored by c_init"),
    (
        lambda: Schedule(matmul()).cache_inplace("c", "i"),
        "cache_inplace of block c at loop i: c does not update",
    ),
    (
        lambda: Schedule(scale()).set_scope("b", 0, "stack"),
        "set_scope of block b: b is a parameter; use cache_write",
    ),
    (
        lambda: Schedule(scale()).set_dtype("b", 0, "float64"),
        "set_dtype of block b: b is a parameter; use cache_read or cache_write",
    ),
    (
        lambda: Schedule(scale_shift()).set_dtype("s", 0, "float16"),
        "set_dtype of block s: float16 does not hold every value of float32; use a wider one",
    ),
    (
        lambda: Schedule(scale_shift()).set_dtype("s", 0, "int64"),
        "set_dtype of block s: int64 does not hold every value of float32; use a wider one",
    ),
    (
        lambda: Schedule(scale_shift()).set_dtype("s", 0, "float128"),
        "set_dtype of block s, dtype: unknown ('float128'); use one of bool, int8",
    ),
    (
        lambda: normal().set_dtype("t", 0, "float64"),
        "set_dtype of block t: t adds up in t, which its type rounds or wraps",
    ),
    (
        lambda: Schedule(scale()).transform_layout("b", ("write", 0), "lambda i: (i,)"),
        "transform_layout of block b: b is a parameter",
    ),
    (
        lambda: Schedule(scale_shift()).transform_layout("s", ("write", 0), "lambda i: (i // 2,)"),
        "transform_layout of block s, buffer s: index map lambda i: (i // 2,): two elements share a place",
    ),
    (
        lambda: Schedule(scale_shift()).transform_layout("s", ("write", 0), "lambda i: open('x')"),
        "transform_layout of block s, buffer s: index map lambda i: open('x'): open('x') is not allowed",
    ),
    (
        lambda: Schedule(blur()).pad_einsum("y", [8, 1]),
        "pad_einsum of block y: an index of h is more than one iterator",
    ),
    (
        lambda: Schedule(matmul()).pad_einsum("c", [2]),
        "pad_einsum of block c: padding [2]; give one number for each of its 3",
    ),
    (
        lambda: Schedule(fill()).tensorize("i", "nothing"),
        "tensorize of loop i by nothing: no such intrinsic",
    ),
]


@pytest.mark.parametrize(("step", "message"), REFUSALS, ids=[text[:50] for _, text in REFUSALS])
def test_refusal_names_primitive_place_and_reason(step: Callable[[], object], message: str) -> None:
    with pytest.raises(ScheduleError, match=f"^{re.escape(message)}"):
        step()


def test_every_primitive_is_refused_once() -> None:
    words = {text.split(" of ")[0] for _, text in REFUSALS}
    finders = {"get_block", "get_loops", "get_producers", "get_consumers"}
    assert set(PRIMITIVES) - finders <= words


def test_refused_step_changes_nothing() -> None:
    sch = Schedule(matmul())
    before, trace = sch.function, sch.trace
    with pytest.raises(ScheduleError):
        sch.vectorize("k")
    assert (sch.function, sch.trace) == (before, trace)


def test_functions_without_loops_and_blocks_are_refused() -> None:
    a, i = Buffer("a", DType.INT32, (4,), 4), Var("i")
    param = (Param(a, Role.INOUT),)
    with pytest.raises(ScheduleError, match=r"^schedule of f: it calls g; schedule the function"):
        Schedule(Function("f", param, Call("g", (a,))))
    body = For(i, 4, If(Load(a, (i,)) > 0, Store(a, (i,), Load(a, (i,)) + 1)))
    with pytest.raises(ScheduleError, match=r"^schedule of f: a condition loads an element"):
        Schedule(Function("f", param, body))


def test_buffer_too_large_for_its_scope_is_refused_when_lowered() -> None:
    sch = Schedule(scale_shift(5000))
    sch.set_scope("s", 0, "register")
    with pytest.raises(ScheduleError, match=r"20000 bytes in scope register; use at most 4096"):
        sch.function  # noqa: B018 - it lowers
