"""Writing one blob of the store: chunk by chunk, checked, durable, then under its name.

Owns: the file that is being written, and the room that was claimed for it. Does not own: the store (`cas`).

Invariant: a blob gets its name only if all its bytes are what the name says and are on the disk; whatever else happens
leaves nothing.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from farm.core.files import write_all
from farm.errors import StoreFull
from farm.rpc.chunks import BlobCheck
from farm_tracker.crash_points import POINTS

if TYPE_CHECKING:
    from farm.core.digest import Digest
    from farm.rpc.chunks import Content
    from farm_tracker.cas import BlobStore


class BlobWriter:
    """Takes one blob in chunks; use as a context, and `commit` at the end. Blocking: call in a thread.

    No two of its methods may run at once: who is cancelled while one runs has to wait for it before `close`.
    """

    def __init__(self, store: BlobStore, digest: Digest) -> None:
        self._store = store
        self._digest = digest
        self._check = BlobCheck(digest)
        self._undo = contextlib.ExitStack()

    def open(self) -> None:
        """Claim room and begin the file; entering the context does it.

        Raises
        ------
        StoreFull
            There is no room, or the disk is full.
        """
        self._store.claim(self._digest)
        self._undo.callback(self._store.unclaim, self._digest)
        try:
            handle, name = tempfile.mkstemp(dir=self._store.incoming)
        except OSError as error:
            self.close()
            raise _full(self._digest, error) from error
        self._path = Path(name)
        self._undo.callback(self._path.unlink, missing_ok=True)
        self._file = self._undo.enter_context(io.FileIO(handle, "wb"))

    def feed(self, data: Content) -> None:
        """Take the next bytes.

        Raises
        ------
        BlobCorrupt
            They are more than 1 MiB, or more than the digest says.
        StoreFull
            The disk is full.
        """
        self._check.add(data)
        try:
            write_all(self._file, data)
        except OSError as error:
            raise _full(self._digest, error) from error

    def commit(self) -> None:
        """Check the bytes, make them durable, and give them their name.

        Raises
        ------
        BlobCorrupt
            The bytes do not match the digest.
        StoreFull
            The disk is full.
        """
        self._check.finish()
        final = self._store.path(self._digest)
        POINTS.passed("blob.received")
        try:
            os.fsync(self._file.fileno())
            self._file.close()
            final.parent.mkdir(parents=True, exist_ok=True)
            self._store.take(self._digest, self._path)
            self._undo.pop_all()  # nothing is left to undo
            POINTS.passed("blob.named")
            _sync_folders(final.parent, self._store.blobs)
        except OSError as error:
            raise _full(self._digest, error) from error

    def close(self) -> None:
        """Leave nothing behind; after `commit`, or without `open`, this changes nothing."""
        self._undo.close()

    def __enter__(self) -> BlobWriter:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _full(digest: Digest, error: OSError) -> StoreFull:
    return StoreFull(
        f"blob {digest}: the store cannot write ({error.strerror}); free space and retry"
    )


def _sync_folders(folder: Path, root: Path) -> None:
    """Make the names durable, from the blob's folder up to the root."""
    for it in (folder, folder.parent, root):
        handle = os.open(it, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
