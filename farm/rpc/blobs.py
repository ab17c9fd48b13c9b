"""Moving blobs to and from the store, in chunks, checked by digest.

Owns: the messages of BlobService, its client's side, synchronous and asyncio, and the check of
received chunks.
Does not own: where blobs are kept.

Invariant: what `download` returns has the digest that was asked for; no more than its size is ever
held; a blob that the store has is not sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from farm.api.v1 import blob_pb2, blob_pb2_grpc
from farm.core.digest import Digest, digest_of
from farm.core.wire import digest_from_proto, digest_to_proto
from farm.errors import InfrastructureError
from farm.rpc.status import rpc_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

CHUNK_BYTES = 1 << 20
FIND_MISSING_MAX = 10_000
TIMEOUT_S = 300.0


class Assembly:
    """Collects the chunks of one blob, in order, and refuses whatever does not belong to it."""

    def __init__(self, digest: Digest) -> None:
        self.digest = digest
        self._hash = hashlib.sha256()
        self._chunks: list[bytes] = []
        self._size_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Take the next chunk.

        Raises
        ------
        InfrastructureError
            It is longer than 1 MiB, or more bytes came than the blob has.
        """
        self._size_bytes += len(chunk)
        if len(chunk) > CHUNK_BYTES or self._size_bytes > self.digest.size_bytes:
            raise InfrastructureError(
                f"blob {self.digest}: a chunk of {len(chunk)} bytes is too much after "
                f"{self._size_bytes - len(chunk)}; transfer it again"
            )
        self._hash.update(chunk)
        self._chunks.append(chunk)

    def finish(self) -> bytes:
        """Return the blob; raises InfrastructureError if its bytes do not match its digest."""
        has = Digest(self._hash.hexdigest(), self._size_bytes)
        if has != self.digest:
            raise InfrastructureError(
                f"blob {self.digest}: bytes do not match the digest (they are {has}); transfer it "
                "again"
            )
        return b"".join(self._chunks)


def digest_of_source(source: bytes | Path) -> Digest:
    """Return the digest of some bytes or of a file, read in chunks."""
    if isinstance(source, bytes):
        return digest_of(source)
    sha256, size_bytes = hashlib.sha256(), 0
    for chunk in _chunks(source):
        sha256.update(chunk)
        size_bytes += len(chunk)
    return Digest(sha256.hexdigest(), size_bytes)


def find_missing(
    stub: blob_pb2_grpc.BlobServiceStub,
    digests: Sequence[Digest],
    *,
    timeout_s: float = TIMEOUT_S,
) -> list[Digest]:
    """Return the blobs that the store lacks, in the order asked, without repeats."""
    missing: list[Digest] = []
    for request in _missing_requests(digests):
        with rpc_errors():
            response = stub.FindMissing(request, timeout=timeout_s)
        missing += map(digest_from_proto, response.missing)
    return missing


def upload(
    stub: blob_pb2_grpc.BlobServiceStub, source: bytes | Path, *, timeout_s: float = TIMEOUT_S
) -> Digest:
    """Store some bytes or a file, if the store lacks them, and return their digest.

    Raises
    ------
    FarmError
        What the store answered, or `TrackerUnreachable`.
    OSError
        The file cannot be read.
    """
    digest = digest_of_source(source)
    if find_missing(stub, [digest], timeout_s=timeout_s):
        with rpc_errors():
            stub.Write(write_requests(digest, source), timeout=timeout_s)
    return digest


def upload_all(
    stub: blob_pb2_grpc.BlobServiceStub, blobs: Iterable[bytes], *, timeout_s: float = TIMEOUT_S
) -> list[Digest]:
    """Store several blobs, asking once for all which are missing; returns digests in order."""
    content = [(digest_of(blob), blob) for blob in blobs]
    digests = [digest for digest, _ in content]
    by_digest = dict(content)
    for digest in find_missing(stub, digests, timeout_s=timeout_s):
        with rpc_errors():
            stub.Write(write_requests(digest, by_digest[digest]), timeout=timeout_s)
    return digests


def download(
    stub: blob_pb2_grpc.BlobServiceStub, digest: Digest, *, timeout_s: float = TIMEOUT_S
) -> bytes:
    """Return the bytes of a blob, checked against its digest.

    Raises
    ------
    NotFound
        The store lacks it.
    InfrastructureError
        It is corrupt, or the transfer broke.
    """
    assembly = Assembly(digest)
    request = blob_pb2.ReadRequest(digest=digest_to_proto(digest))
    with rpc_errors():
        for response in stub.Read(request, timeout=timeout_s):
            assembly.add(response.data)
    return assembly.finish()


async def find_missing_aio(
    stub: blob_pb2_grpc.BlobServiceAsyncStub,
    digests: Sequence[Digest],
    *,
    timeout_s: float = TIMEOUT_S,
) -> list[Digest]:
    """Do as `find_missing`, for asyncio."""
    missing: list[Digest] = []
    for request in _missing_requests(digests):
        with rpc_errors():
            response = await stub.FindMissing(request, timeout=timeout_s)
        missing += map(digest_from_proto, response.missing)
    return missing


async def upload_aio(
    stub: blob_pb2_grpc.BlobServiceAsyncStub,
    source: bytes | Path,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Digest:
    """Do as `upload`, for asyncio; each chunk is read in the event loop's own thread as it is sent."""
    digest = await asyncio.to_thread(digest_of_source, source)
    if await find_missing_aio(stub, [digest], timeout_s=timeout_s):
        with rpc_errors():
            await stub.Write(write_requests(digest, source), timeout=timeout_s)
    return digest


async def download_aio(
    stub: blob_pb2_grpc.BlobServiceAsyncStub, digest: Digest, *, timeout_s: float = TIMEOUT_S
) -> bytes:
    """Do as `download`, for asyncio."""
    assembly = Assembly(digest)
    request = blob_pb2.ReadRequest(digest=digest_to_proto(digest))
    with rpc_errors():
        async for response in stub.Read(request, timeout=timeout_s):
            assembly.add(response.data)
    return assembly.finish()


def write_requests(digest: Digest, source: bytes | Path) -> Iterator[blob_pb2.WriteRequest]:
    """Yield the messages that write a blob: the digest with the first chunk, then the others."""
    first: Digest | None = digest
    for chunk in _chunks(source):
        yield blob_pb2.WriteRequest(digest=digest_to_proto(first) if first else None, data=chunk)
        first = None
    if first is not None:
        yield blob_pb2.WriteRequest(digest=digest_to_proto(first))


def read_responses(source: bytes | Path) -> Iterator[blob_pb2.ReadResponse]:
    """Yield the messages that answer a read."""
    for chunk in _chunks(source):
        yield blob_pb2.ReadResponse(data=chunk)


def _missing_requests(digests: Sequence[Digest]) -> Iterator[blob_pb2.FindMissingRequest]:
    unique = list(dict.fromkeys(digests))
    for start in range(0, len(unique), FIND_MISSING_MAX):
        part = unique[start : start + FIND_MISSING_MAX]
        yield blob_pb2.FindMissingRequest(digests=map(digest_to_proto, part))


def _chunks(source: bytes | Path) -> Iterator[bytes]:
    if isinstance(source, bytes):
        for start in range(0, len(source), CHUNK_BYTES):
            yield source[start : start + CHUNK_BYTES]
        return
    with source.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
