"""Blobs as a worker sees them: read-only files of the agent's cache, and a folder for what it makes.

Owns: reading a blob by digest, mapping one, keeping an output as a file. Does not own: moving them to or from the
tracker.

Invariant: bytes that do not match their digest are never used, those aside that are only mapped: whoever concludes
something bad from them looks at their digests before. A file in the out folder is whole.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path

from farm.core.digest import Digest, digest_of
from farm.core.files import write_atomic
from farm.errors import InfrastructureError


def blob_path(folder: Path, digest: Digest) -> Path:
    """Return where the blob `digest` is below a cache or out folder."""
    return folder / digest.sha256[:2] / digest.sha256


def read_blob(cache: Path, digest: Digest) -> bytes:
    """Return the bytes of a blob of the cache.

    Raises
    ------
    InfrastructureError
        The file is absent or damaged; ``details['blob']`` names it, fetch it again.
    """
    try:
        data = blob_path(cache, digest).read_bytes()
    except OSError as error:
        raise _unreadable(digest, error) from error
    _check(data, digest)
    return data


@dataclass(slots=True)
class Blobs:
    """The blobs of a cache.

    Attributes
    ----------
    folder
        Of the cache.
    """

    folder: Path
    _mapped: dict[Digest, memoryview] = field(default_factory=dict)

    def read(self, digest: Digest) -> bytes:
        """Return the bytes of a blob; raises as `read_blob`."""
        return read_blob(self.folder, digest)

    def map(self, digest: Digest) -> memoryview:
        """Return the bytes of a blob where the kernel has them, which nobody can change; only their number is checked.

        Raises
        ------
        InfrastructureError
            The file is absent or has another size.
        """
        if digest not in self._mapped:
            self._mapped[digest] = _mapped(self.folder, digest)
        return self._mapped[digest]

    def check_mapped(self) -> None:
        """Raise InfrastructureError if what was mapped is something else than its digest says."""
        for digest, data in self._mapped.items():
            _check(data, digest)


def _mapped(folder: Path, digest: Digest) -> memoryview:
    try:
        fd = os.open(blob_path(folder, digest), os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size != digest.size_bytes:
                raise _damaged(digest, os.fstat(fd).st_size)
            if not digest.size_bytes:
                return memoryview(b"")
            flags = mmap.MAP_PRIVATE | mmap.MAP_POPULATE
            return memoryview(mmap.mmap(fd, digest.size_bytes, flags, mmap.PROT_READ))
        finally:
            os.close(fd)
    except OSError as error:
        raise _unreadable(digest, error) from error


def _check(data: bytes | memoryview, digest: Digest) -> None:
    if digest_of(data) != digest:
        raise _damaged(digest, len(data))


def _unreadable(digest: Digest, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"blob {digest}: unreadable in the agent's cache ({error.strerror}); try again",
        blob=digest.sha256,
    )


def _damaged(digest: Digest, size_bytes: int) -> InfrastructureError:
    return InfrastructureError(
        f"blob {digest}: damaged in the agent's cache ({size_bytes} bytes); try again",
        blob=digest.sha256,
    )


def keep_blob(out: Path, data: bytes | memoryview) -> Digest:
    """Write bytes to the out folder under their digest and return it."""
    digest = digest_of(data)
    path = blob_path(out, digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, bytes(data))
    return digest
