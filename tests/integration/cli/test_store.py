"""``farm store`` against a real farm, and the options of ``farm up`` that limit what is kept."""

from __future__ import annotations

import pytest

from farm.cli.spans import size_bytes
from farm.cli.text import size


def test_store_shows_how_full_it_is(cli):
    info = cli("store", "-o", "json").json
    assert info["limit_bytes"] > 0
    assert 0 <= info["pinned_bytes"] <= info["used_bytes"] <= info["limit_bytes"]
    shown = cli("store").out
    assert f" of {size(info['limit_bytes'])} (" in shown
    assert "needed now by builds, jobs, kept results and sessions" in shown


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("500M", 500 << 20), ("20G", 20 << 30), ("3TiB", 3 << 40)]
)
def test_sizes_are_read_in_powers_of_1024(text, value):
    assert size_bytes(None, None, text) == value


@pytest.mark.parametrize(
    "options", [("--store-limit", "much"), ("--store-limit", "0"), ("--keep-jobs", "1y")]
)
def test_limits_that_make_no_sense_are_refused(cli, options):
    assert cli("up", *options).code == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (20 << 30, "20 GiB"), (3 << 40, "3.0 TiB")],
)
def test_sizes_are_shown_in_few_digits(value, text):
    assert size(value) == text
