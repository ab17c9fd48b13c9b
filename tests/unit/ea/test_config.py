from __future__ import annotations

import dataclasses

import pytest

from farm.ea.config import CONFIGS, EA8, EA16, EA32, find_config
from farm.errors import InvalidTarget


def test_config_named_ones_have_the_documented_sizes():
    sizes = {c.name: (c.dim, c.spad_bytes >> 10, c.acc_bytes >> 10) for c in CONFIGS.values()}
    assert sizes == {"ea8": (8, 64, 16), "ea16": (16, 256, 64), "ea32": (32, 1024, 256)}
    assert (EA16.spad_rows, EA16.acc_rows, EA16.queue_depth) == (16384, 1024, 16)


def test_config_unknown_name_is_refused_with_those_known():
    assert find_config("ea32") is EA32
    with pytest.raises(InvalidTarget, match="ea8, ea16, ea32"):
        find_config("ea17")


def test_config_id_changes_with_any_number_and_only_then():
    assert dataclasses.replace(EA16).config_id == EA16.config_id
    ids = {EA16.config_id, EA8.config_id}
    for name in ("spad_rows", "acc_rows", "queue_depth", "burst_cycles", "clock_hz"):
        ids.add(dataclasses.replace(EA16, **{name: getattr(EA16, name) + 4}).config_id)
    assert len(ids) == 7


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dim", 12),
        ("spad_rows", 1 << 16),
        ("acc_rows", 4096),
        ("acc_rows", 8),
        ("spad_banks", 3),
        ("acc_banks", 0),
        ("queue_depth", 0),
        ("burst_cycles", -1),
    ],
)
def test_config_number_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(InvalidTarget, match=f"bad {field} \\({value}\\)"):
        dataclasses.replace(EA16, **{field: value})
