"""Fewer pages for each child to touch: what a zygote does with its memory before it forks.

Owns: where a library's code lies, and where the next allocations come from. Does not own: when it is done.

Invariant: code keeps its bytes and its place, memory in use keeps both too; a host that allows none of it is left as it
is, and only loses speed.

Notes
-----
A child begins with page tables that lack the code of libraries, and shares all other memory with its zygote. So it
pays some microseconds for every 64 KiB of code that it runs, and for every page that it writes: LLVM runs through
45 MiB of code, and spreads what it allocates over the holes of the zygote's heap, each in a page that is then copied.
Code in huge pages is in the child's tables from the start, and a heap without holes gives memory from its end, in huge
pages too, of which a child needs two or three.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
from collections.abc import Iterator
from pathlib import Path

HUGE_BYTES = 2 << 20
ROOM_BYTES = 16 << 20
"""At the end of the heap: more than most compilations need. Nothing of it is touched before a child does."""
MAX_PLUGS = 100_000
LARGEST_HOLE_BYTES = 64 << 10
SMALLEST_HOLE_BYTES = 24

_M_TOP_PAD = -2
_MADV_HUGEPAGE = 14
_PROT_READ_EXEC = mmap.PROT_READ | mmap.PROT_EXEC
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_MAPS = Path("/proc/self/maps")
_SMAPS = Path("/proc/self/smaps")


class _HeapFacts(ctypes.Structure):
    """What ``mallinfo2`` tells; `keepcost` is what is free at the heap's end."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def move_code(library: str) -> bool:
    """Put the code of a loaded library into huge pages, at its old addresses; tells whether that was done.

    Only the running thread may exist, and it must not be in the library. On x86-64 only: elsewhere code that was
    written must be made known to the processor.
    """
    if platform.machine() != "x86_64":
        return False
    libc = _libc()
    moved = False
    for start, end in list(_code_of(library)):
        start, end = -(-start // HUGE_BYTES) * HUGE_BYTES, end // HUGE_BYTES * HUGE_BYTES
        if start < end:
            moved |= _move(libc, start, end - start)
    return moved


def clear_heap() -> bool:
    """Fill the holes of the C library's heap and put its end into huge pages; tells whether that was done."""
    libc = _libc()
    if not hasattr(libc, "mallinfo2"):
        return False
    libc.mallinfo2.restype = _HeapFacts
    libc.mallopt(_M_TOP_PAD, ROOM_BYTES)
    size, plugs = LARGEST_HOLE_BYTES, 0
    while size >= SMALLEST_HOLE_BYTES and plugs < MAX_PLUGS:
        before = libc.mallinfo2().keepcost
        libc.malloc(size)  # for ever
        plugs += 1
        if libc.mallinfo2().keepcost != before:  # no hole was large enough
            size = size * 3 // 4 if size > 64 else size - 8
    while libc.mallinfo2().keepcost < ROOM_BYTES // 2:
        libc.malloc(LARGEST_HOLE_BYTES)
    end: int = libc.sbrk(0)
    start = -(-(end - libc.mallinfo2().keepcost) // HUGE_BYTES) * HUGE_BYTES
    end = end // HUGE_BYTES * HUGE_BYTES
    return start < end and bool(libc.madvise(start, end - start, _MADV_HUGEPAGE) == 0)


def _move(libc: ctypes.CDLL, start: int, size: int) -> bool:
    """Replace `size` bytes of code by a copy in huge pages; False if the kernel gives none."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    writable = mmap.PROT_READ | mmap.PROT_WRITE
    taken = libc.mmap(None, size + HUGE_BYTES, writable, flags, -1, 0)
    if taken == ctypes.c_void_p(-1).value:
        return False
    copy = -(-taken // HUGE_BYTES) * HUGE_BYTES
    try:
        if libc.madvise(copy, size, _MADV_HUGEPAGE) != 0:
            return False
        ctypes.memmove(copy, start, size)
        # In small pages each fork would have to copy the tables of all of them.
        if _huge_bytes(copy) < size or libc.mprotect(copy, size, _PROT_READ_EXEC) != 0:
            return False
        flags = _MREMAP_MAYMOVE | _MREMAP_FIXED
        return bool(libc.mremap(copy, size, size, flags, start) == start)
    finally:
        libc.munmap(taken, size + HUGE_BYTES)  # what was moved is not there any more


def _code_of(library: str) -> Iterator[tuple[int, int]]:
    for line in _MAPS.read_text().splitlines():
        found = re.match(r"([0-9a-f]+)-([0-9a-f]+) r-xp \S+ \S+ \S+ +(.*)", line)
        if found and Path(found[3]).name.startswith(library):
            yield int(found[1], 16), int(found[2], 16)


def _huge_bytes(address: int) -> int:
    """Return how much of the mapping around an address is in huge pages."""
    is_inside = False
    for line in _SMAPS.read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_inside = int(found[1], 16) <= address < int(found[2], 16)
        elif is_inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) << 10
    return 0


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = libc.mremap.restype = libc.malloc.restype = libc.sbrk.restype = address
    libc.mmap.argtypes = (address, size, number, number, number, ctypes.c_long)
    libc.mremap.argtypes = (address, size, size, number, address)
    libc.munmap.argtypes = (address, size)
    libc.madvise.argtypes = libc.mprotect.argtypes = (address, size, number)
    libc.malloc.argtypes = (size,)
    libc.sbrk.argtypes = (ctypes.c_ssize_t,)
    return libc
