"""The tracker is killed at every durable step.

Promised: no acknowledged job and no committed result is lost, whenever the tracker is killed; what runs is adopted, not
run again; a client that was not answered asks again and gets one job; a build can be made again with the same bytes.
Seen here, for each crash point of `farm_tracker.crash_points`: the process died there by SIGKILL; after a restart each
job that was acknowledged before or after passes with the right value, its kernel began once and ended once, and no
kernel found another one on its device.
"""

from __future__ import annotations

import itertools
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from farm_tracker.crash_points import POINTS

import farm
from farm import te
from farm.errors import FarmError
from fault.farms import LIMIT_S, until
from fault.witness import TARGET

NUMBERS = itertools.count(1)
FAMILY = "llvm/x86_64"
OF_BUILDS = {"blob.received", "blob.named", "unit.told", "merge.begun", "merge.stored"}
ONCE = {"start.loaded", "unit.told", "merge.begun", "merge.stored"}
"""Passed once in a story."""
NTH = [
    (point, count)
    for point in POINTS.names
    for count in ((2,) if point.startswith("blob.") else (2, 3, 5, 8))  # object, artifact
    if point not in ONCE
]


def function(number):
    """A function that no build before had."""
    x = te.placeholder((4,), "int32", name="x")
    return te.function("f", [x, te.compute((4,), lambda i: x[i] * number + 1, name="y")])


class Story:
    """A client that submits, and may build, while the tracker may die at any moment."""

    def __init__(self, running, count, *, builds):
        self.farm = running
        self.count = count
        self.number = next(NUMBERS) if builds else None

    def live(self):
        """Do all of it; return the artifact, None if it is not about builds."""
        client = self.farm.client()
        for _ in range(self.count):
            self.farm.submit(client, next(NUMBERS), prints=True)
        while self.number is not None:
            try:
                return client.build({TARGET: function(self.number)})
            except FarmError as error:  # again whenever the tracker took the request with it
                if not error.retryable:
                    raise
        return None


@pytest.fixture(scope="module")
def running(shared_farm):
    shared_farm.start_agent("a1", "cpu", builds=[FAMILY])
    shared_farm.start_tracker()
    shared_farm.until_good(shared_farm.client(), "a1-cpu")
    return shared_farm


def live_through(running, point, count=2):
    """Live through a story in which the tracker dies at a crash point; check what is there afterwards."""
    running.tracker.kill()
    doomed = running.start_tracker(crash=point)
    story = Story(running, count, builds=point.partition(":")[0] in OF_BUILDS)
    with ThreadPoolExecutor(1) as thread:
        telling = thread.submit(story.live)
        assert doomed.wait(LIMIT_S) == -signal.SIGKILL, running.story()
        running.start_tracker()
        artifact = telling.result(LIMIT_S)
    client = running.client()
    running.check(client)
    if artifact is not None:
        assert artifact.digest == farm.build({TARGET: function(story.number)}).digest
    until(lambda: running.device(client, "a1-cpu").use == "idle")
    assert running.agents["a1"].workers() == []


@pytest.mark.parametrize("point", POINTS.names)
def test_tracker_killed_at_a_crash_point_loses_nothing(running, point):
    # The first transactions of a tracker are about the agent that comes back.
    live_through(running, f"{point}:4" if point.startswith("commit.") else point)


@pytest.mark.campaign
@pytest.mark.parametrize(("point", "count"), NTH)
def test_tracker_killed_the_nth_time_at_a_crash_point_loses_nothing(running, point, count):
    live_through(running, f"{point}:{count}", count=10)
