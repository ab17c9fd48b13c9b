"""Room on the disk that is kept for what was promised.

Owns: one file that only occupies space, and when new promises must stop. Does not own: what is written into the space
that it gives up.

Invariant: while the file exists, a full disk has still as much room as it is large for results to commit.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from farm.errors import StoreFull

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)


class Reserve:
    """One such file. While it cannot be had, nothing new is promised."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes

    def take(self) -> bool:
        """Occupy the space, if twice as much is there; return whether it is occupied."""
        if self._is_held():
            return True
        if self._free_bytes() < 2 * self._size_bytes:
            return False
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(handle, 0, self._size_bytes)
        except OSError:
            self._path.unlink(missing_ok=True)
            return False
        finally:
            os.close(handle)
        log.info("reserve taken path=%s size_bytes=%d", self._path, self._size_bytes)
        return True

    def take_at_start(self) -> None:
        """Take it, and say at once what follows if it cannot be had."""
        if not self.take():
            log.warning(
                "disk nearly full: new jobs are refused until %d bytes are free in %s (%d are)",
                2 * self._size_bytes,
                self._path.parent,
                self._free_bytes(),
            )

    def give_up(self) -> bool:
        """Free the space; return False if that was done before and did not help."""
        if not self._is_held():
            return False
        self._path.unlink()
        log.warning("disk full: reserve given up, new work is refused path=%s", self._path)
        return True

    def check(self) -> None:
        """Raise StoreFull unless the reserve is held and the disk has some room beside it."""
        held = self.take()
        needed = self._size_bytes // 4 if held else 2 * self._size_bytes
        if not held or self._free_bytes() < needed:
            raise StoreFull(
                f"tracker: its disk is full ({self._free_bytes()} bytes free in {self._path.parent}, {needed} are "
                "needed); results are still taken, new work is not; free space and submit again"
            )

    def _is_held(self) -> bool:
        try:
            return self._path.stat().st_size >= self._size_bytes
        except FileNotFoundError:
            return False

    def _free_bytes(self) -> int:
        found = os.statvfs(self._path.parent)
        return found.f_bavail * found.f_frsize
