"""The only place that reads clocks; everything else is given a `Clock`.

Owns: the clock's two readings. Does not own: waiting.

Invariant: deadlines are on the steady clock (`now`), never on the wall clock, which people set.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What time it is. Tests and simulations pass their own."""

    def now(self) -> float:
        """Return seconds on a steady clock that never goes back; only differences mean anything."""
        ...

    def wall(self) -> float:
        """Return seconds since the Unix epoch, for people and records, never for deadlines."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        """Return `time.monotonic()`: one clock for all processes of a host since its boot."""
        return time.monotonic()

    def wall(self) -> float:
        """Return seconds since the Unix epoch."""
        return time.time()  # noqa: TID251 - the one door to this clock
