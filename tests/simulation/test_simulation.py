"""The farm under random faults: few seeds here, many with `make simulate`."""

from __future__ import annotations

import time

import pytest

from simulation.plan import plan_of
from simulation.plants import PLANTS
from simulation.story import live, run_batch, story_of

SECONDS = 8.0
FIRST = 20_000
MOST_SEEDS = {
    "drop the epoch check": 150,
    "acknowledge before commit": 20,
    "skip the kill proof": 20,
    "retry user faults": 30,
    "forget account limits": 150,
    "ignore variants": 60,
}


def test_farm_under_random_faults_keeps_every_invariant():
    """New seeds as long as the time lasts, on top of those that `make simulate` runs."""
    until = time.monotonic() + SECONDS
    first = FIRST
    while time.monotonic() < until:
        _, _, failed = run_batch((first, 10))
        assert not failed, "\n" + story_of(failed[0])
        first += 10
    assert first > FIRST


def test_seed_lived_twice_has_the_same_history():
    plan = plan_of(7)
    first, again = live(plan, trace=True), live(plan, trace=True)
    assert first.trace
    assert first == again


@pytest.mark.parametrize("name", list(PLANTS))
def test_planted_bug_is_found(name):
    with PLANTS[name]():
        endings = (live(plan_of(seed)) for seed in range(MOST_SEEDS[name]))
        found = next((it for it in endings if it.name), None)
    assert found is not None, f"{name}: not found in {MOST_SEEDS[name]} seeds"
    names = (
        "epoch",
        "commit",
        "kill proof",
        "overlap",
        "freed",
        "user fault",
        "account",
        "variant",
    )
    assert found.name in names


def test_story_of_a_failing_seed_is_small_and_says_how_to_see_it_again():
    with PLANTS["skip the kill proof"]():
        seed = next(seed for seed in range(20) if live(plan_of(seed)).name)
        story = story_of(seed)
    assert "smallest plan that fails so: kill proof" in story
    assert "  fault " not in story, "one lease is enough for this bug"
    assert story.endswith(f"again: make simulate SEED={seed} TRACE=1")


def test_story_of_a_sound_seed_says_so():
    assert "every invariant held" in story_of(7)
