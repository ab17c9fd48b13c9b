"""The virtual clock: what happens when, from one seed.

Owns: time, the order of events, randomness, the trace. Does not own: what the events do.

Invariant: the same plan gives the same history, event by event; nothing here or above reads a real clock, and no
set or hash decides an order.
"""

from __future__ import annotations

import heapq
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Check = Callable[[], None]


class Violation(AssertionError):
    """An invariant of the farm does not hold. `name` is stable, so that shrinking keeps the same defect."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class Timer:
    """Something that will happen; `cancel` takes it back."""

    __slots__ = ("args", "call", "cancelled")

    def __init__(self, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.call = call
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        """Take it back; one that happened already stays so."""
        self.cancelled = True


class World:
    """Time, chance and the trace of one simulated farm."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.now = 0.0
        self.random = random.Random(f"{seed} world")
        self.trace: list[str] | None = [] if trace else None
        self.events = 0
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0

    def later(self, delay_s: float, call: Callable[..., None], *args: object) -> Timer:
        """Let `call` happen after `delay_s` seconds of true time."""
        timer = Timer(call, args)
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._count, timer))
        return timer

    def run(self, until: float) -> None:
        """Let everything happen up to `until`."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            at, _, timer = heapq.heappop(heap)
            if timer.cancelled:
                continue
            self.now = at
            self.events += 1
            timer.call(*timer.args)
        self.now = max(self.now, until)

    def tell(self, who: str, text: str, *values: object) -> None:
        """Write a line of the trace, if there is one."""
        if self.trace is not None:
            shown = text % values if values else text
            self.trace.append(f"{self.now:9.4f}  {who:<14} {shown}")

    def between(self, low: float, high: float) -> float:
        """Return a random number of that range."""
        return low + (high - low) * self.random.random()

    def chance(self, probability: float) -> bool:
        """Return whether something happens that happens so often."""
        return self.random.random() < probability
