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
from farm.errors import BlobCorrupt, InvalidTarget, NotFound, TrackerUnreachable
from farm.rpc import (
    abort_with,
    aio_channel,
    channel,
    digest_from_proto,
    digest_to_proto,
    rpc_errors,
    server_options,
)
from farm.rpc.blobs import BlobStub, download, upload
from farm.rpc.chunks import BlobCheck, chunks_of

LONG = bytes(range(256)) * 9000


class MemoryStore(blob_pb2_grpc.BlobServiceServicer):
    """A store that keeps blobs in a dictionary and counts writes."""

    def __init__(self):
        self.blobs = {}
        self.writes = 0
        self.slow = False

    async def FindMissing(self, request, context):
        missing = [d for d in request.digests if d.sha256 not in self.blobs]
        return blob_pb2.FindMissingResponse(missing=missing)

    async def Write(self, request_iterator, context):
        check, parts = None, []
        async for request in request_iterator:
            check = check or BlobCheck(digest_from_proto(request.digest))
            check.add(request.data)
            parts.append(request.data)
        check.finish()
        self.blobs[check.digest.sha256] = b"".join(parts)
        self.writes += 1
        return blob_pb2.WriteResponse(stored_bytes=check.digest.size_bytes)

    async def Read(self, request, context):
        data = self.blobs.get(request.digest.sha256)
        if data is None:
            await abort_with(context, NotFound("blob: absent (x); upload it", sha256="x"))
        for chunk in chunks_of(data):
            yield blob_pb2.ReadResponse(data=bytes(chunk))
            if self.slow:
                await asyncio.sleep(60)


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


def with_stub(store, work):
    """Do `work` with a stub of asyncio for a store."""

    async def run(address):
        async with aio_channel(address) as opened:
            return await work(BlobStub(opened))

    with serving(store) as address:
        return asyncio.run(run(address))


@pytest.mark.parametrize("data", [b"", b"x", LONG], ids=["empty", "one", "long"])
def test_blob_uploaded_twice_is_written_once_and_downloads_equal(data, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(data)

    async def work(stub):
        assert [await upload(stub, it) for it in (data, source)] == [digest_of(data)] * 2
        await download(stub, digest_of(data), target)

    store = MemoryStore()
    with_stub(store, work)
    assert store.writes == 1
    assert target.read_bytes() == data


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (None, NotFound),
        (LONG[:-1] + b"?", BlobCorrupt),
        (LONG[:-1], BlobCorrupt),
        (LONG + b"?", BlobCorrupt),
    ],
)
def test_download_that_fails_leaves_no_file(tmp_path, damage, error):
    store = MemoryStore()
    if damage is not None:
        store.blobs[digest_of(LONG).sha256] = damage

    async def work(stub):
        with pytest.raises(error):
            await download(stub, digest_of(LONG), tmp_path / "target")

    with_stub(store, work)
    assert list(tmp_path.iterdir()) == []


def test_download_that_is_cancelled_leaves_no_file(tmp_path):
    store = MemoryStore()
    store.blobs[digest_of(LONG).sha256] = LONG
    store.slow = True

    async def work(stub):
        task = asyncio.create_task(download(stub, digest_of(LONG), tmp_path / "target"))
        while not any(path.stat().st_size for path in tmp_path.iterdir()):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with_stub(store, work)
    assert list(tmp_path.iterdir()) == []


def test_error_with_a_long_message_crosses_whole():
    with serving(Failing()) as address, channel(address) as opened:
        stub = blob_pb2_grpc.BlobServiceStub(opened)
        request = blob_pb2.FindMissingRequest(digests=[digest_to_proto(digest_of(b""))])
        with pytest.raises(InvalidTarget) as caught, rpc_errors(address):
            stub.FindMissing(request, timeout=60)
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
                blob_pb2.FindMissingRequest(), timeout=60
            )
