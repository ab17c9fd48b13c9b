"""What a confined child prints, cut where it becomes too much.

Owns: the pipe's reading end and the log file. Does not own: the pipe's writing end (the child), or showing the log.

Invariant: the log is at most `limit_bytes` and one line of mark long; once it is full the pipe has no reader, so that
a flood costs the flooder an error for each write and the agent nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

CHUNK_BYTES = 64 << 10


class OutputLog:
    """Reads what comes through `fd`, which becomes its own, once a log file is `attach`ed."""

    def __init__(self, fd: int, limit_bytes: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._left_bytes = limit_bytes
        self._limit_bytes = limit_bytes
        self._path: Path | None = None

    def attach(self, path: Path) -> None:
        """Append everything that was and will be printed to this file."""
        self._path = path
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def close(self) -> None:
        """Read what is there, then stop."""
        while self._fd >= 0 and self._path is not None and self._read():
            pass
        self._end()

    def _read(self) -> bool:
        """Take what is there; return whether there may be more."""
        try:
            data = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._append(data[: self._left_bytes])
            self._left_bytes -= min(len(data), self._left_bytes)
        if not data or not self._left_bytes:
            if data:
                self._append(f"\n[output cut after {self._limit_bytes} bytes]\n".encode())
            self._end()
            return False
        return True

    def _append(self, data: bytes) -> None:
        # A log that cannot be written (a full disk, a folder removed meanwhile) is no reason to fail the work.
        if self._path is not None:
            with contextlib.suppress(OSError), self._path.open("ab", buffering=0) as file:
                file.write(data)

    def _end(self) -> None:
        if self._fd < 0:
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended
            asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
