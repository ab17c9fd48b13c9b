"""What is concluded from samples."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import InvalidInput
from farm.measuring import (
    CacheMode,
    Grade,
    Measurement,
    Options,
    Samples,
    Status,
    Verdict,
    statistics,
)
from farm.measuring.statistics import (
    compare,
    compare_parts,
    disturbed,
    grade_of,
    interval,
    joined,
    settled,
    statistics_of,
    verdict_of,
)


def samples(cpu_ns, calls=1, **columns):
    return Samples(calls=calls, cpu_ns=tuple(map(int, cpu_ns)), **columns)


def test_statistics_are_of_one_call_and_leave_disturbed_samples_out():
    found = statistics_of(samples([100, 200, 300, 9000], calls=10, disturbed=(3,)), "cpu_ns")
    assert (found.n, found.clean, found.min, found.median) == (4, 3, 10, 20)
    assert found.low <= found.median <= found.high <= 30


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=12))
def test_statistics_are_those_of_numpy(values):
    found = statistics_of(samples(values, calls=7), "cpu_ns")
    numbers = np.array(samples(values, calls=7).per_call("cpu_ns"))
    p10, first, third = np.quantile(numbers, (0.1, 0.25, 0.75))
    assert (found.min, found.p10, found.spread) == (numbers.min(), p10, (third - first) / 2)
    assert found.median == pytest.approx(np.median(numbers), rel=1e-15)
    assert (found.low, found.high) == interval(numbers)


def test_statistics_use_every_sample_when_too_few_are_clean():
    found = statistics_of(samples([10, 20, 30], disturbed=(0, 1)), "cpu_ns")
    assert (found.n, found.clean, found.median) == (3, 1, 20)
    assert grade_of(found) is Grade.C


def test_statistics_of_a_clock_without_samples_are_none():
    assert statistics_of(samples([1, 2, 3]), "cycles") is None
    assert grade_of(None) is Grade.C


@pytest.mark.parametrize(("noise", "grade"), [(0.001, Grade.A), (0.06, Grade.B), (0.6, Grade.C)])
def test_grade_follows_the_noise(noise, grade):
    rng = np.random.default_rng(1)
    values = 1e6 * (1 + noise * rng.uniform(-1, 1, 30))
    assert grade_of(statistics_of(samples(values), "cpu_ns")) is grade


@given(
    ratio=st.floats(0.2, 5),
    drift=st.lists(st.floats(1.0, 50.0), min_size=20, max_size=40),
)
def test_compare_sees_the_ratio_through_any_slowness_that_both_of_a_pair_have(ratio, drift):
    first = [1_000_000 * slow for slow in drift]
    pair = compare(samples(first), samples([ratio * it for it in first]), "cpu_ns", 0.02)
    assert pair.ratio == pytest.approx(ratio, rel=1e-4)
    expected = verdict_of(pair.low, pair.high, 0.02)
    assert pair.verdict is expected
    assert (pair.pairs, pair.clean) == (len(first), len(first))


@given(low=st.floats(0.5, 2), width=st.floats(0, 1), threshold=st.floats(0.001, 0.3))
def test_verdict_is_of_the_whole_interval(low, width, threshold):
    high = low + width
    found = verdict_of(low, high, threshold)
    inverse = verdict_of(1 - threshold, 1 + threshold, threshold)
    assert inverse is Verdict.SAME
    if found is Verdict.FASTER:
        assert high < 1 - threshold
    elif found is Verdict.SLOWER:
        assert low > 1 + threshold
    elif found is Verdict.SAME:
        assert 1 - threshold <= low <= high <= 1 + threshold
    else:
        assert low < 1 - threshold <= high or low <= 1 + threshold < high


def test_compare_leaves_pairs_with_a_disturbed_sample_out_where_enough_are_clean():
    first = samples([100] * 20, disturbed=(0,))
    other = samples([9000] * 2 + [110] * 18, disturbed=(1,))
    pair = compare(first, other, "cpu_ns", 0.02)
    assert (pair.verdict, pair.pairs, pair.clean) == (Verdict.SLOWER, 20, 18)
    assert (pair.low, pair.ratio, pair.high) == pytest.approx((1.1, 1.1, 1.1))
    noisy = samples([100] * 20, disturbed=range(15))
    pair = compare(noisy, other, "cpu_ns", 0.02)
    assert (pair.clean, pair.ratio) == (5, pytest.approx(1.1))


def test_interval_is_the_same_however_many_numbers_are_drawn_at_once(monkeypatch):
    values = np.random.default_rng(3).normal(100, 5, 37)
    whole = interval(values)
    for at_once in (1, 64, 1000):
        monkeypatch.setattr(statistics, "DRAWN_AT_ONCE", at_once)
        assert interval(values) == whole


@pytest.mark.parametrize("confidence", [statistics.CONFIDENCE, statistics.LOOK_CONFIDENCE])
@pytest.mark.parametrize("count", range(1, statistics.FEW + 1))
def test_interval_of_few_numbers_is_what_drawing_gives(monkeypatch, count, confidence):
    values = np.random.default_rng(count).random(count)
    found = interval(values, confidence)
    monkeypatch.setattr(statistics, "FEW", 0)
    assert interval(values, confidence) == found == (values.min(), values.max())


def test_interval_of_many_samples_takes_little_memory():
    values = np.random.default_rng(3).normal(100, 5, 10_000)
    tracemalloc.start()
    try:
        interval(values)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 32 << 20


def test_few_pairs_say_nothing():
    first, other = samples([100] * 9), samples([200] * 9)
    assert compare(first, other, "cpu_ns", 0.02).verdict is Verdict.INCONCLUSIVE


def test_difference_that_only_one_process_has_is_no_verdict():
    first = [samples([100] * 30), samples([100] * 30)]
    both = [samples([110] * 30), samples([112] * 30)]
    one = [samples([110] * 35), samples([100] * 10)]
    assert compare_parts(first, both, "cpu_ns", 0.02).verdict is Verdict.SLOWER
    assert compare_parts(both, first, "cpu_ns", 0.02).verdict is Verdict.FASTER
    first = [samples([100] * 35), samples([100] * 10)]
    assert compare(*map(joined, (first, one)), "cpu_ns", 0.02).verdict is Verdict.SLOWER
    assert compare_parts(first, one, "cpu_ns", 0.02).verdict is Verdict.INCONCLUSIVE


def test_samples_of_processes_are_joined_in_order():
    parts = [
        samples([1, 2], wall_ns=(1, 2), disturbed=(1,)),
        samples([3], wall_ns=(3,), disturbed=(0,)),
    ]
    whole = joined(parts)
    assert (whole.cpu_ns, whole.wall_ns, whole.disturbed) == ((1, 2, 3), (1, 2, 3), (1, 2))
    with pytest.raises(InvalidInput, match="different numbers of calls"):
        joined([samples([1]), samples([1], calls=2)])


def test_compare_without_usable_pairs_is_inconclusive():
    assert compare(samples([]), samples([1]), "cpu_ns", 0.02).verdict is Verdict.INCONCLUSIVE
    assert compare(samples([0]), samples([1]), "cpu_ns", 0.02).verdict is Verdict.INCONCLUSIVE


def test_sample_is_disturbed_by_waiting_stealing_and_idling():
    found = Samples(
        wall_ns=(100, 100, 100, 130),
        cpu_ns=(100, 100, 100, 100),
        switches=(0, 1, 0, 0),
        steal_ns=(0, 0, 50, 0),
    )
    assert disturbed(found) == (1, 2, 3)
    assert disturbed(Samples(wall_ns=(100, 130))) == ()


def test_windows_are_settled_when_the_last_three_agree():
    assert settled([9, 1.0, 1.02, 1.04])
    assert not settled([1.0, 1.0])
    assert not settled([1.0, 1.02, 1.06])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("samples", 2),
        ("sample_s", 0.1),
        ("warm_up_s", float("nan")),
        ("budget_s", 0),
        ("limit_s", 500),
        ("race_factor", 0.5),
    ],
)
def test_option_out_of_range_is_refused(name, value):
    with pytest.raises(InvalidInput, match=name):
        Options(**{name: value})


def test_samples_with_columns_of_different_lengths_are_refused():
    with pytest.raises(InvalidInput, match="samples: impossible"):
        Samples(wall_ns=(1, 2), cpu_ns=(1,))
    with pytest.raises(InvalidInput, match="samples: impossible"):
        Samples(wall_ns=(1,), disturbed=(1,))


def test_only_values_of_one_kind_may_be_compared():
    one = Measurement(Status.OK, timing_class="native")
    one.check_comparable(Measurement(Status.OK, timing_class="native"))
    for other in (
        Measurement(Status.OK, timing_class="emulated"),
        Measurement(Status.OK, timing_class="native", cache=CacheMode.COLD),
        Measurement(Status.OK, timing_class="native", unit="cycles", clock="cycles"),
        Measurement(Status.OK, timing_class="native", clock="wall_ns"),
    ):
        with pytest.raises(InvalidInput, match="not comparable"):
            one.check_comparable(other)
