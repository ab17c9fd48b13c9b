"""Chunking and checking of blobs, without a wire."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.core.digest import Digest, digest_of
from farm.core.wire import digest_from_proto, digest_to_proto
from farm.errors import InfrastructureError, InvalidInput
from farm.rpc.blobs import CHUNK_BYTES, Assembly, digest_of_source, read_responses, write_requests


@pytest.mark.parametrize(
    ("size", "chunks"),
    [(0, [0]), (1, [1]), (CHUNK_BYTES, [CHUNK_BYTES]), (CHUNK_BYTES + 1, [CHUNK_BYTES, 1])],
)
def test_write_requests_of_a_size_carry_the_digest_once(tmp_path, size, chunks):
    data = bytes(size)
    path = tmp_path / "blob"
    path.write_bytes(data)
    for source in (data, path):
        digest = digest_of_source(source)
        requests = list(write_requests(digest, source))
        assert digest == digest_of(data)
        assert [len(request.data) for request in requests] == chunks
        assert [request.HasField("digest") for request in requests] == [True, False][: len(chunks)]
        assert digest_from_proto(requests[0].digest) == digest


@given(st.binary(max_size=64), st.lists(st.integers(0, 64), max_size=4))
def test_assembly_of_any_cuts_gives_the_blob(data, cuts):
    assembly = Assembly(digest_of(data))
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, stop in itertools.pairwise(bounds):
        assembly.add(data[start:stop])
    assert assembly.finish() == data


def test_assembly_with_too_many_bytes_stops_at_once():
    assembly = Assembly(digest_of(b"abc"))
    assembly.add(b"ab")
    with pytest.raises(InfrastructureError, match="too much"):
        assembly.add(b"cd")


def test_assembly_with_an_oversized_chunk_refuses_it():
    data = bytes(CHUNK_BYTES + 1)
    with pytest.raises(InfrastructureError, match="too much"):
        Assembly(digest_of(data)).add(data)


@pytest.mark.parametrize("received", [b"", b"ab", b"abd"])
def test_assembly_of_other_bytes_does_not_finish(received):
    assembly = Assembly(digest_of(b"abc"))
    assembly.add(received)
    with pytest.raises(InfrastructureError, match="do not match"):
        assembly.finish()


def test_read_responses_of_a_long_blob_join_to_it():
    data = bytes(range(256)) * 5000
    responses = list(read_responses(data))
    assert b"".join(response.data for response in responses) == data
    assert max(len(response.data) for response in responses) == CHUNK_BYTES


def test_digest_proto_round_trips_and_unset_is_refused():
    digest = digest_of(b"x")
    message = digest_to_proto(digest)
    assert digest_from_proto(message) == digest
    with pytest.raises(InvalidInput):
        digest_from_proto(type(message)())
    assert Digest("0" * 64, 0) == digest_from_proto(type(message)(sha256="0" * 64))
