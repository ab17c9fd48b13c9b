"""The content-addressed store: a directory of blobs named by SHA-256.

Owns: writing, reading, checking and evicting blobs, the limit of their size. Does not own: which blobs are still
wanted (`pins`), or the wire.

Invariant: a blob under its name is whole and durable; bytes that do not match their name are removed and never
returned as a blob. What is pinned, or was used in the last `hold_s`, is not evicted; what was not used for longest
goes first. Eviction is the removal of a file, so that a crash leaves the store as it is on the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from farm.core.clock import SystemClock
from farm.core.digest import Digest, digest_of
from farm.core.files import private_folder
from farm.core.limits import CHUNK_BYTES
from farm.core.tasks import finish
from farm.errors import BlobCorrupt, InvalidInput, NotFound, StoreFull
from farm.rpc.chunks import chunks_of
from farm_tracker.blob_index import BlobIndex
from farm_tracker.blob_writer import BlobWriter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence

    from farm.core.clock import Clock

MAX_BLOB_BYTES = 1 << 30
HOLD_S = 600.0
MORE_ROOM = 0.05
"""What is evicted beyond need, as a part of the limit, so that it need not be done for every blob."""
EVICTED_AT_ONCE = 64
PAUSE_S = 0.0005
"""Between two slices of an eviction."""
ROUNDS = 8
MAX_DEFAULT_BYTES = 64 << 30

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Evicted:
    """What was evicted since the start."""

    blobs: int
    size_bytes: int

    def plus(self, blobs: int, size_bytes: int) -> Evicted:
        """Return this with more."""
        return Evicted(self.blobs + blobs, self.size_bytes + size_bytes)


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of a store is used; `pinned_bytes` is what cannot be evicted now, apart from what was used just now."""

    blobs: int
    used_bytes: int
    claimed_bytes: int
    limit_bytes: int
    pinned_bytes: int
    evicted: Evicted


class BlobStore:
    """A directory of blobs, in two levels of folders by the first digits of their names. Threads may share it.

    Parameters
    ----------
    max_blob_bytes
        Size of the largest blob.
    keep_free_bytes
        What of the disk is left free, for what the tracker itself has to write.
    limit_bytes
        What all blobs together may take, uploads under way included; 0: the disk is the limit.
    hold_s
        How long a blob that was stored, asked for or read is safe from eviction: whoever was told that it is here has
        so long to name it in a build or job, which pins it.

    Attributes
    ----------
    pinned
        Called, from any thread, for the names of the blobs that must stay. Set it before more than `limit_bytes` come.
    """

    def __init__(
        self,
        root: Path,
        max_blob_bytes: int = MAX_BLOB_BYTES,
        keep_free_bytes: int = 0,
        *,
        limit_bytes: int = 0,
        hold_s: float = HOLD_S,
        clock: Clock | None = None,
    ) -> None:
        self.blobs = root / "blobs"
        self.incoming = root / "incoming"
        self.max_blob_bytes = max_blob_bytes
        self.keep_free_bytes = keep_free_bytes
        self.limit_bytes = limit_bytes
        self.pinned: Callable[[], Collection[str]] = tuple
        self._hold_s = hold_s
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._claimed_bytes = 0
        self._evicted = Evicted(0, 0)
        for folder in (self.blobs, self.incoming):
            private_folder(folder)
        for left in self.incoming.iterdir():  # of a tracker that was killed while writing
            left.unlink()
        self._index = BlobIndex(self.blobs, self._clock)

    def path(self, digest: Digest) -> Path:
        """Return where a blob is or would be."""
        return _path(self.blobs, digest.sha256)

    def has(self, digest: Digest) -> bool:
        """Tell whether the blob is here, by name and size; one that is stays for `hold_s`."""
        path = self.path(digest)
        with self._lock:
            try:
                size_bytes = path.stat().st_size
                if size_bytes == digest.size_bytes:
                    self._index.use(digest.sha256, size_bytes, path)
            except FileNotFoundError:
                self._index.drop(digest.sha256)
                return False
        return size_bytes == digest.size_bytes

    def holds(self, digest: Digest) -> bool:
        """Tell whether the blob is here and whole, by reading it; one that is damaged is removed. Blocking.

        For whoever can give the bytes again: reading costs less than writing, and much less than a failure later.
        """
        if not self.has(digest):
            return False
        sha256, size_bytes = hashlib.sha256(), 0
        try:
            with self.path(digest).open("rb") as file:
                while chunk := _read_chunk(file, sha256):
                    size_bytes += len(chunk)
                self._check(digest, Digest(sha256.hexdigest(), size_bytes), file)
        except OSError as error:  # evicted meanwhile, or the disk cannot read it
            log.warning("blob %s: cannot be read (%s); to be written again", digest, error)
            return False
        except BlobCorrupt as error:
            log.warning("%s", error.message)
            return False
        return True

    def missing(self, digests: Iterable[Digest]) -> list[Digest]:
        """Return those that are absent, in the order given, without repeats. Blocking."""
        return [digest for digest in dict.fromkeys(digests) if not self.has(digest)]

    def check_size(self, digest: Digest) -> None:
        """Raise StoreFull if a blob of this size is over the limit of one blob."""
        if digest.size_bytes > self.max_blob_bytes:
            raise StoreFull(
                f"blob {digest}: over the limit ({self.max_blob_bytes} bytes); split it"
            )

    def claim(self, digest: Digest) -> None:
        """Make room for a blob that is about to be written, and keep it until `take` or `unclaim`. Blocking.

        Raises
        ------
        StoreFull
            There is none, even without everything that nobody needs.
        """
        with self._lock:
            has_room = self._lacking(digest) <= 0
            if has_room:
                self._claimed_bytes += digest.size_bytes
        if not has_room:
            # What is pinned from now on was looked up just now, and so is held: nobody has to wait for this.
            self._make_room(digest, frozenset(self.pinned()))

    def unclaim(self, digest: Digest) -> None:
        """Keep room no more for a blob that was given up."""
        with self._lock:
            self._claimed_bytes -= digest.size_bytes

    def take(self, digest: Digest, file: Path) -> None:
        """Give a whole file its name; it takes the room that was claimed for it."""
        final = self.path(digest)
        with self._lock:
            file.replace(final)
            self._claimed_bytes -= digest.size_bytes
            self._index.use(digest.sha256, digest.size_bytes, final)

    def usage(self) -> Usage:
        """Return how much of the store is used. Blocking."""
        pinned = self.pinned()
        with self._lock:
            sizes = self._index.sizes()
            return Usage(
                blobs=len(sizes),
                used_bytes=self._index.used_bytes,
                claimed_bytes=self._claimed_bytes,
                limit_bytes=self.limit_bytes,
                pinned_bytes=sum(sizes.get(it, 0) for it in set(pinned)),
                evicted=self._evicted,
            )

    def put(self, data: bytes) -> Digest:
        """Store some bytes and return their digest; what is there damaged is replaced. Blocking; raises StoreFull."""
        digest = digest_of(data)
        self.check_size(digest)
        if not self.holds(digest):
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
        self.has(digest)  # so that it stays
        try:
            file = self.path(digest).open("rb")
        except FileNotFoundError:
            raise _absent(digest) from None
        with file:
            data = file.read()
            self._check(digest, digest_of(data), file)
        return data

    async def read(self, digest: Digest) -> AsyncIterator[bytes]:
        """Yield a blob in chunks of at most 1 MiB; the last comes only after all were checked.

        Raises
        ------
        NotFound, BlobCorrupt
            As `get`; a corrupt blob is noticed before its last chunk is given.
        """
        self.has(digest)  # so that it stays
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
                while chunk := await asyncio.shield(reading):
                    size_bytes += len(chunk)
                    reading = loop.run_in_executor(None, _read_chunk, file, sha256)
                    if held is not None:
                        yield held
                    held = chunk
            finally:  # also of one that was cancelled: the file is closed next
                await finish(asyncio.wait([reading]))
            self._check(digest, Digest(sha256.hexdigest(), size_bytes), file)
            if held is not None:
                yield held

    def _check(self, digest: Digest, has: Digest, file: IO[bytes]) -> None:
        """Remove a blob whose file, which was read and is still open, is not what its name says, and say so."""
        if has != digest:
            path = self.path(digest)
            with self._lock, contextlib.suppress(FileNotFoundError):
                # Unless somebody has put a whole one there meanwhile.
                if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                    path.unlink()
                    self._index.drop(digest.sha256)
            raise BlobCorrupt(
                f"blob {digest}: corrupt in the store (it is {has}), removed; send it again"
            )

    def _make_room(self, digest: Digest, pinned: frozenset[str]) -> None:
        """Evict what is needed least until a blob has room, and claim it; raise StoreFull if it cannot have it."""
        for _ in range(
            ROUNDS
        ):  # others take room, or use what was to go, while nobody holds the lock
            with self._lock:
                lacking_bytes = self._lacking(digest)
                if lacking_bytes <= 0:
                    self._claimed_bytes += digest.size_bytes
                    return
                before = self._clock.now() - self._hold_s
                victims = self._victims(lacking_bytes, before, pinned)
            if not victims:
                break
            self._evict(victims, before)
        with self._lock:
            if self._lacking(digest) > 0:
                raise self._full(digest)
            self._claimed_bytes += digest.size_bytes

    def _victims(self, lacking_bytes: int, before: float, pinned: frozenset[str]) -> list[str]:
        """Return what would give some more room than is lacking; nothing if all that may go is not enough."""
        wanted, size_bytes = lacking_bytes + int(self.limit_bytes * MORE_ROOM), 0
        names = []
        for name, its_bytes in self._index.unused_since(before):
            if size_bytes >= wanted:
                break
            if name not in pinned:
                names.append(name)
                size_bytes += its_bytes
        return names if size_bytes >= lacking_bytes else []

    def _full(self, digest: Digest) -> StoreFull:
        if self._lacking_on_disk(digest) > 0:
            return StoreFull(
                f"blob {digest}: the tracker's disk is full ({self._free_bytes()} bytes free, "
                f"{self.keep_free_bytes} of them stay for results); free space there, and send it again"
            )
        return StoreFull(
            f"blob {digest}: no room in the store ({self._index.used_bytes} bytes in use, limit "
            f"{self.limit_bytes or 'the disk'}); the rest is needed by builds, jobs, kept results, or was used in "
            f"the last {self._hold_s:g} s; retry later, or raise the limit (`farm up --store-limit`)"
        )

    def _evict(self, names: Sequence[str], before: float) -> None:
        """Remove blobs, a few at a time, so that nobody waits long for the lock; one that was used since stays."""
        evicted = Evicted(0, 0)
        for start in range(0, len(names), EVICTED_AT_ONCE):
            if start:
                time.sleep(PAUSE_S)  # else whoever waits for the lock would not get it
            with self._lock:
                for name in names[start : start + EVICTED_AT_ONCE]:
                    size_bytes = self._index.size_if_unused(name, before)
                    if size_bytes is not None:
                        _path(self.blobs, name).unlink(missing_ok=True)
                        self._index.drop(name)
                        evicted = evicted.plus(1, size_bytes)
        with self._lock:
            self._evicted = self._evicted.plus(evicted.blobs, evicted.size_bytes)
        log.info("evicted blobs=%d size_bytes=%d", evicted.blobs, evicted.size_bytes)

    def _lacking(self, digest: Digest) -> int:
        """Return how many bytes have to go before a blob has room."""
        lacking_bytes = 0
        if self.limit_bytes:
            taken = self._index.used_bytes + self._claimed_bytes
            lacking_bytes = taken + digest.size_bytes - self.limit_bytes
        return max(lacking_bytes, self._lacking_on_disk(digest))

    def _lacking_on_disk(self, digest: Digest) -> int:
        if not self.keep_free_bytes:
            return 0
        return self.keep_free_bytes + digest.size_bytes - self._free_bytes()

    def _free_bytes(self) -> int:
        found = os.statvfs(self.incoming)
        return found.f_bavail * found.f_frsize


def default_limit(folder: Path) -> int:
    """Return what a store in this folder may take unless somebody says: half of its disk, at most 64 GiB."""
    found = os.statvfs(folder)
    return min(MAX_DEFAULT_BYTES, found.f_blocks * found.f_frsize // 2)


def _path(blobs: Path, name: str) -> Path:
    return blobs / name[:2] / name[2:4] / name


def _read_chunk(file: IO[bytes], sha256: hashlib._Hash) -> bytes:
    chunk = file.read(CHUNK_BYTES)
    sha256.update(chunk)
    return chunk


def _absent(digest: Digest) -> NotFound:
    return NotFound(f"blob {digest}: not in the store; send it first")


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
