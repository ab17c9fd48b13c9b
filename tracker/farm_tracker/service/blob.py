"""BlobService: the content-addressed store on the wire.

Owns: its messages' checks. Does not own: the store. Invariant: a blob that a client was told is stored is durable.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from farm.api.v1 import blob_pb2, blob_pb2_grpc
from farm.errors import InvalidInput
from farm.rpc import digest_from_proto, digest_to_proto
from farm_tracker.cas import CHUNK_BYTES, BlobWriter, checked_digest
from farm_tracker.service.convert import check_count
from farm_tracker.service.streams import errors_to_status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc

    from farm.core.digest import Digest
    from farm_tracker.cas import BlobStore

MAX_ASKED = 10_000


class BlobService(blob_pb2_grpc.BlobServiceServicer):
    """Serves one store."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    async def FindMissing(
        self,
        request: blob_pb2.FindMissingRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> blob_pb2.FindMissingResponse:
        """Return the blobs that are absent."""
        async with errors_to_status(context):
            check_count(len(request.digests), MAX_ASKED, "digests")
            asked = [digest_from_proto(it) for it in request.digests]
            missing = await asyncio.to_thread(self._blobs.missing, asked)
            return blob_pb2.FindMissingResponse(missing=map(digest_to_proto, missing))
        raise AssertionError("unreachable")

    async def Write(
        self,
        request_iterator: AsyncIterator[blob_pb2.WriteRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> blob_pb2.WriteResponse:
        """Store one blob."""
        async with errors_to_status(context):
            first = await anext(request_iterator, None)
            if first is None:
                raise InvalidInput("blob: an empty stream; send the digest first")
            digest = checked_digest(self._blobs, digest_from_proto(first.digest))
            if self._blobs.has(digest):
                return blob_pb2.WriteResponse(stored_bytes=0)
            await self._store(digest, first.data, request_iterator)
            return blob_pb2.WriteResponse(stored_bytes=digest.size_bytes)
        raise AssertionError("unreachable")

    async def Read(
        self, request: blob_pb2.ReadRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[blob_pb2.ReadResponse]:
        """Give one blob."""
        async with errors_to_status(context):
            async for chunk in self._blobs.read(digest_from_proto(request.digest)):
                yield blob_pb2.ReadResponse(data=chunk)

    async def _store(
        self, digest: Digest, data: bytes, rest: AsyncIterator[blob_pb2.WriteRequest]
    ) -> None:
        writer = await asyncio.to_thread(BlobWriter, self._blobs, digest)
        with writer:
            await _feed(writer, data)
            async for request in rest:
                if request.HasField("digest"):
                    raise InvalidInput(f"blob {digest}: a second digest; write one blob a call")
                await _feed(writer, request.data)
            await asyncio.to_thread(writer.commit)


async def _feed(writer: BlobWriter, data: bytes) -> None:
    if len(data) > CHUNK_BYTES:
        raise InvalidInput(f"blob: a chunk of {len(data)} bytes; send at most {CHUNK_BYTES}")
    if data:
        await asyncio.to_thread(writer.feed, data)
