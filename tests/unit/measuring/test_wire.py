"""Measurements as messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farm.api.v1 import measure_pb2
from farm.errors import FarmError, InfrastructureError, InvalidInput, KernelCrashed
from farm.measuring import (
    CacheMode,
    ComparedPair,
    Comparison,
    Grade,
    Measurement,
    Options,
    Samples,
    Statistics,
    Status,
    Verdict,
)
from farm.measuring.wire import (
    comparison_from_proto,
    comparison_to_proto,
    measurement_from_proto,
    measurement_to_proto,
    options_from_proto,
    options_to_proto,
)

MEASURED = Measurement(
    status=Status.OK,
    unit="cycles",
    clock="cycles",
    timing_class="simulated",
    cache=CacheMode.ROTATE,
    samples=Samples(
        calls=3,
        start_ns=(1, 2),
        wall_ns=(10, 20),
        cpu_ns=(9, 19),
        switches=(0, 1),
        observed={"cycles": (5.0, 6.0)},
        disturbed=(1,),
    ),
    statistics=Statistics(2, 1, 1.0, 1.1, 1.5, 0.25, 1.0, 2.0),
    grade=Grade.B,
    checked=True,
    fingerprint={"cpu": "x"},
    host="abc",
    target="ea",
    phases={"load": 0.5},
)


def test_measurement_comes_back_as_it_was():
    message = measurement_to_proto(MEASURED)
    again = measure_pb2.Measurement.FromString(message.SerializeToString())
    assert measurement_from_proto(again) == MEASURED


def test_fact_that_cannot_be_read_is_absent():
    message = measurement_to_proto(Measurement(Status.OK, fingerprint={"a": None, "b": "c"}))
    assert dict(message.fingerprint) == {"b": "c"}


@pytest.mark.parametrize(
    "status", [it for it in Status if it not in (Status.BUILD_FAILED, Status.QUARANTINED)]
)
def test_status_and_its_reason_come_back(status):
    found = Measurement(status, KernelCrashed("c: crashed", signal="SIGSEGV"))
    again = measurement_from_proto(measurement_to_proto(found))
    assert (again.status, again.value) == (status, None)
    assert type(again.error) is KernelCrashed
    assert (again.error.message, again.error.details) == ("c: crashed", {"signal": "SIGSEGV"})


def test_comparison_comes_back_as_it_was():
    pair = ComparedPair(Verdict.SLOWER, 1.1, 1.05, 1.15, 40, 39)
    found = Comparison((MEASURED, MEASURED), (pair,), rounds=40)
    assert comparison_from_proto(comparison_to_proto(found)) == found
    failed = Comparison((), (), error=FarmError("x: y"))
    assert comparison_from_proto(comparison_to_proto(failed)).error.message == "x: y"


def test_options_come_back_and_nothing_stands_for_the_defaults():
    options = Options(CacheMode.COLD, 5, 0.01, 1.0, 3.0, 20.0, 2.0)
    assert options_from_proto(options_to_proto(options)) == options
    assert options_from_proto(measure_pb2.MeasureOptions()) == Options()


def test_options_out_of_range_are_refused():
    with pytest.raises(InvalidInput, match="samples"):
        options_from_proto(measure_pb2.MeasureOptions(samples=100_000))


@pytest.mark.parametrize("field", ["status", "cache", "grade"])
def test_word_of_another_version_is_refused(field):
    message = measurement_to_proto(MEASURED)
    setattr(message, field, 77)
    again = measure_pb2.Measurement.FromString(message.SerializeToString())
    with pytest.raises(InfrastructureError, match="same version"):
        measurement_from_proto(again)


def test_statistics_that_are_no_numbers_are_refused():
    message = measurement_to_proto(MEASURED)
    message.statistics.median = float("nan")
    with pytest.raises(InfrastructureError, match="impossible statistics"):
        measurement_from_proto(message)


def test_measurement_of_an_unknown_timing_class_is_of_another_version():
    message = measurement_to_proto(MEASURED)
    message.timing_class = 99
    with pytest.raises(InfrastructureError, match="impossible timing class"):
        measurement_from_proto(message)


@pytest.mark.parametrize(
    "change",
    [
        {"phases": {"time": float("nan")}},
        {"phases": {"time": -1e301}},
        {"phases": {"p" * 3000: 1.0}},
        {"fingerprint": {str(number): "x" for number in range(200)}},
        {"target": "t" * 3000},
        {"unit": "u" * 3000},
        {"samples": Samples(observed={"cycles": (float("inf"),)})},
        {"samples": Samples(wall_ns=(1,) * 20_001)},
        {"statistics": Statistics(2, 1, -1.0, 1.1, 1.5, 0.25, 1.0, 2.0)},
        {"statistics": Statistics(2, 1, 1.0, 1.1, 1e301, 0.25, 1.0, 2.0)},
    ],
)
def test_measurement_that_nobody_could_keep_is_refused(change):
    message = measurement_to_proto(replace(MEASURED, **change))
    with pytest.raises(InfrastructureError, match="impossible"):
        measurement_from_proto(message)


@pytest.mark.parametrize(
    "change", [{"timing_class": "native"}, {"cache": CacheMode.WARM}, {"unit": "ns"}]
)
def test_measurement_is_of_the_kind_that_was_asked_for(change):
    blank = Measurement(Status.OK, timing_class="simulated", cache=CacheMode.ROTATE)
    blank.check_of_one_kind(MEASURED)
    with pytest.raises(InvalidInput, match="asked for"):
        blank.check_of_one_kind(replace(MEASURED, **change))
