"""The page that explains the states says exactly those that the tables have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from farm_tracker.state import table
from farm_tracker.state.model import Health
from farm_tracker.state.run import Outcome, Verdict

PAGE = Path(__file__).parents[4] / "docs" / "states.md"
SECTIONS = {
    "Run job": table.RUN,
    "Run attempt": table.RUN_ATTEMPT,
    "Lease": table.LEASE,
    "What people want of a device": table.ADMIN,
    "What heartbeats say": table.OBSERVED,
    "Use of a device": table.USE,
    "Build": table.JOB,
    "Build unit": table.UNIT,
    "Build attempt": table.ATTEMPT,
}


def sections() -> dict[str, str]:
    parts = re.split(r"^#+ (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("title", SECTIONS)
def test_glossary_explains_each_state_of_the_table_and_no_other(title):
    explained = re.findall(r"^\| ([A-Z_]+) \| (?=\S)", sections()[title], flags=re.MULTILINE)
    rules = SECTIONS[title]
    assert sorted(explained) == sorted({state for pair in rules.items() for state in _both(pair)})


def test_glossary_explains_each_health_and_no_other():
    explained = re.findall(
        r"^\| ([A-Z_]+) \| (?=\S)", sections()["Health of a device"], re.MULTILINE
    )
    assert sorted(explained) == sorted(Health)


def test_glossary_names_every_outcome_and_verdict():
    text = sections()["Run job"]
    for word in (*Outcome, *Verdict):
        assert re.search(rf"\b{word}\b", text), word


def test_glossary_covers_every_table():
    tables = [it for name, it in vars(table).items() if name.isupper() and isinstance(it, dict)]
    named = [it for it in tables if all(isinstance(key, tuple) for key in it)]
    assert sorted(map(id, named)) == sorted(map(id, SECTIONS.values()))


def _both(pair):
    (before, _), after = pair
    return (str(before), str(after))
