"""Files: read only if their size is known, written whole or not at all, also after a crash."""

from __future__ import annotations

import io
import os
import stat
import tempfile
from pathlib import Path

from farm.errors import InvalidInput


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part.

    Raises
    ------
    OSError
        The disk is full or the folder cannot be written; nothing is left behind.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def private_folder(path: Path) -> None:
    """Make a folder of the farm's own, with those above it, that no other user can look into; also if it exists.

    What others made is left as it is.

    Raises
    ------
    OSError
        It cannot be made, or is no folder.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid == os.geteuid():
        path.chmod(0o700)


def private_file(path: Path) -> None:
    """Make an empty file that no other user can read, or take their rights to one that exists; raises OSError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    path.chmod(0o600)


def write_all(file: io.FileIO, data: bytes | memoryview) -> None:
    """Write all of `data` to a file that has no buffer; raises OSError if the disk is full."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def regular_size(path: Path) -> int:
    """Return the size in bytes of a regular file.

    Raises
    ------
    InvalidInput
        It is none: a folder cannot be read, a pipe may never answer, a device may never end.
    OSError
        It does not exist, or cannot be looked at.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InvalidInput(f"{path}: no regular file; name a file")
    return status.st_size


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file, never more than its size says; raises as `regular_size`."""
    size_bytes = regular_size(path)
    with path.open("rb") as file:
        return file.read(size_bytes)
