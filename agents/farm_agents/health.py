"""The health of one device: what its driver says, and whether its canary gives the right answer.

Owns: when the canary runs, what its answers mean, how soon a sick device is looked at again.
Does not own: the canary itself (`farm_agents.canary`), what health does to leases (`farm_agents.state`, the tracker).

Invariant: a device is GOOD only if its last canary was right; one that gave wrong numbers has to be right twice. A
canary runs only on a device that nobody uses, and stands aside at once for a lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from farm.core.clock import Clock
from farm_agents.backoff import Backoff
from farm_agents.cache import BlobCache
from farm_agents.canary import run_canary
from farm_agents.device import LocalDevice
from farm_agents.drivers import Checked
from farm_agents.drivers.base import GOOD, bad
from farm_agents.state.model import Health

RECHECK_SICK_S = 2.0
RECHECK_WELL_S = 30.0
CANARY_CEILING_S = 60.0
RIGHT_AGAIN = "canary: right again; used after a second time"


class DeviceHealth:
    """The checks of one device.

    Parameters
    ----------
    every_s
        How often the canary of a device that is well runs; 0: never, not even when it joins.
    is_idle
        Whether nobody has the device at this moment.
    """

    def __init__(
        self,
        device: LocalDevice,
        cache: BlobCache,
        folder: Path,
        clock: Clock,
        every_s: float,
        is_idle: Callable[[], bool],
    ) -> None:
        self.device = device
        self._cache = cache
        self._folder = folder
        self._clock = clock
        self._every_s = every_s
        self._is_idle = is_idle
        self._next_at = clock.now()
        self._last = GOOD
        self._is_usable = False
        self._retries = Backoff(RECHECK_SICK_S, CANARY_CEILING_S)
        self._running: asyncio.Task[str] | None = None
        self._checking = asyncio.Lock()

    def suspect(self) -> None:
        """Have the canary run at the next check: something crashed on the device."""
        self._next_at = self._clock.now()

    async def check(self) -> Checked | None:
        """Look at the device, and run its canary if that is due; None: it stood aside for a lease."""
        async with self._checking:
            found = await self.device.check()
            self._is_usable = not found.cause
            if found.cause:
                self.suspect()
                return found
            if not self._every_s or self._clock.now() < self._next_at:
                return self._last
            if not self._is_idle():  # it was given to somebody while its driver looked
                return None
            cause = await self._canary()
            if cause is None:
                return None
            self._last = self._judged(cause)
            return self._last

    async def stand_aside(self) -> None:
        """End a canary that runs: the device was given to somebody. Its processes are gone when this returns."""
        running = self._running
        if running is not None:
            running.cancel()
            await asyncio.wait({running})

    def recheck_s(self) -> float:
        """Return after how many seconds to look again."""
        is_due = self._every_s > 0 and self._clock.now() >= self._next_at  # it stood aside
        if not self._is_usable or is_due:
            return RECHECK_SICK_S
        if self._last.health is Health.GOOD:
            return RECHECK_WELL_S
        return max(0.0, min(self._next_at - self._clock.now(), CANARY_CEILING_S))

    def _judged(self, cause: str) -> Checked:
        if cause:
            self._next_at = self._clock.now() + self._retries.next_s()
            return bad(cause)
        if self._last.health is Health.BAD:
            self._next_at = self._clock.now() + RECHECK_SICK_S
            return Checked(Health.RECOVERING, RIGHT_AGAIN)
        self._retries.reset()
        self._next_at = self._clock.now() + self._every_s
        return GOOD

    async def _canary(self) -> str | None:
        """Run the canary; None if it stood aside."""
        work = run_canary(self.device, self._cache, self._folder)
        running = self._running = asyncio.ensure_future(work)
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:  # the agent ends
            running.cancel()
            await asyncio.wait({running})
            raise
        finally:
            self._running = None
        return None if running.cancelled() else running.result()
