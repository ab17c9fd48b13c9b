"""The agent's outbox: what run attempts came to, on disk until the tracker has it.

Owns: one record for each attempt and the blobs that it names, in one folder.
Does not own: uploading (`farm_agents.runs`), or when an attempt may be forgotten (`farm_agents.state.runs`).

    ATTEMPT.run      SHA-256 of what follows, then a RunAttempt: running, or with its outcome
    ATTEMPT.blobs/   outputs and chunks of the log that the store may lack, named by their SHA-256

Invariant: a record is whole, and every blob that it names was on the disk before it; a process that dies between any
two steps leaves the record of before or of after, and nothing that is never removed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from google.protobuf.message import DecodeError

from farm.api.v1 import agent_pb2
from farm.core.digest import Digest, digest_of
from farm.core.files import private_folder, write_atomic
from farm.core.ids import AttemptId
from farm.core.wire import error_to_proto
from farm.errors import DeviceLost, InfrastructureError

MAX_OUTBOX_BYTES = 8 << 30
MAX_ATTEMPTS = 10_000
COPY_BYTES = 1 << 20

_RECORD, _BLOBS = ".run", ".blobs"
_HASH_BYTES = hashlib.sha256().digest_size


class Outbox:
    """Run attempts in the folder `root`. Its methods block: call them in a thread.

    Parameters
    ----------
    limit_bytes
        Limit on all blobs together; an attempt that passes it fails by the farm's fault.
    """

    def __init__(self, root: Path, limit_bytes: int = MAX_OUTBOX_BYTES) -> None:
        self.root = root
        self._limit_bytes = limit_bytes
        self._sizes: dict[str, int] = {}

    def load(self) -> list[agent_pb2.RunAttempt]:
        """Return what an earlier process left; an attempt that it did not finish was lost with it.

        Raises
        ------
        OSError
            The folder cannot be made or read.
        """
        private_folder(self.root)
        found = []
        for path in sorted(self.root.iterdir()):
            if path.suffix != _RECORD or path.name.startswith("."):
                continue
            attempt = _read(path)
            if attempt is None:
                path.unlink()  # damaged on the disk: nobody can tell what it said
                continue
            if attempt.WhichOneof("outcome") == "running":
                attempt.error.CopyFrom(error_to_proto(_lost(attempt)))
            found.append(attempt)
        self._sweep({attempt.attempt_id for attempt in found})
        return found

    def begin(self, attempt: agent_pb2.RunAttempt) -> None:
        """Keep that an attempt has begun, before it does anything that must not happen twice.

        Raises
        ------
        InfrastructureError
            The disk or the outbox is full.
        """
        if len(self._sizes) >= MAX_ATTEMPTS:
            raise _full(attempt.attempt_id, f"{len(self._sizes)} attempts wait for the tracker")
        self._sizes.setdefault(attempt.attempt_id, 0)
        self._record(attempt)

    def keep(self, attempt_id: AttemptId, data: bytes) -> Digest:
        """Keep some bytes as a blob of an attempt; raises as `begin`."""
        digest = digest_of(data)
        path = self._make_room(attempt_id, digest)
        try:
            write_atomic(path, data)
            _sync(path.parent)
        except OSError as error:
            raise _full(attempt_id, str(error)) from error
        return digest

    def keep_file(self, attempt_id: AttemptId, source: Path, digest: Digest) -> None:
        """Keep a copy of a file as a blob of an attempt.

        Raises
        ------
        InfrastructureError
            The disk or the outbox is full, or the file is not what `digest` says.
        """
        path = self._make_room(attempt_id, digest)
        temporary = path.with_name(f".{path.name}")
        try:
            try:
                _copy(source, temporary, digest)
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            _sync(path.parent)
        except OSError as error:
            raise _full(attempt_id, str(error)) from error

    def finish(self, attempt: agent_pb2.RunAttempt) -> None:
        """Keep what an attempt came to; its blobs are here already. Raises as `begin`."""
        self._record(attempt)

    def blob(self, attempt_id: AttemptId, digest: Digest) -> Path | None:
        """Return the path of a blob of an attempt; None if it is not here, or is damaged."""
        path = self._folder(attempt_id) / digest.sha256
        try:
            with path.open("rb") as file:
                whole = hashlib.file_digest(file, "sha256").hexdigest() == digest.sha256
        except OSError:
            return None
        return path if whole else None

    def remove(self, attempt_id: AttemptId) -> None:
        """Forget an attempt, its record first; OSError if the disk does not let it go."""
        (self.root / f"{attempt_id}{_RECORD}").unlink(missing_ok=True)
        _sync(self.root)
        shutil.rmtree(self._folder(attempt_id), ignore_errors=True)
        self._sizes.pop(attempt_id, None)

    def _record(self, attempt: agent_pb2.RunAttempt) -> None:
        data = attempt.SerializeToString()
        path = self.root / f"{attempt.attempt_id}{_RECORD}"
        try:
            write_atomic(path, hashlib.sha256(data).digest() + data)
            _sync(self.root)
        except OSError as error:
            raise _full(attempt.attempt_id, str(error)) from error

    def _make_room(self, attempt_id: AttemptId, digest: Digest) -> Path:
        size_bytes = sum(self._sizes.values()) + digest.size_bytes
        if size_bytes > self._limit_bytes:
            raise _full(attempt_id, f"it would hold {size_bytes} of {self._limit_bytes} bytes")
        folder = self._folder(attempt_id)
        try:
            folder.mkdir(exist_ok=True)
            _sync(self.root)
        except OSError as error:
            raise _full(attempt_id, str(error)) from error
        self._sizes[attempt_id] = self._sizes.get(attempt_id, 0) + digest.size_bytes
        return folder / digest.sha256

    def _folder(self, attempt_id: AttemptId) -> Path:
        return self.root / f"{attempt_id}{_BLOBS}"

    def _sweep(self, known: set[str]) -> None:
        """Remove what no record names, and what was half written; count the rest."""
        self._sizes = dict.fromkeys(known, 0)
        for path in list(self.root.iterdir()):
            attempt_id = path.name.removesuffix(path.suffix)
            if path.suffix == _RECORD and not path.name.startswith("."):
                continue
            if path.suffix == _BLOBS and attempt_id in known:
                self._sizes[attempt_id] = _count(path)
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def digests_of(attempt: agent_pb2.RunAttempt) -> Iterable[tuple[str, int]]:
    """Yield (SHA-256, size) of every blob that an attempt names: chunks of its log, then its outputs."""
    for chunk in attempt.log_chunks:
        yield chunk.sha256, chunk.size_bytes
    for tensor in attempt.result.outputs:
        if tensor.WhichOneof("content") == "blob":
            yield tensor.blob.sha256, tensor.blob.size_bytes


def _read(path: Path) -> agent_pb2.RunAttempt | None:
    data = path.read_bytes()
    body = data[_HASH_BYTES:]
    if hashlib.sha256(body).digest() != data[:_HASH_BYTES]:
        return None
    try:
        attempt = agent_pb2.RunAttempt.FromString(body)
    except DecodeError:
        return None
    named = f"{attempt.attempt_id}{_RECORD}" == path.name
    return attempt if named and attempt.WhichOneof("outcome") is not None else None


def _copy(source: Path, path: Path, digest: Digest) -> None:
    hashed = hashlib.sha256()
    with source.open("rb") as reader, path.open("wb") as writer:
        while chunk := reader.read(COPY_BYTES):
            hashed.update(chunk)
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    if hashed.hexdigest() != digest.sha256:
        raise InfrastructureError(f"blob {digest}: the worker's file is something else; try again")


def _sync(folder: Path) -> None:
    """Have the names in a folder survive a loss of power."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _count(folder: Path) -> int:
    size_bytes = 0
    for path in folder.iterdir():
        if path.name.startswith("."):
            path.unlink()  # half written
        else:
            size_bytes += path.stat().st_size
    return size_bytes


def _lost(attempt: agent_pb2.RunAttempt) -> DeviceLost:
    return DeviceLost(
        f"run {attempt.attempt_id}: the agent ended while it ran, and it with it; try again"
    )


def _full(attempt_id: str, why: str) -> InfrastructureError:
    return InfrastructureError(
        f"run {attempt_id}: its result cannot be kept by the agent ({why}); free space, try again"
    )
