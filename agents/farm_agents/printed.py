"""What a run printed, cut into chunks that are kept and then stored.

Owns: reading the worker's log as it grows, numbering by order, the limits of a chunk and of a run.
Does not own: how the worker's output gets into the file, or the store.

Invariant: the chunks together are the first bytes of the log without a gap, at most `MAX_LOG_BYTES`; a chunk is on the
disk before it is named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from farm.core.digest import Digest
from farm.core.ids import AttemptId
from farm_agents.outbox import Outbox

CHUNK_BYTES = 64 << 10
MAX_LOG_BYTES = 4 << 20
FIRST_WAIT_S = 0.2
"""How soon what was printed is shown; the waits grow, so that a long run has few chunks."""
MAX_WAIT_S = 5.0
GROWTH = 1.3


@dataclass(slots=True)
class Printed:
    """The log of one run attempt. Its methods block: call them in a thread.

    Attributes
    ----------
    chunks
        What was kept so far.
    is_cut
        Whether more was printed than is kept.
    """

    attempt_id: AttemptId
    path: Path
    outbox: Outbox
    chunks: list[Digest] = field(default_factory=list)
    is_cut: bool = False
    _size_bytes: int = 0

    def take(self) -> bool:
        """Keep the next chunk, if anything was printed since the last; return whether there was.

        Raises
        ------
        InfrastructureError
            The disk or the outbox is full.
        """
        left_bytes = MAX_LOG_BYTES - self._size_bytes
        data = self._read(min(CHUNK_BYTES, left_bytes) + 1)
        kept = data[: min(CHUNK_BYTES, left_bytes)]
        if left_bytes < CHUNK_BYTES and len(data) > left_bytes:
            self.is_cut = True
        if not kept:
            return False
        self.chunks.append(self.outbox.keep(self.attempt_id, kept))
        self._size_bytes += len(kept)
        return True

    def take_all(self) -> None:
        """Keep everything that is left; raises as `take`."""
        while self.take():
            pass

    def _read(self, size_bytes: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self._size_bytes)
                return file.read(size_bytes)
        except FileNotFoundError:  # nothing was printed
            return b""
