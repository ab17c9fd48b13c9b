"""The agent's cache of the tracker's blobs, and the way back for what its workers make.

Owns: files below one folder, fetched once, trimmed by age of use. Does not own: the store (the tracker).

Invariant: a file is whole, and was checked against its digest when it was fetched; workers check again on read.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from farm.core.digest import Digest
from farm.core.files import replacing
from farm.errors import InfrastructureError
from farm.rpc.blobs import BlobStub, download, find_missing_aio, upload
from farm.rpc.chunks import chunks_of
from farm_agents.worker.blobs import blob_path

MAX_CACHE_BYTES = 4 << 30
TRIM_TO = 0.75


class BlobCache:
    """Blobs in the folder `root`, from the store behind `stub`."""

    def __init__(
        self,
        root: Path,
        stub: BlobStub,
        limit_bytes: int = MAX_CACHE_BYTES,
    ) -> None:
        self.root = root
        self._stub = stub
        self._limit_bytes = limit_bytes
        self._fetching: dict[Digest, asyncio.Task[None]] = {}
        self._size_bytes = sum(size for _, size, _ in _files(root))

    async def fetch(self, digest: Digest) -> Path:
        """Return the path of a blob, fetching it if it is not here; equal fetches are joined.

        Raises
        ------
        FarmError
            What the store answered, or `TrackerUnreachable`; an OS error here is an InfrastructureError.
        """
        path = blob_path(self.root, digest)
        if _is_used(path, digest):
            return path
        task = self._fetching.get(digest)
        if task is None:
            task = asyncio.create_task(self._fetch(digest, path))
            self._fetching[digest] = task
            task.add_done_callback(lambda done: self._fetched(digest, done))
        await asyncio.shield(task)
        return path

    async def fetch_all(self, digests: Iterable[Digest]) -> None:
        """Fetch several blobs at once."""
        await asyncio.gather(*(self.fetch(digest) for digest in set(digests)))

    async def keep(self, path: Path, digest: Digest) -> None:
        """Take what a worker left at `path` as a blob of this cache alone; the store does not get it.

        Raises
        ------
        InfrastructureError
            The file is not what the worker said, or the cache cannot be written.
        """
        try:
            await asyncio.to_thread(self._keep, path, digest)
            await self._count(digest)
        except OSError as error:
            raise InfrastructureError(
                f"blob {digest}: cannot be kept ({error.strerror}); free space in {self.root}"
            ) from error

    def has(self, digest: Digest) -> bool:
        """Tell whether a blob is here; it is then trimmed last."""
        return _is_used(blob_path(self.root, digest), digest)

    def _keep(self, path: Path, digest: Digest) -> None:
        kept = blob_path(self.root, digest)
        kept.parent.mkdir(parents=True, exist_ok=True)
        hashed = hashlib.sha256()
        with replacing(kept) as file:
            for chunk in chunks_of(path):
                hashed.update(chunk)
                file.write(chunk)
            if Digest(hashed.hexdigest(), file.tell()) != digest:
                raise InfrastructureError(
                    f"blob {digest}: the worker's file is something else; try again"
                )

    def forget(self, digest: Digest) -> None:
        """Drop a blob, so that it is fetched again."""
        blob_path(self.root, digest).unlink(missing_ok=True)

    async def missing(self, digests: Sequence[Digest]) -> list[Digest]:
        """Return which of these blobs the store lacks; raises what it answered, or `TrackerUnreachable`."""
        return await find_missing_aio(self._stub, digests)

    async def store(self, path: Path, digest: Digest) -> None:
        """Upload what a worker left at `path`.

        Raises
        ------
        FarmError
            What the store answered, or the file is not what the worker said.
        """
        try:
            sent = await upload(self._stub, path)
        except OSError as error:
            raise InfrastructureError(
                f"blob {digest}: the worker's file is unreadable ({error.strerror}); try again"
            ) from error
        if sent != digest:
            raise InfrastructureError(
                f"blob {digest}: the worker's file is something else ({sent}); try again"
            )

    def _fetched(self, digest: Digest, task: asyncio.Task[None]) -> None:
        del self._fetching[digest]
        if not task.cancelled():
            task.exception()  # told to those who wait

    async def _fetch(self, digest: Digest, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            await download(self._stub, digest, path)
            await self._count(digest)
        except OSError as error:
            raise InfrastructureError(
                f"blob {digest}: the agent's cache cannot be written ({error.strerror}); "
                f"free space in {self.root}"
            ) from error

    async def _count(self, digest: Digest) -> None:
        """Count a blob that has come, and drop others if they are too many."""
        self._size_bytes += digest.size_bytes
        if self._size_bytes > self._limit_bytes:
            kept, limit_bytes = blob_path(self.root, digest), int(self._limit_bytes * TRIM_TO)
            self._size_bytes = await asyncio.to_thread(_trim, self.root, limit_bytes, kept)


def _is_used(path: Path, digest: Digest) -> bool:
    """Tell whether a blob is here, and if so have it trimmed last; a trim under way may take it in between."""
    try:
        if path.stat().st_size != digest.size_bytes:
            return False
        os.utime(path)
    except OSError:
        return False
    return True


def _files(root: Path) -> list[tuple[float, int, Path]]:
    found = []
    for path in root.glob("??/*"):
        try:
            facts = path.stat()
        except OSError:
            continue
        found.append((facts.st_mtime, facts.st_size, path))
    return sorted(found)


def _trim(root: Path, limit_bytes: int, keep: Path) -> int:
    files = _files(root)
    size_bytes = sum(size for _, size, _ in files)
    for _, size, path in files:
        if size_bytes <= limit_bytes:
            break
        if path != keep:
            path.unlink(missing_ok=True)
            size_bytes -= size
    return size_bytes
