"""A comparison from what was measured."""

from __future__ import annotations

import pytest

from farm.errors import InvalidInput
from farm.measuring import Measurement, Samples, Statistics, Status, Verdict
from farm.measuring.comparison import compared

GOOD = Measurement(Status.OK, timing_class="native")
BAD = Measurement(Status.CRASH, timing_class="native")


def part(value, count=20):
    return Samples(cpu_ns=(value,) * count, wall_ns=(value,) * count)


def cycles(value):
    statistics = Statistics(3, 3, value, value, value, 0.0, value, value)
    samples = Samples(wall_ns=(5, 5, 5), observed={"cycles": (value,) * 3})
    return Measurement(
        Status.OK, unit="cycles", clock="cycles", statistics=statistics, samples=samples
    )


def test_pairs_are_of_those_that_ran_and_the_others_are_kept():
    parts = {0: [part(100), part(101)], 2: [part(120), part(120)]}
    found = compared([GOOD, BAD, GOOD], parts, 0.02)
    assert [it.verdict for it in found.pairs] == [Verdict.NONE, Verdict.SLOWER]
    assert found.rounds == 40
    assert found.measurements[1] == BAD
    assert found.measurements[2].statistics.n == 40


def test_nothing_is_compared_with_a_first_that_did_not_run():
    found = compared([BAD, GOOD, GOOD], {}, 0.02)
    assert [it.verdict for it in found.pairs] == [Verdict.NONE, Verdict.NONE]
    assert found.rounds == 0


@pytest.mark.parametrize(
    ("value", "verdict"), [(90, Verdict.FASTER), (101, Verdict.SAME), (103, Verdict.SLOWER)]
)
def test_cycles_are_compared_exactly(value, verdict):
    first, other = cycles(100), cycles(value)
    parts = {0: [first.samples], 1: [other.samples]}
    (pair,) = compared([first, other], parts, 0.02).pairs
    assert (pair.verdict, pair.low, pair.high) == (verdict, value / 100, value / 100)


def test_what_is_not_comparable_is_refused():
    parts = {0: [part(100)], 1: [part(100)]}
    other = Measurement(Status.OK, timing_class="emulated")
    with pytest.raises(InvalidInput, match="not comparable"):
        compared([GOOD, other], parts, 0.02)
