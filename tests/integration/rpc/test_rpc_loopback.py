"""Errors and blobs through a real gRPC server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import grpc
import pytest

from farm.api.v1 import blob_pb2, blob_pb2_grpc
from farm.core.digest import digest_of
from farm.errors import InfrastructureError, InvalidTarget, NotFound, TrackerUnreachable
from farm.rpc import (
    abort_with,
    aio_channel,
    channel,
    digest_from_proto,
    digest_to_proto,
    rpc_errors,
    server_options,
)
from farm.rpc.blobs import (
    CHUNK_BYTES,
    Assembly,
    download,
    download_aio,
    read_responses,
    upload,
    upload_aio,
    upload_all,
)

LONG = bytes(range(256)) * 9000


class MemoryStore(blob_pb2_grpc.BlobServiceServicer):
    """A store that keeps blobs in a dictionary and counts writes."""

    def __init__(self):
        self.blobs = {}
        self.writes = 0

    async def FindMissing(self, request, context):
        missing = [d for d in request.digests if d.sha256 not in self.blobs]
        return blob_pb2.FindMissingResponse(missing=missing)

    async def Write(self, request_iterator, context):
        assembly = None
        async for request in request_iterator:
            assembly = assembly or Assembly(digest_from_proto(request.digest))
            assembly.add(request.data)
        self.blobs[assembly.digest.sha256] = assembly.finish()
        self.writes += 1
        return blob_pb2.WriteResponse(stored_bytes=assembly.digest.size_bytes)

    async def Read(self, request, context):
        data = self.blobs.get(request.digest.sha256)
        if data is None:
            await abort_with(context, NotFound("blob: absent (x); upload it", sha256="x"))
        for response in read_responses(data):
            yield response


class Failing(blob_pb2_grpc.BlobServiceServicer):
    """Answers with a long typed error."""

    async def FindMissing(self, request, context):
        await abort_with(context, InvalidTarget("target: " + "ü" * 30_000, known="llvm, ea"))


@contextlib.contextmanager
def serving(servicer):
    """Run a server in a thread with a loop of its own; give its address."""
    loop = asyncio.new_event_loop()
    started: list[object] = []

    async def start():
        server = grpc.aio.server(options=server_options())
        blob_pb2_grpc.add_BlobServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        started.extend([server, port])

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{started[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(started[0].stop(0), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.mark.parametrize("data", [b"", b"x", LONG], ids=["empty", "one", "long"])
def test_blob_uploaded_twice_is_written_once_and_downloads_equal(data, tmp_path):
    store = MemoryStore()
    path = tmp_path / "blob"
    path.write_bytes(data)
    with serving(store) as address, channel(address) as opened:
        stub = blob_pb2_grpc.BlobServiceStub(opened)
        first, second = upload(stub, data), upload(stub, path)
        assert first == second == digest_of(data)
        assert store.writes == 1
        assert download(stub, first) == data


def test_blobs_uploaded_together_are_written_once_each():
    store = MemoryStore()
    with serving(store) as address, channel(address) as opened:
        stub = blob_pb2_grpc.BlobServiceStub(opened)
        upload(stub, b"b")
        digests = upload_all(stub, [b"a", b"b", b"a", b"c"])
        assert digests == [digest_of(b"a"), digest_of(b"b"), digest_of(b"a"), digest_of(b"c")]
        assert store.writes == 3


def test_blob_of_asyncio_client_round_trips():
    async def run(address):
        async with aio_channel(address) as opened:
            stub = blob_pb2_grpc.BlobServiceStub(opened)
            digest = await upload_aio(stub, LONG)
            assert await upload_aio(stub, LONG) == digest
            assert await download_aio(stub, digest) == LONG
            with pytest.raises(NotFound) as caught:
                await download_aio(stub, digest_of(b"absent"))
            assert caught.value.details == {"sha256": "x"}

    store = MemoryStore()
    with serving(store) as address:
        asyncio.run(run(address))
    assert store.writes == 1
    assert len(LONG) > 2 * CHUNK_BYTES


def test_blob_absent_is_not_found():
    with (
        serving(MemoryStore()) as address,
        channel(address) as opened,
        pytest.raises(NotFound, match="blob: absent"),
    ):
        download(blob_pb2_grpc.BlobServiceStub(opened), digest_of(b"absent"))


def test_blob_corrupt_in_the_store_is_found():
    store = MemoryStore()
    with serving(store) as address, channel(address) as opened:
        stub = blob_pb2_grpc.BlobServiceStub(opened)
        digest = upload(stub, b"good")
        store.blobs[digest.sha256] = b"gooe"
        with pytest.raises(InfrastructureError, match="do not match"):
            download(stub, digest)


def test_error_with_a_long_message_crosses_whole():
    with serving(Failing()) as address, channel(address) as opened:
        stub = blob_pb2_grpc.BlobServiceStub(opened)
        request = blob_pb2.FindMissingRequest(digests=[digest_to_proto(digest_of(b""))])
        with pytest.raises(InvalidTarget) as caught, rpc_errors(address):
            stub.FindMissing(request, timeout=10)
    assert caught.value.message == "target: " + "ü" * 30_000
    assert caught.value.details == {"known": "llvm, ea"}


def test_call_to_a_closed_port_is_tracker_unreachable():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connecting is refused
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            channel(address) as opened,
            pytest.raises(TrackerUnreachable, match=address),
            rpc_errors(address),
        ):
            blob_pb2_grpc.BlobServiceStub(opened).FindMissing(
                blob_pb2.FindMissingRequest(), timeout=10
            )
