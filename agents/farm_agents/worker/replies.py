"""The replies to the calls of one request, in a file that outlives the worker.

Owns: the file's format and both of its ends. Does not own: what a reply is, or the request.

    8 bytes, in the host's order: how many bytes of a BatchReply follow
    8 bytes: after how many packed calls outputs follow instead
    those bytes

Invariant: a reply counts only when it is whole, so that a worker that dies in a call leaves those of all calls before;
the agent forgets those of one request before it sends the next, which a worker may die without having begun.
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

    Attributes
    ----------
    outputs, made
        Room for the outputs of packed calls, and the number of those that were made.

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
        whole = memoryview(self._map)
        self._length = whole[: _LENGTH.size].cast("Q")
        self.made = whole[_LENGTH.size : _HEAD_BYTES].cast("Q")
        self.outputs = whole[_HEAD_BYTES:]
        self._size_bytes = 0

    def clear(self) -> None:
        """Begin a new request."""
        self._size_bytes = 0
        self._length[0] = 0
        self.made[0] = 0

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


def forget_replies(fd: int) -> None:
    """Have the file `fd` say that nothing was answered yet, at the agent's end; it must be open for writing too."""
    os.pwrite(fd, bytes(_HEAD_BYTES), 0)


def read_replies(fd: int) -> bytes:
    """Return the replies in the file `fd`, at the agent's end; a worker may have written anything there."""
    length = _number(fd, 0)
    return os.pread(fd, min(length, MAX_BYTES), _HEAD_BYTES) if length else b""


def read_made(fd: int) -> int:
    """Return how many packed calls were made, as the worker says."""
    return _number(fd, _LENGTH.size)


def read_outputs(fd: int, size_bytes: int) -> bytes:
    """Return the outputs of packed calls; shorter if a worker has cut the file."""
    return os.pread(fd, size_bytes, _HEAD_BYTES)


def _number(fd: int, at: int) -> int:
    head = os.pread(fd, _LENGTH.size, at)
    return int(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else 0
