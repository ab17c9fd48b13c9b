from __future__ import annotations

import asyncio

import pytest
from farm_tracker.state.events import Tick
from farm_tracker.state.model import Limits
from farm_tracker.state.state import Changes
from farm_tracker.state.work import Attempt
from farm_tracker.store import Store
from farm_tracker.tracker import Tracker

from farm.core.clock import SystemClock
from farm.core.ids import AgentId, random_id
from farm.errors import InfrastructureError


def test_tracker_whose_deadline_meets_a_defect_ends_aloud(tmp_path):
    async def body():
        clock = SystemClock()
        store = Store(tmp_path / "tracker.db")
        tracker = Tracker(store, Limits(), clock, random_id)
        await tracker.start()
        lost = Attempt("a1", "no such unit", AgentId("a"), "p1", clock.now() + 0.05, 1.0)
        tracker.state.apply(Changes(attempts={"a1": lost}))
        await tracker.post(Tick())  # arms the timer for it
        async with asyncio.timeout(60):
            failure = await tracker.failed
        assert isinstance(failure, InfrastructureError)
        assert tracker.ending.done()
        with pytest.raises(InfrastructureError):
            tracker.post(Tick())
        await tracker.stop()
        store.close()

    asyncio.run(body())
