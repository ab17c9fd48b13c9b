"""Traces: replay on other shapes, and what is refused of those that come from outside."""

from __future__ import annotations

import json

import numpy as np
import pytest
from unit.schedule.examples import matmul, scale

from farm.errors import ScheduleError
from farm.ir import interpret
from farm.schedule import Schedule, Trace


def tuned() -> Schedule:
    sch = Schedule(matmul(8, 16, 4))
    i, j, k = sch.get_loops(sch.get_block("c"))
    i_0, i_1 = sch.split(i, [None, 4])
    j_0, j_1 = sch.split(j, [None, 8])
    c_register = sch.cache_write("c", 0, "register")
    sch.reorder(i_0, j_0, k, i_1, j_1)
    sch.reverse_compute_at(c_register, j_0)
    sch.vectorize(j_1)
    return sch


def test_trace_replays_on_another_shape() -> None:
    function = matmul(10, 20, 3)
    again = tuned().trace.apply(function)
    a, b = np.ones((10, 3), np.float32), np.ones((3, 20), np.float32)
    (found,) = interpret(again.function, [a, b], check_conflicts=True)
    np.testing.assert_array_equal(found, a @ b)


def test_trace_that_does_not_fit_names_its_step() -> None:
    with pytest.raises(ScheduleError) as error:
        tuned().trace.apply(scale())
    assert error.value.message == (
        "trace, step 1 of 8 (c = sch.get_block(name='c')): block c: not in this function; it has b"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "trace: no JSON"),
        ("[]", "trace: no object with version and steps"),
        ('{"version": 2, "steps": []}', "trace: version 2; 1 is known here"),
        ('{"version": 1, "steps": [1]}', "trace, step 1: no object with primitive"),
    ],
)
def test_json_that_is_no_trace_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=f"^{message}"):
        Trace.from_json(text)


def step(primitive: str, outputs: list[str], **arguments: object) -> str:
    steps = [{"primitive": primitive, "arguments": arguments, "outputs": outputs}]
    return json.dumps({"version": 1, "steps": steps})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (step("vectorize", [], loop={"ref": "x"}), "trace, step 1: x is not made by a step before"),
        (step("get_block", ["a b"], name="b"), "trace, step 1: 'a b' is no new name"),
        (step("vectorize", [], loop=1.5), "trace, step 1: argument 1.5 is of no known kind"),
        (step("__init__", []), r"trace, step 1 of 1 \(.*\): schedule: no primitive '__init__'"),
        (
            step("vectorize", [], loop=3),
            "trace, step 1 of 1 .*: vectorize: loop is 3; pass a handle",
        ),
        (step("vectorize", [], lop="i"), "trace, step 1 of 1 .*: vectorize: missing a required"),
        (
            step("get_block", [], name="b"),
            "trace, step 1 of 1 .*: it gives 1 results here, the trace",
        ),
    ],
)
def test_step_that_cannot_be_taken_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=f"^{message}"):
        Trace.from_json(text).apply(scale())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sch.vectorize(", "trace: no Python text"),
        ("import os", "trace, line 1: 'import os' is no call of sch"),
        ("os.remove(loop='i')", "trace, line 1: .* is no call of sch with keywords"),
        ("sch.vectorize('i')", "trace, line 1: .* is no call of sch with keywords"),
        ("sch.vectorize(loop=1.5)", "trace, line 1: '1.5' is no name, literal or list"),
    ],
)
def test_text_that_is_no_trace_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=f"^{message}"):
        Trace.from_text(text)
