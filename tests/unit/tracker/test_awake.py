"""The clock that stands still with its event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest
from farm_tracker.awake import BEAT_S, STALL_S, AwakeClock


class Hands:
    """A clock whose hands tests move."""

    def __init__(self):
        self.at = 100.0

    def now(self):
        return self.at

    def wall(self):
        return 1e9 + self.at


def test_clock_goes_on_with_its_loop_and_stands_with_it():
    async def body():
        hands = Hands()
        clock = AwakeClock(hands)
        clock.begin()
        for _ in range(10):
            hands.at += STALL_S
            clock.now()
        assert clock.now() == pytest.approx(100 + 10 * STALL_S)
        before = clock.now()
        hands.at += 60.0  # such as SIGSTOP, or a machine that slept
        assert clock.now() == before
        hands.at += 0.25
        assert clock.now() == pytest.approx(before + 0.25)
        assert clock.wall() == hands.wall()
        clock.end()

    asyncio.run(body())


def test_idle_loop_is_told_from_one_that_stands():
    async def body():
        hands = Hands()
        clock = AwakeClock(hands)
        clock.begin()
        for _ in range(3):  # nobody asks for the time, but the loop runs
            hands.at += STALL_S
            await asyncio.sleep(2 * BEAT_S)
        assert clock.now() == pytest.approx(100 + 3 * STALL_S)
        clock.end()

    asyncio.run(body())


def test_another_thread_hides_no_stall_from_the_loop():
    async def body():
        hands = Hands()
        clock = AwakeClock(hands)
        clock.begin()
        before = clock.now()
        hands.at += 60.0
        other = threading.Thread(target=clock.now)
        other.start()
        other.join()
        assert clock.now() == before
        clock.end()

    asyncio.run(body())
