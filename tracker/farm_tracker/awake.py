"""The tracker's clock: it stands still while the tracker does.

Owns: noticing that the event loop did not run. Does not own: deadlines.

Invariant: in the event loop's thread it goes on by at most `STALL_S` at once. A tracker that was stopped, or whose
machine slept, could read no heartbeat meanwhile; by any other clock the first thing that it did afterwards would be to
take every agent for dead, and with it all that runs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farm.core.clock import Clock

BEAT_S = 0.1
"""How often the clock is looked at, so that an idle tracker is told from one that stands still."""
STALL_S = 0.5

log = logging.getLogger(__name__)


class AwakeClock:
    """A clock less the time for which the event loop did not run; `begin` and `end` in its thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._thread = 0
        self._seen = 0.0
        self._lost_s = 0.0
        self._beat: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Watch the running event loop from now on."""
        self._thread = threading.get_ident()
        self._seen = self._clock.now()
        self._again()

    def end(self) -> None:
        """Watch it no more."""
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    def now(self) -> float:
        """Return seconds; see `farm.core.clock.Clock`."""
        at = self._clock.now()
        if self._beat is not None and threading.get_ident() == self._thread:
            stood_s = at - self._seen
            if stood_s > STALL_S:
                self._lost_s += stood_s
                log.warning("the tracker stood still for %.1f s; no agent is blamed", stood_s)
            self._seen = at
        return at - self._lost_s

    def wall(self) -> float:
        """Return seconds since the Unix epoch."""
        return self._clock.wall()

    def _again(self) -> None:
        self._beat = asyncio.get_running_loop().call_later(BEAT_S, self._again)
        self.now()
