"""Schedules that once gave wrong results: each is refused, or computes what the function computes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fuzz.oracle import arguments
from unit.schedule.examples import blur, chain, scale_shift

import farm.te as te
from farm.errors import ScheduleError
from farm.ir import Function, interpret
from farm.schedule import Schedule


def _copy_with_holes(sch: Schedule) -> None:
    sch.transform_layout("h", ("write", 0), "lambda i, j: (i // 2, j, i % 2)")
    sch.cache_read("y", 0)


def _copy_with_holes_moved(sch: Schedule) -> None:
    sch.transform_layout("h", ("write", 0), "lambda i, j: (j // 4, i, j % 4)")
    copy = sch.cache_read("y", 0, "stack")
    sch.compute_at(copy, "i")


def _guard_of_the_reader(sch: Schedule) -> None:
    outer, _ = sch.split("o", [None, 4])
    sch.compute_at("s", outer)


def _guard_of_an_outer_loop(sch: Schedule) -> None:
    outer, middle, _ = sch.split("o", [None, 3, 2])
    sch.compute_at("s", middle)
    sch.vectorize(sch.get_loops("s")[-1])
    sch.parallel(outer)


def named_like_copies() -> Function:
    """Two products of one operand, whose buffers and loops have the names that copies of padding take."""
    a, b = te.placeholder((3, 5), name="a"), te.placeholder((5, 3), name="a_pad")
    k, ax0 = te.reduce_axis(5, "v0"), te.reduce_axis(5, "ax0")
    c = te.compute((3, 3), lambda v1, w1: te.sum(a[v1, k] * b[k, w1], k), name="b_pad")
    d = te.compute((3, 3), lambda p, q: te.sum(a[p, ax0] * b[ax0, q], ax0), name="d")
    e = te.compute((3, 3), lambda s, t: c[s, t] - d[t, s], name="e")
    return te.function("named", [a, b, e])


def _padding_of_equal_names(sch: Schedule) -> None:
    for block in ("b_pad", "d"):
        sch.pad_einsum(block, [4, 4, 4])
        sch.vectorize(sch.get_loops(block)[1])


def _digits_that_do_not_move_freely(sch: Schedule) -> None:
    """Five places in rows of four: the second row has one, which was taken for four."""
    result = sch.cache_write("y", 0, "stack")
    copy = sch.cache_read(result, 0)
    sch.transform_layout(copy, ("write", 0), "lambda i, j: (j // 4, i, j % 4)")
    sch.cache_write(sch.cache_write(copy, 0), 0, "register")


def padded(low: int, high: int) -> Function:
    """Five values of a copy, with zeros around them."""
    x = te.placeholder((5,), "int32", name="x")
    t = te.compute((5,), lambda i: x[i] + 1, name="t")
    inside = lambda j: (j >= low) & (j < low + 5)  # noqa: E731
    y = te.compute(
        (low + 5 + high,),
        lambda j: te.where(inside(j), t[j - low], 0),
        name="y",
    )
    return te.function("padded", [x, y])


def _padding_inside_its_producer(sch: Schedule) -> None:
    """The zeros are in no iteration of the loop that computes what they surround."""
    sch.reverse_compute_at("y", sch.get_loops("t")[0])


def _wider_than_its_source(sch: Schedule) -> None:
    """The second block of two rows has one more than the three of the tile that h was computed for."""
    outer, inner = sch.split(sch.get_loops("z")[0], [None, 3])
    sch.compute_at("y", outer)
    sch.compute_at("h", outer)
    inner, _ = sch.split(sch.get_loops("z")[1], [None, 2])
    sch.compute_at("y", inner)


def _as_wide_as_its_source(sch: Schedule) -> None:
    """Where the blocks fill the tile, there is nothing to refuse."""
    outer, _ = sch.split(sch.get_loops("z")[0], [None, 4])
    sch.compute_at("y", outer)
    sch.compute_at("h", outer)
    inner, _ = sch.split(sch.get_loops("z")[1], [None, 2])
    sch.compute_at("y", inner)


def columns() -> Function:
    """The sums of nine columns."""
    x, q = te.placeholder((2, 9), "int32", name="x"), te.reduce_axis(2, "q")
    return te.function("columns", [x, te.compute((9,), lambda j: te.sum(x[q, j], q), name="t")])


def _copy_of_what_another_stores(sch: Schedule) -> None:
    """Of six columns in the second tile the block has two; the next belongs to the tail."""
    j, _, _ = sch.split(sch.get_loops("t")[0], [None, 2], tail="peel")
    outer, inner = sch.split(j, [None, 3], tail="guard")
    _, _, pair, q = sch.get_loops("t")
    sch.reorder(outer, q, inner, pair)
    sch.decompose_reduction("t", outer)
    sch.cache_inplace("t", q)


CASES: list[tuple[Callable[[], Function], Callable[[Schedule], None], str | None]] = [
    (blur, _copy_with_holes, "h is not provably all stored"),
    (blur, _copy_with_holes_moved, "h is not provably all stored"),
    (lambda: blur(1, 5), _digits_that_do_not_move_freely, "does not provably store all of"),
    (lambda: padded(1, 0), _padding_inside_its_producer, "would load t outside of its 5 elements"),
    (lambda: padded(0, 2), _padding_inside_its_producer, "would load t outside of its 5 elements"),
    (lambda: padded(0, 0), _padding_inside_its_producer, None),
    (
        chain,
        _wider_than_its_source,
        "may load elements of h that an iteration of .* does not store",
    ),
    (chain, _as_wide_as_its_source, None),
    (columns, _copy_of_what_another_stores, "which part of t an iteration updates is not provable"),
    (named_like_copies, _padding_of_equal_names, None),
    (scale_shift, _guard_of_the_reader, None),
    (scale_shift, _guard_of_an_outer_loop, None),
]


@pytest.mark.parametrize(("make", "steps", "refused"), CASES)
def test_schedule_that_was_wrong_once(
    make: Callable[[], Function], steps: Callable[[Schedule], None], refused: str | None
) -> None:
    function = make()
    sch = Schedule(function)
    if refused is not None:
        with pytest.raises(ScheduleError, match=refused):
            steps(sch)
    else:
        steps(sch)
    inputs = arguments(function, 7)
    found = interpret(sch.function, inputs, check_conflicts=True)
    for a, b in zip(found, interpret(function, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
