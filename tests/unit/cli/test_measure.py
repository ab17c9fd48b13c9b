"""``farm measure`` without a farm."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

import farm.cli.measure as module
from farm.cli.candidates import keys_of
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


def test_candidates_are_named_after_their_files_as_far_as_names_go(tmp_path):
    long = "x" * 300 + "ü.farm:f"
    texts = ("a.farm", "b\udcff.farm", "a.farm", long, long, "é" * 100)
    keys = keys_of(texts)
    assert keys[:3] == ["a.farm#1", "b\\udcff.farm", "a.farm#2"]
    assert keys[3].startswith("...x")
    assert keys[3].endswith("ü.farm:f#1")
    assert len(set(keys)) == len(texts)
    for key in keys:
        Candidate(key, tmp_path)  # refuses what is too long or no text


@pytest.mark.parametrize(
    "arguments",
    [
        ("events", "--after", 10**23),
        ("events", "--last", 10**23),
        ("logs", "job-1", "--from", 10**23),
        ("extend", "lease-1", "--epoch", 10**23),
        ("account", "limit", "x", "--devices", 10**20),
        ("account", "limit", "x", "--queued", 10**20),
    ],
)
def test_numbers_that_no_message_holds_are_refused(cli, arguments):
    ended = cli(*arguments, "--tracker", "127.0.0.1:1", "-o", "json")
    assert (ended.code, ended.error["code"]) == (2, "USAGE")


def test_bytes_that_are_no_text_are_the_users_error(cli, monkeypatch):
    def jobs(**options):
        return options["account"].encode()

    client = contextlib.nullcontext(SimpleNamespace(jobs=jobs))
    monkeypatch.setattr("farm.cli.queue.connect", lambda tracker: client)
    ended = cli("jobs", "--account", "a\udcff", "-o", "json")
    assert (ended.code, ended.error["code"]) == (2, "USAGE")
    assert "udcff" in ended.error["message"]
