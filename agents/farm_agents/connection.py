"""Whether the tracker answers on the control stream.

Owns: that fact, and waiting for it. Does not own: the stream (`farm_agents.agent`).

Invariant: `count` is odd while the stream is up and grows with each change, so that a change in between is seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Connection:
    """The state of the control stream."""

    def __init__(self, on_up: Callable[[], None]) -> None:
        self._on_up = on_up
        self._up = asyncio.Event()
        self.count = 0

    def is_up(self) -> None:
        """Note that the tracker has answered."""
        if not self._up.is_set():
            self.count += 1
            self._up.set()
            self._on_up()

    def is_down(self) -> None:
        """Note that the stream has ended."""
        if self._up.is_set():
            self.count += 1
            self._up.clear()

    async def wait(self) -> int:
        """Wait until the stream is up; return `count`."""
        await self._up.wait()
        return self.count
