"""However much is due at once, a step lets some of it pass and leaves the rest to the next ones."""

from __future__ import annotations

import pytest
from farm_tracker.state.events import Tick
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture
def crowded(world):
    """Thirty jobs that nobody serves, of which a step ends ten."""
    world.limit(expired_at_once=10)
    for number in range(30):
        world.happen(
            world.job(f"j{number}", wait_for_device=True, queue_limit_s=5.0 + number / 100)
        )
    return world


def open_jobs(world):
    return [name for name, job in world.state.run_jobs.items() if job.is_open]


def test_what_is_due_passes_in_bounded_steps_the_earliest_first(crowded):
    crowded.happen(Tick(), after=100.0)
    for left in (20, 10, 0):
        assert open_jobs(crowded) == [f"j{number}" for number in range(30 - left, 30)]
        assert (crowded.state.next_deadline() <= crowded.now) == (left > 0)
        crowded.happen(Tick())


def test_event_that_comes_while_much_is_due_is_handled_at_once(crowded):
    crowded.happen(crowded.agent(devices=(crowded.device(),)), after=100.0)
    assert crowded.state.devices["dev0"].observed == "ONLINE"
    assert len(open_jobs(crowded)) == 20


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.floats(0.1, 50.0), max_size=20), st.integers(1, 25), st.floats(0.0, 60.0))
def test_due_is_the_earliest_of_what_is_due(world, limits, most, now):
    world = type(world)()
    for number, limit in enumerate(limits):
        world.happen(world.job(f"j{number}", wait_for_device=True, queue_limit_s=limit))
    at = {key: 100.0 + limit for key, limit in zip(world.state.run_jobs, limits, strict=True)}
    due = sorted((it, key) for key, it in at.items() if it <= 100.0 + now)
    found = list(world.state.due(100.0 + now, most))
    assert sorted(at[key] for _, key in found) == [it for it, _ in due[:most]]
