"""The replies to the calls of a batch, in a file that outlives the worker.

Owns: the file's format and both of its ends. Does not own: what a reply is, or the batch.

    8 bytes, in the host's order: how many bytes of replies follow; 8 bytes of nothing; then those bytes, a BatchReply

Invariant: a reply counts only when it is whole, so that a worker that dies in a call leaves those of all calls before.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

NAME = "replies"
MAX_BYTES = 32 << 20
"""Replies of one batch; below the limit of a message with all else that is in it."""

_LENGTH = struct.Struct("=Q")
_HEAD_BYTES = 16


class Replies:
    """The worker's end: a new file in `folder`.

    Raises
    ------
    OSError
        It cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        fd = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.ftruncate(fd, _HEAD_BYTES + MAX_BYTES)
            self._map = mmap.mmap(fd, _HEAD_BYTES + MAX_BYTES)
        finally:
            os.close(fd)
        self._length = memoryview(self._map)[: _LENGTH.size].cast("Q")
        self._size_bytes = 0

    def clear(self) -> None:
        """Begin a new batch."""
        self._size_bytes = 0
        self._length[0] = 0

    def add(self, data: bytes) -> bool:
        """Add a reply, a part of a serialised BatchReply; return whether there was room."""
        start = _HEAD_BYTES + self._size_bytes
        size_bytes = self._size_bytes + len(data)
        if size_bytes > MAX_BYTES:
            return False
        self._map[start : start + len(data)] = data
        self._size_bytes = size_bytes
        self._length[0] = size_bytes
        return True


def read_replies(fd: int) -> bytes:
    """Return the replies in the file `fd`, at the agent's end; a worker may have written anything there."""
    head = os.pread(fd, _LENGTH.size, 0)
    if len(head) != _LENGTH.size:
        return b""
    return os.pread(fd, min(int(_LENGTH.unpack(head)[0]), MAX_BYTES), _HEAD_BYTES)
