"""Which blobs there are, how large, and which was used last: in memory, as the folder has them.

Owns: the accounting and the order of use. Does not own: files (`cas`), which blobs are wanted (`pins`).

Invariant: it is made from the folder at start and changes with it, so that a crash leaves nothing to repair; the order
of use survives a restart in the files' times, exact to `MARK_EVERY_S`.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from farm.core.clock import Clock

MARK_EVERY_S = 60.0


@dataclass(slots=True)
class Known:
    """One blob: its size, when it was used last, and when that was last written to its file, on the store's clock."""

    size_bytes: int
    used_at: float
    marked_at: float


class BlobIndex:
    """The blobs by name, the one that was not used for longest first."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._clock = clock
        self._known: OrderedDict[str, Known] = OrderedDict()
        self.used_bytes = 0
        now, wall = clock.now(), clock.wall()
        for used_wall, name, size_bytes in sorted(_files(folder)):
            # A clock that was set back makes nothing younger than it is now.
            used_at = now - max(0.0, wall - used_wall)
            self._known[name] = Known(size_bytes, used_at, used_at)
            self.used_bytes += size_bytes

    def __len__(self) -> int:
        return len(self._known)

    def sizes(self) -> dict[str, int]:
        """Return the size of each blob by its name."""
        return {name: it.size_bytes for name, it in list(self._known.items())}

    def use(self, name: str, size_bytes: int, path: Path) -> None:
        """Note that a blob that is there was used now."""
        now = self._clock.now()
        known = self._known.get(name)
        if known is None or known.size_bytes != size_bytes:
            self.drop(name)
            known = self._known[name] = Known(size_bytes, now, now - MARK_EVERY_S)
            self.used_bytes += size_bytes
        known.used_at = now
        self._known.move_to_end(name)
        if now - known.marked_at >= MARK_EVERY_S:
            known.marked_at = now
            wall = self._clock.wall()
            os.utime(path, (wall, wall))

    def drop(self, name: str) -> None:
        """Note that a blob is gone."""
        known = self._known.pop(name, None)
        if known is not None:
            self.used_bytes -= known.size_bytes

    def unused_since(self, at: float) -> Iterator[tuple[str, int]]:
        """Yield name and size of the blobs that nobody used since `at`, the longest unused first.

        Nothing may be used or dropped meanwhile.
        """
        for name, known in self._known.items():
            if known.used_at > at:
                return
            yield name, known.size_bytes

    def size_if_unused(self, name: str, at: float) -> int | None:
        """Return the size of a blob that is there and that nobody used since `at`; None of any other."""
        known = self._known.get(name)
        return None if known is None or known.used_at > at else known.size_bytes


def _files(folder: Path) -> Iterator[tuple[float, str, int]]:
    for outer in os.scandir(folder):
        for inner in os.scandir(outer):
            for file in os.scandir(inner):
                facts = file.stat()
                yield facts.st_mtime, file.name, facts.st_size
