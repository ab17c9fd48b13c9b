"""What a comparison is for the command line."""

from __future__ import annotations

import pytest

from farm.cli.compared import failure_of
from farm.cli.measured import measurement_json, measurement_text
from farm.cli.output import to_json
from farm.errors import Inconclusive, KernelFailed, MeasuredSlower
from farm.measuring import ComparedPair, Comparison, Grade, Measurement, Samples, Status, Verdict
from farm.measuring.statistics import statistics_of

GOOD = Measurement(Status.OK)
BAD = Measurement(Status.WRONG, KernelFailed("b: wrong"))


@pytest.mark.parametrize(
    ("measurements", "verdicts", "error"),
    [
        ((GOOD, GOOD), (Verdict.SAME,), None),
        ((GOOD, GOOD), (Verdict.FASTER,), None),
        ((GOOD, GOOD), (Verdict.SLOWER,), MeasuredSlower),
        ((GOOD, GOOD), (Verdict.INCONCLUSIVE,), Inconclusive),
        ((GOOD, GOOD, GOOD), (Verdict.INCONCLUSIVE, Verdict.SLOWER), MeasuredSlower),
        ((GOOD, BAD, GOOD), (Verdict.NONE, Verdict.SLOWER), KernelFailed),
    ],
)
def test_worst_of_a_comparison_is_its_failure(measurements, verdicts, error):
    names = tuple("abc"[: len(measurements)])
    pairs = tuple(ComparedPair(it, 1.0, 0.9, 1.1, 10, 10) for it in verdicts)
    found = failure_of(names, Comparison(measurements, pairs, rounds=10))
    assert (found and type(found)) == error


def test_measurement_without_samples_is_shown_as_what_it_is():
    assert measurement_text(BAD) == "wrong: b: wrong"
    shown = measurement_json(BAD)
    assert (shown["value"], shown["statistics"]) == (None, None)
    assert to_json(shown)


def test_measurement_is_shown_with_its_noise():
    samples = Samples(calls=2, cpu_ns=(2000, 2000, 2020), wall_ns=(2000, 2000, 2020))
    found = Measurement(
        Status.OK,
        samples=samples,
        statistics=statistics_of(samples, "cpu_ns"),
        grade=Grade.A,
        timing_class="native",
        checked=True,
    )
    text = measurement_text(found)
    assert text.startswith("1.000 us ± 1.0 %, grade A (3 samples, 3 clean, native, warm caches")
    assert "not checked" not in text
