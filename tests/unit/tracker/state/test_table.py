from __future__ import annotations

import pytest
from farm_tracker.state import table
from farm_tracker.state.model import Admin, LeaseState, Observed, Use
from farm_tracker.state.run import RunAttemptState, RunState
from farm_tracker.state.work import AttemptState, JobState, UnitState

from farm.errors import InvalidTransition

TABLES = [
    (table.LEASE, LeaseState, LeaseState.QUEUED, {"RELEASED", "EXPIRED", "REVOKED", "LOST"}),
    (table.USE, Use, Use.IDLE, set()),
    (table.OBSERVED, Observed, Observed.UNKNOWN, set()),
    (table.JOB, JobState, JobState.SUBMITTED, {"DONE", "FAILED", "CANCELLED"}),
    (table.UNIT, UnitState, UnitState.QUEUED, {"DONE", "FAILED", "CANCELLED"}),
    (
        table.ATTEMPT,
        AttemptState,
        AttemptState.BUILDING,
        {"DONE", "FAILED", "LOST", "CANCELLED"},
    ),
    (table.RUN, RunState, RunState.SUBMITTED, {"TERMINAL"}),
    (
        table.RUN_ATTEMPT,
        RunAttemptState,
        RunAttemptState.RUNNING,
        {"DONE", "INFRA_FAILED", "CANCELLED", "SUPERSEDED"},
    ),
    (table.ADMIN, Admin, Admin.ENABLED, set()),
]


@pytest.mark.parametrize(("rules", "states", "first", "ends"), TABLES)
def test_table_reaches_every_state_and_only_terminal_ones_have_no_way_out(
    rules, states, first, ends
):
    reached = {first}
    while new := {after for (state, _), after in rules.items() if state in reached} - reached:
        reached |= new
    assert reached == set(states)
    assert set(states) - {state for state, _ in rules} == ends


@pytest.mark.parametrize(("rules", "states", "first", "ends"), TABLES)
def test_table_refuses_every_other_pair_with_the_story(rules, states, first, ends):
    for state in states:
        for trigger in table.Trigger:
            if (state, trigger) in rules:
                assert table.follow(rules, state, trigger, "it") is rules[state, trigger]
            else:
                with pytest.raises(InvalidTransition, match="report this story: once; upon"):
                    table.follow(rules, state, trigger, "it", ("once", "upon"))


def test_table_every_trigger_is_used():
    assert {trigger for rules, *_ in TABLES for _, trigger in rules} == set(table.Trigger)


def test_story_keeps_the_last_lines():
    story = ()
    for number in range(40):
        story = table.told(story, str(number))
    assert story == tuple(str(number) for number in range(24, 40))
