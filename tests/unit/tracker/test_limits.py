from __future__ import annotations

import pytest
from farm_tracker.main import limits_of, main
from farm_tracker.state.model import Limits

from farm.errors import InvalidInput


def test_limits_follow_the_silence_that_loses_an_agent():
    assert limits_of(10.0) == Limits()
    found = limits_of(2.5)
    assert (found.heartbeat_s, found.suspect_s, found.offline_s) == (0.25, 1.0, 2.5)


@pytest.mark.parametrize("offline_s", [0.0, 0.99, 3601.0, float("nan"), float("inf"), -1.0])
def test_limits_out_of_range_are_refused(offline_s):
    with pytest.raises(InvalidInput, match=r"--offline-after: .* use 1 to 3600 seconds"):
        limits_of(offline_s)


@pytest.mark.parametrize(
    "option", ["--keep-jobs-s=nan", "--keep-records-s=-1", "--store-limit-bytes=-1"]
)
def test_limits_that_are_no_numbers_or_negative_are_refused(option, tmp_path, capsys):
    assert main([f"--data-dir={tmp_path / 'data'}", option]) == InvalidInput.exit_code
    name = option.partition("=")[0]
    assert f"farm_tracker: {name}: " in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_agents_report_less_often_where_they_are_many_and_twice_before_their_silence_counts():
    limits = Limits()
    assert [limits.heartbeat_of(it) for it in (1, 500, 750, 1000, 100_000)] == [
        1.0,
        1.0,
        1.5,
        2.0,
        2.0,
    ]
    assert limits.heartbeat_of(100_000) <= limits.suspect_s / 2
