"""BlobService: the content-addressed store on the wire.

Owns: its messages' checks. Does not own: the store. Invariant: a blob that a client was told is stored is durable.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from farm.api.v1 import blob_pb2
from farm.core.limits import CHUNK_BYTES, MAX_FIND_MISSING
from farm.core.tasks import finish
from farm.errors import InvalidInput
from farm.rpc import digest_from_proto, digest_to_proto
from farm.rpc.blobs import in_thread
from farm.rpc.chunks import read_message, written
from farm_tracker.blob_writer import BlobWriter
from farm_tracker.cas import checked_digest
from farm_tracker.service.convert import check_count
from farm_tracker.service.streams import errors_to_status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from farm.core.digest import Digest
    from farm.rpc.chunks import Content
    from farm_tracker.cas import BlobStore

    Context = grpc.aio.ServicerContext[Any, Any]


class BlobService:
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
            check_count(len(request.digests), MAX_FIND_MISSING, "digests")
            asked = [digest_from_proto(it) for it in request.digests]
            missing = await asyncio.to_thread(self._blobs.missing, asked)
            return blob_pb2.FindMissingResponse(missing=map(digest_to_proto, missing))
        raise AssertionError("unreachable")

    async def Write(
        self, request_iterator: AsyncIterator[bytes], context: Context
    ) -> blob_pb2.WriteResponse:
        """Store one blob; requests are messages as bytes."""
        async with errors_to_status(context):
            first = await anext(request_iterator, None)
            if first is None:
                raise InvalidInput("blob: an empty stream; send the digest first")
            fields, data = written(first)
            if fields is None:
                raise InvalidInput("blob: a stream without a digest; send it first")
            digest = checked_digest(self._blobs, digest_from_proto(fields.digest))
            if await asyncio.to_thread(self._blobs.holds, digest):
                return blob_pb2.WriteResponse(stored_bytes=0)
            await self._store(digest, data, request_iterator)
            return blob_pb2.WriteResponse(stored_bytes=digest.size_bytes)
        raise AssertionError("unreachable")

    async def Read(self, request: blob_pb2.ReadRequest, context: Context) -> AsyncIterator[bytes]:
        """Give one blob, in messages as bytes."""
        async with errors_to_status(context):
            async for chunk in self._blobs.read(digest_from_proto(request.digest)):
                yield read_message(chunk)

    async def Usage(
        self, request: blob_pb2.UsageRequest, context: Context
    ) -> blob_pb2.UsageResponse:
        """Return how full the store is."""
        async with errors_to_status(context):
            usage = await asyncio.to_thread(self._blobs.usage)
            return blob_pb2.UsageResponse(
                blobs=usage.blobs,
                used_bytes=usage.used_bytes,
                claimed_bytes=usage.claimed_bytes,
                limit_bytes=usage.limit_bytes,
                pinned_bytes=usage.pinned_bytes,
                evicted_blobs=usage.evicted.blobs,
                evicted_bytes=usage.evicted.size_bytes,
            )
        raise AssertionError("unreachable")

    async def _store(self, digest: Digest, data: Content, rest: AsyncIterator[bytes]) -> None:
        def take(message: bytes) -> None:
            fields, chunk = written(message)
            if fields is not None and fields.HasField("digest"):
                raise InvalidInput(f"blob {digest}: a second digest; write one blob a call")
            writer.feed(_checked(chunk))

        writer = BlobWriter(self._blobs, digest)
        try:  # a client that leaves cancels this: each step ends before the next, and before what it left is removed
            await finish(asyncio.to_thread(writer.open))
            if data:
                await finish(asyncio.to_thread(writer.feed, _checked(data)))
            await in_thread(rest, take)
            await finish(asyncio.to_thread(writer.commit))
        finally:
            writer.close()


def _checked(chunk: Content) -> Content:
    if len(chunk) > CHUNK_BYTES:
        raise InvalidInput(f"blob: a chunk of {len(chunk)} bytes; send at most {CHUNK_BYTES}")
    return chunk


def add_blob_service(service: BlobService, server: grpc.aio.Server) -> None:
    """Have a server serve it, with messages that carry content as bytes."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "FindMissing": grpc.unary_unary_rpc_method_handler(
            service.FindMissing,
            request_deserializer=blob_pb2.FindMissingRequest.FromString,
            response_serializer=blob_pb2.FindMissingResponse.SerializeToString,
        ),
        "Write": grpc.stream_unary_rpc_method_handler(
            service.Write, response_serializer=blob_pb2.WriteResponse.SerializeToString
        ),
        "Read": grpc.unary_stream_rpc_method_handler(
            service.Read, request_deserializer=blob_pb2.ReadRequest.FromString
        ),
        "Usage": grpc.unary_unary_rpc_method_handler(
            service.Usage,
            request_deserializer=blob_pb2.UsageRequest.FromString,
            response_serializer=blob_pb2.UsageResponse.SerializeToString,
        ),
    }
    name = blob_pb2.DESCRIPTOR.services_by_name["BlobService"].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
