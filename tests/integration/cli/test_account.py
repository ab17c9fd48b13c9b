"""``farm account`` against a real farm."""

from __future__ import annotations

import pytest


def test_account_is_limited_listed_and_freed_again(cli):
    said = cli(
        *("account", "limit", "ci", "--devices", "2", "--device-seconds", "7200", "--per", "12h")
    )
    assert said.out == "ci: 2 devices at once, 0 of 7200 in 12 h 0 min device-seconds\n"
    (info,) = [
        it for it in cli("account", "list", "-o", "json").json["accounts"] if it["name"] == "ci"
    ]
    assert (info["max_devices"], info["max_queued"], info["max_device_seconds"]) == (
        2,
        None,
        7200.0,
    )
    assert (info["window_s"], info["window_left_s"], info["waits_for"]) == (43_200.0, 0.0, "")
    assert "0 of 2" in cli("account", "list").out
    assert cli("account", "limit", "ci").out == "ci: no limits\n"


@pytest.mark.parametrize(
    "options", [("--per", "1d"), ("--devices", "-1"), ("--device-seconds", "1", "--per", "soon")]
)
def test_account_limit_that_makes_no_sense_is_refused(cli, options):
    assert cli("account", "limit", "ci", *options).code == 2
