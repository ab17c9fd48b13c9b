"""Housekeeping: old records go, so that a tracker can run for months.

Owns: when, and how much at once. Does not own: what is old (`store.prune`), jobs (the core forgets them).

Invariant: a small transaction at a time, in turn with the writes of steps; what is open is never touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

EVERY_S = 600.0
PAUSE_S = 0.02
"""Between two transactions, so that others get their turn."""
DEFAULT_RECORDS_S = 30 * 86_400.0
DEFAULT_JOBS_S = 86_400.0
DEFAULT_DEVICES_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept after their end, in seconds.

    Attributes
    ----------
    records_s
        Builds and their attempts, events, entries of the build cache (after their last use).
    jobs_s
        Jobs with their attempts, logs and results.
    devices_s
        Devices that are offline, with their agents; not those that people have taken out of service.
    """

    records_s: float = DEFAULT_RECORDS_S
    jobs_s: float = DEFAULT_JOBS_S
    devices_s: float = DEFAULT_DEVICES_S


class Housekeeper:
    """Deletes old records now and then; `prune` deletes some, and returns how many rows it did."""

    def __init__(self, prune: Callable[[], asyncio.Future[int]], every_s: float = EVERY_S) -> None:
        self._prune = prune
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, with the first round at once."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End; a transaction under way is waited for."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def once(self) -> int:
        """Delete everything that is old; return how many rows."""
        deleted = 0
        while rows := await self._prune():
            deleted += rows
            await asyncio.sleep(PAUSE_S)
        return deleted

    async def _run(self) -> None:
        while True:
            try:
                deleted = await self.once()
                if deleted:
                    log.info("deleted old records rows=%d", deleted)
            except (
                SQLAlchemyError,
                OSError,
            ) as error:  # such as a full disk; steps tell of a broken one
                log.warning("old records were not deleted (%s); tried again later", error)
            await asyncio.sleep(self._every_s)
