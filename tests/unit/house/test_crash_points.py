"""The tables of crash points in docs/faults.md are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from farm_agents import crash_points as of_agents
from farm_tracker import crash_points as of_trackers

PAGE = Path(__file__).resolve().parents[3] / "docs" / "faults.md"


@pytest.mark.parametrize("service", [of_trackers, of_agents])
def test_page_names_every_crash_point_and_what_is_true_there(service):
    text = PAGE.read_text("utf-8")
    table = text.partition(f"| `{service.VARIABLE}` | what is true there |\n|---|---|\n")[2]
    rows = re.findall(r"^\| `([a-z.]+)` \| (.+) \|$", table.partition("\n\n")[0], re.MULTILINE)
    assert dict(rows) == dict(service.POINTS.names)
