"""The memory of a zygote, in few large pages.

Owns: joining them. Does not own: what is in them.

Invariant: no byte changes, and a process that is forked has small pages again where it writes.

Notes
-----
A fork and the end of a process touch the kernel's record of each page, thousands of them; of those that were joined it
has one. Linux 6.1 and later join on demand; where it does not, all works as before.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

HUGE_BYTES = 2 << 20
"""A large page of x86-64, and of aarch64 with small ones of 4 KiB; elsewhere nothing is joined."""
_MADV_COLLAPSE = 25
_MAPS = Path("/proc/self/maps")


def join_pages() -> int:
    """Join the pages that only this process has written, those of files aside; return how many large ones there are."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    # Read first: what is made meanwhile is left out.
    return sum(madvise(start, HUGE_BYTES, _MADV_COLLAPSE) == 0 for start in list(_large()))


def _large() -> Iterator[int]:
    """Yield where a large page may be."""
    for line in _MAPS.read_text().splitlines():
        place, rights, _, _, _, *name = line.split(None, 5)
        if rights == "rw-p" and name in ([], ["[heap]"]):
            start, end = (int(at, 16) for at in place.split("-"))
            yield from range(-(-start // HUGE_BYTES) * HUGE_BYTES, end - HUGE_BYTES + 1, HUGE_BYTES)
