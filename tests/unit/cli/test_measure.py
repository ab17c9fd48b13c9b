"""``farm measure`` without a farm."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

import farm.cli.measure as module
from farm.client import Candidate, Measured
from farm.errors import InfrastructureError
from farm.measuring import Measurement, Samples, Status
from farm.measuring.statistics import grade_of, statistics_of


@pytest.mark.parametrize(
    ("error", "code"),
    [(InfrastructureError("farm: away; look at it"), 6), (KeyboardInterrupt(), 130)],
)
def test_what_was_measured_is_shown_though_the_farm_fails_before_the_last(
    cli, artifact, monkeypatch, error, code
):
    samples = Samples(cpu_ns=(2000, 2000, 2000), wall_ns=(2000, 2000, 2000))
    statistics = statistics_of(samples, "cpu_ns")
    found = Measurement(
        Status.OK, samples=samples, statistics=statistics, grade=grade_of(statistics)
    )

    def measure(candidates, **more):
        yield Measured(Candidate("first", artifact), Status.OK, measurement=found, device_id="d")
        raise error

    client = SimpleNamespace(measure=measure)
    monkeypatch.setattr(module, "connect", lambda tracker: contextlib.nullcontext(client))
    ended = cli("measure", artifact, artifact)
    assert (ended.code, ended.out) == (code, "")
    assert "first on d: 2.000 us" in ended.err
    assert cli("measure", artifact, artifact, "-o", "json").error
