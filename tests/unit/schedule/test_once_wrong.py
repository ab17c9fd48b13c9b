"""Schedules that once gave wrong results: each is refused, or computes what the function computes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fuzz.oracle import arguments
from unit.schedule.examples import blur, scale_shift

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


CASES: list[tuple[Callable[[], Function], Callable[[Schedule], None], str | None]] = [
    (blur, _copy_with_holes, "h is not provably all stored"),
    (blur, _copy_with_holes_moved, "h is not provably all stored"),
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
