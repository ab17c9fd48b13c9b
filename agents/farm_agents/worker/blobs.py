"""Blobs as a worker sees them: read-only files of the agent's cache, and a folder for what it makes.

Owns: reading a blob by digest, keeping an output as a file. Does not own: moving them to or from the tracker.

Invariant: bytes that do not match their digest are never used; a file in the out folder is whole.
"""

from __future__ import annotations

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
        raise InfrastructureError(
            f"blob {digest}: unreadable in the agent's cache ({error.strerror}); try again",
            blob=digest.sha256,
        ) from error
    if digest_of(data) != digest:
        raise InfrastructureError(
            f"blob {digest}: damaged in the agent's cache ({len(data)} bytes); try again",
            blob=digest.sha256,
        )
    return data


def keep_blob(out: Path, data: bytes | memoryview) -> Digest:
    """Write bytes to the out folder under their digest and return it."""
    digest = digest_of(data)
    path = blob_path(out, digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, bytes(data))
    return digest
