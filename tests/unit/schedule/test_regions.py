"""Which part of a buffer the blocks of a schedule touch."""

from __future__ import annotations

import numpy as np
from fuzz.oracle import arguments
from unit.schedule.examples import chain

from farm.ir import interpret
from farm.schedule import Schedule


def test_iterations_that_a_guard_leaves_out_need_nothing() -> None:
    function = chain()
    sch = Schedule(function)
    outer, inner = sch.split(sch.get_loops("z")[0], [None, 3])
    sch.split(inner, [None, 2])  # four iterations, of which a guard leaves out the last
    sch.compute_at("y", outer)
    sch.compute_at("h", outer)
    text = str(sch.function)
    assert "alloc y: int32[4, 4]" in text
    assert "alloc h: int32[5, 4]" in text
    inputs = arguments(function, 3)
    for a, b in zip(interpret(sch.function, inputs), interpret(function, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
