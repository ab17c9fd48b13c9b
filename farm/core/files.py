"""Files: read only if their size is known, written whole or not at all, also after a crash."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from farm.errors import InvalidInput


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part; as `replacing`."""
    with replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path, *, private: bool = True) -> Iterator[BinaryIO]:
    """Give a file to write into, which takes the place of `path` when the context ends well.

    A link is followed. What is there and is no regular file, such as a pipe or ``/dev/null``, is written to as it is.

    Parameters
    ----------
    private
        Whether no other user may read it; else that follows from the umask.

    Raises
    ------
    OSError
        The disk is full or the folder cannot be written; nothing is left behind.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            yield stream
        return
    temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        handle = os.open(temporary, flags, 0o600 if private else 0o666)
    except OSError as error:
        error.filename = str(path)  # what the caller knows of
        raise
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_apart(out: Path, source: Path) -> None:
    """Raise InvalidInput if writing to `out` would take the place of `source`, which it is made from."""
    if out.exists() and source.exists() and out.samefile(source):
        raise InvalidInput(f"{out}: this is what would be read ({source}); name another file")


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
