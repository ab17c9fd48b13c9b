"""How much one confined child may use.

Owns: `Limits` and its defaults. Does not own: enforcing them (`cgroups`, `bubblewrap`, `confine`, `output`).

Invariant: every limit is above zero.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from farm.errors import InvalidInput

MAX_MEMORY_BYTES = 4 << 30


def _default_memory_bytes() -> int:
    """Return half of this host's memory, at most 4 GiB."""
    return min(MAX_MEMORY_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on one child with everything that it starts; time limits come with each request.

    Attributes
    ----------
    memory_bytes
        Memory in use, the files of its scratch folder included.
    processes
        Processes and threads at once.
    scratch_bytes
        Files in its scratch folder.
    open_files
        Descriptors of one process.
    output_bytes
        What it prints; the rest is cut, with a mark.
    """

    memory_bytes: int
    processes: int = 128
    scratch_bytes: int = 2 << 30
    open_files: int = 512
    output_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        values = (self.memory_bytes, self.processes, self.scratch_bytes, self.open_files)
        if min(*values, self.output_bytes) < 1:
            raise InvalidInput(f"sandbox limits: impossible ({self}); use numbers above 0")

    @staticmethod
    def default() -> Limits:
        """Return the limits for this host."""
        return Limits(_default_memory_bytes())
