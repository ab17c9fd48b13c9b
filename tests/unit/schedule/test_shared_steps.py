"""Schedules of one function share the steps that they have in common, and nothing else."""

from __future__ import annotations

import pytest
from unit.schedule.examples import matmul

from farm.errors import ScheduleError
from farm.schedule import LoopRV, Schedule
from farm.schedule.primitive import PRIMITIVES, Primitive


def split(function, factor, tail="guard"):
    sch = Schedule(function)
    loops = sch.get_loops("c")
    return sch, sch.split(loops[0], [None, factor], tail=tail)


def test_equal_steps_are_taken_once(monkeypatch):
    function, taken = matmul(), []
    known = PRIMITIVES["split"]

    def counting(state, **arguments):
        taken.append(arguments["factors"])
        return known.apply(state, **arguments)

    monkeypatch.setitem(
        PRIMITIVES, "split", Primitive("split", counting, known.many, known.signature)
    )
    made = [split(function, factor)[0] for factor in (2, 2, 4, 2)]
    assert taken == [[None, 2], [None, 4]]
    assert [str(sch) for sch in made] == [str(made[k]) for k in (0, 0, 2, 0)]
    assert [sch.trace for sch in made] == [made[k].trace for k in (0, 0, 2, 0)]


def test_what_one_schedule_does_is_not_seen_in_another():
    function = matmul()
    first, loops = split(function, 2)
    before = str(first)
    second, again = split(function, 2)
    assert again == loops
    assert all(isinstance(loop, LoopRV) for loop in again)
    second.unroll(again[1])
    assert str(first) == before != str(second)
    first.vectorize(loops[1])
    assert len(first.trace.steps) == len(second.trace.steps) == 3


def test_a_refused_step_is_refused_each_time_and_equal_numbers_of_other_types_are_others():
    function = matmul()
    for _ in range(2):
        with pytest.raises(ScheduleError, match="is not"):
            split(function, 3, tail="refuse")
    split(function, 1)
    for odd in (True, 1.0, {}):
        with pytest.raises(ScheduleError):
            split(function, odd)
