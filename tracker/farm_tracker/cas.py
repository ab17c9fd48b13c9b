"""The content-addressed store: a directory of blobs named by SHA-256.

Owns: writing, reading, checking and removing blobs. Does not own: which blobs are still wanted, or the wire.

Invariant: a blob under its name is whole and durable; bytes that do not match their name are removed and never
returned as a blob.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from farm.core.digest import Digest, digest_of
from farm.core.files import write_all
from farm.core.limits import CHUNK_BYTES
from farm.errors import BlobCorrupt, InvalidInput, NotFound, StoreFull
from farm.rpc.chunks import BlobCheck, Content, chunks_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

MAX_BLOB_BYTES = 1 << 30


class BlobWriter:
    """Takes one blob in chunks; use as a context, and `commit` at the end. Blocking: call in a thread."""

    def __init__(self, store: BlobStore, digest: Digest) -> None:
        self._store = store
        self._digest = digest
        self._check = BlobCheck(digest)
        try:
            handle, name = tempfile.mkstemp(dir=store.incoming)
        except OSError as error:
            raise _full(digest, error) from error
        self._path = Path(name)
        self._file = io.FileIO(handle, "wb")

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
        try:
            os.fsync(self._file.fileno())
            self._file.close()
            final.parent.mkdir(parents=True, exist_ok=True)
            self._path.replace(final)
            _sync_folders(final.parent, self._store.blobs)
        except OSError as error:
            raise _full(self._digest, error) from error

    def close(self) -> None:
        """Leave nothing behind; after `commit` this changes nothing."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class BlobStore:
    """A directory of blobs, in two levels of folders by the first digits of their names."""

    def __init__(
        self, root: Path, max_blob_bytes: int = MAX_BLOB_BYTES, keep_free_bytes: int = 0
    ) -> None:
        self.blobs = root / "blobs"
        self.incoming = root / "incoming"
        self.max_blob_bytes = max_blob_bytes
        self.keep_free_bytes = keep_free_bytes  # for what the tracker itself has to write
        for folder in (self.blobs, self.incoming):
            folder.mkdir(parents=True, exist_ok=True)
        for left in self.incoming.iterdir():  # of a tracker that was killed while writing
            left.unlink()

    def path(self, digest: Digest) -> Path:
        """Return where a blob is or would be."""
        name = digest.sha256
        return self.blobs / name[:2] / name[2:4] / name

    def has(self, digest: Digest) -> bool:
        """Tell whether the blob is here, by name and size."""
        try:
            return self.path(digest).stat().st_size == digest.size_bytes
        except FileNotFoundError:
            return False

    def missing(self, digests: Iterable[Digest]) -> list[Digest]:
        """Return those that are absent, in the order given, without repeats. Blocking."""
        return [digest for digest in dict.fromkeys(digests) if not self.has(digest)]

    def check_size(self, digest: Digest) -> None:
        """Raise StoreFull if a blob of this size is over the limit, or there is no room for it."""
        if digest.size_bytes > self.max_blob_bytes:
            raise StoreFull(
                f"blob {digest}: over the limit ({self.max_blob_bytes} bytes); split it"
            )
        if self.keep_free_bytes:
            found = os.statvfs(self.incoming)
            if found.f_bavail * found.f_frsize < self.keep_free_bytes + digest.size_bytes:
                raise StoreFull(f"blob {digest}: the store's disk is full; free space and retry")

    def put(self, data: bytes) -> Digest:
        """Store some bytes and return their digest. Blocking; raises StoreFull."""
        digest = digest_of(data)
        self.check_size(digest)
        if not self.has(digest):
            with BlobWriter(self, digest) as writer:
                for chunk in chunks_of(data):
                    writer.feed(chunk)
                writer.commit()
        return digest

    def get(self, digest: Digest) -> bytes:
        """Return a whole blob, checked. Blocking.

        Raises
        ------
        NotFound
            It is absent.
        BlobCorrupt
            Its bytes do not match its name; it has been removed.
        """
        try:
            data = self.path(digest).read_bytes()
        except FileNotFoundError:
            raise _absent(digest) from None
        self._check(digest, digest_of(data))
        return data

    async def read(self, digest: Digest) -> AsyncIterator[bytes]:
        """Yield a blob in chunks of at most 1 MiB; the last comes only after all were checked.

        Raises
        ------
        NotFound, BlobCorrupt
            As `get`; a corrupt blob is noticed before its last chunk is given.
        """
        try:
            file = self.path(digest).open("rb")
        except FileNotFoundError:
            raise _absent(digest) from None
        loop = asyncio.get_running_loop()
        sha256, size_bytes = hashlib.sha256(), 0
        held: bytes | None = None
        with file:
            reading = loop.run_in_executor(None, _read_chunk, file, sha256)
            try:
                while chunk := await reading:
                    size_bytes += len(chunk)
                    reading = loop.run_in_executor(None, _read_chunk, file, sha256)
                    if held is not None:
                        yield held
                    held = chunk
            finally:
                await asyncio.wait([reading])
            self._check(digest, Digest(sha256.hexdigest(), size_bytes))
            if held is not None:
                yield held

    def _check(self, digest: Digest, has: Digest) -> None:
        if has != digest:
            self.path(digest).unlink(missing_ok=True)
            raise BlobCorrupt(
                f"blob {digest}: corrupt in the store (it is {has}), removed; send it again"
            )


def _read_chunk(file: IO[bytes], sha256: hashlib._Hash) -> bytes:
    chunk = file.read(CHUNK_BYTES)
    sha256.update(chunk)
    return chunk


def _absent(digest: Digest) -> NotFound:
    return NotFound(f"blob {digest}: not in the store; send it first")


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


def checked_digest(store: BlobStore, digest: Digest) -> Digest:
    """Return the digest of a blob that is about to be written, if its size is allowed.

    Raises
    ------
    StoreFull
        It is over the limit.
    InvalidInput
        It claims to be empty but is not the empty blob.
    """
    store.check_size(digest)
    if digest.size_bytes == 0 and digest != digest_of(b""):
        raise InvalidInput(f"blob {digest}: no empty blob has this SHA-256; pass the right digest")
    return digest
