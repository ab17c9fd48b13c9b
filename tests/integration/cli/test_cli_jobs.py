"""The commands for jobs and operators on a real farm."""

from __future__ import annotations

import numpy as np
import pytest

CPU = "kind=cpu,emulator!=qemu-user"


@pytest.fixture
def built(cli, kernels):
    assert cli("build", kernels, "--out", "k.farm").code == 0
    return "k.farm"


def test_submitted_job_is_waited_for_and_its_result_saved(cli, built, tmp_path):
    options = ("--random", "1", "--device", CPU, "--repeat", "5", "--key", "cli-on-a-farm")
    submitted = cli("submit", built, "double", *options)
    assert submitted.code == 0, submitted.err
    job = submitted.out.strip()
    assert cli("submit", built, "double", *options).out.strip() == job
    waited = cli("wait", job)
    assert (waited.code, ": completed, pass on " in waited.out) == (0, True)
    result = cli("result", job, "--save", "out", "-o", "json").json
    assert len(result["timing"]["samples_ns"]) == 5
    assert result["timing"]["timing_class"] == "native"
    direct = cli("run", built, "double", "--random", "1", "--device", CPU, "--save", "direct")
    assert direct.code == 0, direct.err
    np.testing.assert_array_equal(
        np.load(tmp_path / "out" / "y.npy"), np.load(tmp_path / "direct" / "y.npy")
    )
    assert job in [it["job_id"] for it in cli("jobs", "--all", "-o", "json").json["jobs"]]
    assert (cli("logs", job).code, cli("logs", job, "-o", "json").json["job_id"]) == (0, job)


@pytest.mark.parametrize(
    ("function", "options", "code", "error"),
    [
        ("crash", (), 1, "KERNEL_CRASHED"),
        ("spin", ("--limit", "1"), 4, "TIME_LIMIT"),
    ],
)
def test_job_whose_kernel_misbehaves_ends_with_its_code_after_one_attempt(
    cli, hostile, function, options, code, error
):
    ended = cli("submit", hostile, function, "--device", CPU, *options, "--wait", "-o", "json")
    assert ended.code == code
    job = ended.json["job"]
    assert (job["outcome"], job["verdict"]) == ("completed", "fail")
    assert job["error"]["code"] == error
    assert [attempt["error"]["code"] for attempt in job["attempts"]] == [error]


def test_job_that_waits_is_explained_and_cancelled(cli, built):
    held = cli("acquire", CPU, "--holder", "the test", "-o", "json").json
    try:
        job = cli("submit", built, "double", "--random", "1", "--device", CPU).out.strip()
        why = cli("why", job, "-o", "json").json
        assert why["position"] == 1
        assert list(why["devices"]) == [held["device"]["device_id"]]
        assert job in cli("queue").out
        assert "the test" in cli("who").out
        assert cli("result", job).code == 4
        assert cli("cancel", job, "--reason", "not needed").code == 0
        assert cli("wait", job, "--timeout", "30").code == 5
    finally:
        assert cli("release", held["lease_id"]).code == 0
    events = cli("events", "-o", "json").json["events"]
    assert job in {event["subject"] for event in events}


def test_job_for_nobody_is_refused_with_7(cli, built):
    ended = cli("submit", built, "double", "--random", "1", "--device", "kind=gpu", "-o", "json")
    assert (ended.code, ended.json["error"]["code"]) == (7, "NOBODY_CAN_SERVE")


def test_drained_device_is_shown_and_comes_back(cli, built):
    (device,) = cli("devices", CPU, "-o", "json").json["devices"]
    name = f"device_id={device['device_id']}"
    drained = cli("drain", name, "--reason", "the test", "-o", "json")
    assert drained.code == 0, drained.err
    try:
        assert drained.json["devices"][0]["admin"] in ("draining", "drained")
        job = cli("submit", built, "double", "--random", "1", "--device", name).out.strip()
        assert "the test" in cli("why", job).out
    finally:
        assert cli("resume", name).code == 0
    assert cli("wait", job, "--timeout", "60").code == 0
