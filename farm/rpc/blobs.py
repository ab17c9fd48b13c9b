"""Moving blobs to and from the store, in chunks, checked by digest.

Owns: BlobService's client side, synchronous and asyncio. Does not own: messages and checks of chunks
(`farm.rpc.chunks`), or where blobs are kept.

Invariant: what `download` leaves has the digest that was asked for; no more than a few chunks are ever held; a
blob that the store has is not sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from farm.api.v1 import blob_pb2
from farm.core.digest import Digest, digest_of
from farm.core.files import write_all
from farm.core.limits import MAX_FIND_MISSING
from farm.core.tasks import finish
from farm.core.wire import digest_from_proto, digest_to_proto
from farm.rpc.chunks import BlobCheck, chunks_of, content_of, write_messages
from farm.rpc.status import rpc_errors

TIMEOUT_S = 300.0

_SERVICE = "/farm.api.v1.BlobService/"


class BlobStub:
    """BlobService on a channel of either kind; `write` takes and `read` gives messages as bytes."""

    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None:
        # The two kinds of channel have different types for the same things.
        self.find_missing: Any = channel.unary_unary(
            f"{_SERVICE}FindMissing",
            request_serializer=blob_pb2.FindMissingRequest.SerializeToString,
            response_deserializer=blob_pb2.FindMissingResponse.FromString,
        )
        self.write: Any = channel.stream_unary(
            f"{_SERVICE}Write", response_deserializer=blob_pb2.WriteResponse.FromString
        )
        self.read: Any = channel.unary_stream(
            f"{_SERVICE}Read", request_serializer=blob_pb2.ReadRequest.SerializeToString
        )


def find_missing(stub: BlobStub, digests: Sequence[Digest]) -> list[Digest]:
    """Return the blobs that the store lacks, in the order asked, without repeats."""
    missing: list[Digest] = []
    for request in _missing_requests(digests):
        with rpc_errors():
            response = stub.find_missing(request, timeout=TIMEOUT_S)
        missing += map(digest_from_proto, response.missing)
    return missing


async def find_missing_aio(stub: BlobStub, digests: Sequence[Digest]) -> list[Digest]:
    """Do as `find_missing`, for asyncio."""
    missing: list[Digest] = []
    for request in _missing_requests(digests):
        with rpc_errors():
            response = await stub.find_missing(request, timeout=TIMEOUT_S)
        missing += map(digest_from_proto, response.missing)
    return missing


async def upload(stub: BlobStub, source: bytes | Path) -> Digest:
    """Store some bytes or a file, if the store lacks them, and return their digest.

    Raises
    ------
    FarmError
        What the store answered, or `TrackerUnreachable`.
    OSError
        The file cannot be read.
    """
    digest = await asyncio.to_thread(digest_of_source, source)
    if await find_missing_aio(stub, [digest]):
        with rpc_errors():
            await stub.write(write_messages(digest, source), timeout=TIMEOUT_S)
    return digest


async def download(stub: BlobStub, digest: Digest, path: Path) -> None:
    """Write a blob to a file that has all of it or does not exist; its folder must.

    Raises
    ------
    NotFound
        The store lacks it.
    BlobCorrupt
        What came is not what the digest names; fetch it again.
    OSError
        The file cannot be written.
    """
    check = BlobCheck(digest)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with io.FileIO(handle, "wb") as file:

            def take(message: bytes) -> None:
                chunk = content_of(message)
                check.add(chunk)
                write_all(file, chunk)

            with rpc_errors():
                request = blob_pb2.ReadRequest(digest=digest_to_proto(digest))
                await in_thread(stub.read(request, timeout=TIMEOUT_S), take)
            check.finish()
            await finish(asyncio.to_thread(os.fsync, file.fileno()))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


async def in_thread(messages: AsyncIterator[bytes], take: Callable[[bytes], None]) -> None:
    """Have `take` take each message in a thread, while the next one comes; raises what it raises.

    Nothing is being taken any more when this returns or raises, also if it is cancelled.
    """
    loop = asyncio.get_running_loop()
    taking: asyncio.Future[None] | None = None
    try:
        async for message in messages:
            if taking is not None:
                # Shielded, since a future that is cancelled counts as done while its thread goes on.
                await asyncio.shield(taking)
            taking = loop.run_in_executor(None, take, message)
        if taking is not None:
            await asyncio.shield(taking)
    finally:
        if taking is not None:  # what it writes to is closed next
            await finish(asyncio.wait([taking]))


def digest_of_source(source: bytes | Path) -> Digest:
    """Return the digest of some bytes or of a file, read in chunks."""
    if isinstance(source, bytes):
        return digest_of(source)
    sha256, size_bytes = hashlib.sha256(), 0
    for chunk in chunks_of(source):
        sha256.update(chunk)
        size_bytes += len(chunk)
    return Digest(sha256.hexdigest(), size_bytes)


def _missing_requests(digests: Sequence[Digest]) -> Iterator[blob_pb2.FindMissingRequest]:
    unique = list(dict.fromkeys(digests))
    for start in range(0, len(unique), MAX_FIND_MISSING):
        part = unique[start : start + MAX_FIND_MISSING]
        yield blob_pb2.FindMissingRequest(digests=map(digest_to_proto, part))
