"""Chunks of blobs, their messages and their check, without a wire."""

from __future__ import annotations

import asyncio
import itertools
import threading

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from farm.api.v1 import blob_pb2
from farm.core.digest import Digest, digest_of
from farm.core.limits import CHUNK_BYTES
from farm.core.wire import digest_from_proto, digest_to_proto
from farm.errors import BlobCorrupt, InvalidInput
from farm.rpc.blobs import digest_of_source, in_thread
from farm.rpc.chunks import BlobCheck, content_of, read_message, write_messages, written


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_messages_that_write_a_blob_are_its_digest_and_its_chunks(tmp_path, size):
    data = bytes(size)
    path = tmp_path / "blob"
    path.write_bytes(data)
    for source in (data, path):
        digest = digest_of_source(source)
        assert digest == digest_of(data)
        first, *rest = map(blob_pb2.WriteRequest.FromString, write_messages(digest, source))
        assert digest_from_proto(first.digest) == digest
        assert not any(request.HasField("digest") for request in rest)
        assert b"".join(request.data for request in rest) == data
        assert max((len(request.data) for request in rest), default=0) <= CHUNK_BYTES


SIZES = st.sampled_from([0, 1, 127, 128, 16_383, 16_384, CHUNK_BYTES]) | st.integers(0, 300)


@given(SIZES)
def test_message_of_a_chunk_is_what_protobuf_makes(size):
    data = bytes(size)
    (message,) = list(write_messages(digest_of(data), data))[1:] or [b""]
    assert message == blob_pb2.WriteRequest(data=data).SerializeToString()
    if data:  # protobuf leaves an empty field out
        assert read_message(data) == blob_pb2.ReadResponse(data=data).SerializeToString()


@given(st.binary(max_size=300), st.none() | st.binary(max_size=8), st.binary(max_size=4))
def test_messages_are_taken_as_protobuf_takes_them(data, digest, more):
    request = blob_pb2.WriteRequest(data=data)
    if digest is not None:
        request.digest.CopyFrom(digest_to_proto(digest_of(digest)))
    message = request.SerializeToString() + more
    for take, kind in ((written, blob_pb2.WriteRequest), (content_of, blob_pb2.ReadResponse)):
        try:
            expected = kind.FromString(message)
        except DecodeError:
            with pytest.raises(InvalidInput, match="not a message"):
                take(message)
            continue
        taken = take(message)
        fields, content = taken if isinstance(taken, tuple) else (None, taken)
        assert bytes(content) == expected.data
        if fields is None:
            assert kind is blob_pb2.ReadResponse or not expected.HasField("digest")
        else:
            assert fields == expected


@given(st.binary(max_size=40))
def test_any_bytes_are_taken_as_protobuf_takes_them(message):
    try:
        expected = blob_pb2.ReadResponse.FromString(message).data
    except DecodeError:
        with pytest.raises(InvalidInput, match="not a message"):
            content_of(message)
    else:
        assert bytes(content_of(message)) == expected


@given(st.binary(max_size=64), st.lists(st.integers(0, 64), max_size=4))
def test_check_of_any_cuts_of_a_blob_passes(data, cuts):
    check = BlobCheck(digest_of(data))
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, stop in itertools.pairwise(bounds):
        check.add(data[start:stop])
    check.finish()


def test_check_of_too_many_bytes_stops_at_once():
    check = BlobCheck(digest_of(b"abc"))
    check.add(b"ab")
    with pytest.raises(BlobCorrupt, match="too much"):
        check.add(b"cd")


def test_check_of_an_oversized_chunk_refuses_it():
    data = bytes(CHUNK_BYTES + 1)
    with pytest.raises(BlobCorrupt, match="too much"):
        BlobCheck(digest_of(data)).add(data)


@pytest.mark.parametrize("received", [b"", b"ab", b"abd"])
def test_check_of_other_bytes_does_not_finish(received):
    check = BlobCheck(digest_of(b"abc"))
    check.add(received)
    with pytest.raises(BlobCorrupt, match="do not match"):
        check.finish()


def test_digest_proto_round_trips_and_unset_is_refused():
    digest = digest_of(b"x")
    message = digest_to_proto(digest)
    assert digest_from_proto(message) == digest
    with pytest.raises(InvalidInput):
        digest_from_proto(type(message)())
    assert Digest("0" * 64, 0) == digest_from_proto(type(message)(sha256="0" * 64))


def test_nothing_is_taken_any_more_when_a_transfer_was_cancelled():
    begun, go_on = threading.Event(), threading.Event()
    taken = []

    def take(message):
        begun.set()
        assert go_on.wait(20)
        taken.append(message)

    async def messages():
        yield b"1"
        yield b"2"

    async def main():
        transfer = asyncio.ensure_future(in_thread(messages(), take))
        await asyncio.to_thread(begun.wait, 20)
        for _ in range(2):  # as often as that may be
            transfer.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            assert not transfer.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await transfer
        assert taken == [b"1"]

    asyncio.run(main())
