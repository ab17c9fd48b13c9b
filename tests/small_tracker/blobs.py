"""Its store, and how a call ends with an error."""

from __future__ import annotations

from farm.api.v1 import blob_pb2, blob_pb2_grpc
from farm.errors import NotFound
from farm.rpc import digest_from_proto
from farm.rpc.chunks import BlobCheck, chunks_of
from farm.rpc.status import error_metadata, status_code


def fail(context, error):
    """End a call with an error of the farm."""
    context.set_trailing_metadata(error_metadata(error))
    context.abort(status_code(error), error.message[:1000])


class Blobs(blob_pb2_grpc.BlobServiceServicer):
    """A store that counts what it is asked."""

    def __init__(self):
        self.blobs = {}
        self.asked = 0
        self.written = []
        self.damage = False

    def FindMissing(self, request, context):
        self.asked += 1
        return blob_pb2.FindMissingResponse(
            missing=[d for d in request.digests if d.sha256 not in self.blobs]
        )

    def Write(self, request_iterator, context):
        check, parts = None, []
        for request in request_iterator:
            check = check or BlobCheck(digest_from_proto(request.digest))
            check.add(request.data)
            parts.append(request.data)
        check.finish()
        self.blobs[check.digest.sha256] = b"".join(parts)
        self.written.append(check.digest.size_bytes)
        return blob_pb2.WriteResponse(stored_bytes=check.digest.size_bytes)

    def Read(self, request, context):
        data = self.blobs.get(request.digest.sha256)
        if data is None:
            fail(context, NotFound("blob x: not in the store; send it first"))
        if self.damage:
            data = bytes([data[0] ^ 1]) + data[1:]
        yield from (blob_pb2.ReadResponse(data=bytes(chunk)) for chunk in chunks_of(data))

    def need(self, digest, context):
        if digest.sha256 not in self.blobs:
            fail(context, NotFound(f"blob {digest.sha256}: not in the store; send it first"))
