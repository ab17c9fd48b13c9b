"""Arrays and batches against a server that counts what moves, loses blobs and damages them."""

from __future__ import annotations

import numpy as np
import pytest

from farm.client.batch import MAX_BATCH_BYTES
from farm.errors import BlobCorrupt, InvalidArguments, InvalidInput, KernelCrashed, NotFound


@pytest.fixture
def module(client, artifact):
    with client.acquire() as session:
        yield session.load(artifact)


def test_second_upload_of_the_same_bytes_moves_none_and_asks_nothing(
    client, tracker, large_artifact
):
    x = np.arange(1 << 17, dtype=np.int32)
    client.submit(large_artifact, "large", [x])
    written, asked = list(tracker.blobs.written), tracker.blobs.asked
    assert x.nbytes in written
    client.submit(large_artifact, "large", [x.copy()])
    assert (tracker.blobs.written, tracker.blobs.asked) == (written, asked)


def test_bytes_that_the_store_has_from_others_are_asked_for_but_not_sent(tracker, client):
    from farm.client import Client

    data = [bytes([n]) * 1000 for n in range(5)]
    digests = client._store.put_all(data)
    with Client(tracker.address) as other:
        asked = tracker.blobs.asked
        assert other._store.put_all([*data, b"new", b"new"])[:5] == digests
        assert tracker.blobs.asked == asked + 1
    assert sorted(tracker.blobs.written) == [3, *[1000] * 5]


def test_several_arrays_are_asked_for_in_one_message(client, tracker):
    arrays = [np.full(1 << 17, n, np.int32) for n in range(9)]
    tensors = client._store.tensors([*arrays, arrays[0]])
    assert (tracker.blobs.asked, len(tracker.blobs.written)) == (1, 9)
    for array, back in zip([*arrays, arrays[0]], client._store.arrays(tensors), strict=True):
        np.testing.assert_array_equal(array, back)


def test_blob_that_the_store_lost_is_sent_again(client, tracker, large_artifact, artifact):
    x = np.arange(1 << 17, dtype=np.int32)
    client.submit(large_artifact, "large", [x])
    tracker.blobs.blobs.clear()
    client.submit(large_artifact, "large", [x])
    assert len(tracker.jobs.jobs) == 2
    with client.acquire() as session:
        session.load(artifact)
        tracker.blobs.blobs.clear()
        assert set(session.load(artifact)) == {"double", "crash"}


def test_upload_that_the_store_refuses_is_not_taken_for_stored(client, tracker, monkeypatch):
    from farm.errors import StoreFull
    from farm.rpc.status import error_metadata

    full = StoreFull("store: no space left; free some")

    def refuse(request_iterator, context):
        context.set_trailing_metadata(error_metadata(full))
        context.abort(__import__("grpc").StatusCode.RESOURCE_EXHAUSTED, full.message)

    with monkeypatch.context() as patch:
        patch.setattr(tracker.blobs, "Write", refuse)
        tracker.stop()
        tracker.start()
        with pytest.raises(StoreFull, match="no space"):
            client._store.put(b"some bytes")
    tracker.stop()
    tracker.start()
    digest = client._patience().call(lambda _: client._store.put(b"some bytes"))
    assert client._store.get(digest) == b"some bytes"


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (9 << 20) + 7])
def test_blob_of_any_size_comes_back(client, size):
    data = np.random.default_rng(size).bytes(size)
    assert client._store.get(client._store.put(data)) == data


@pytest.mark.parametrize("size", [10, 5 << 20])
def test_damaged_blob_is_refused(client, tracker, size):
    digest = client._store.put(bytes(size))
    tracker.blobs.damage = True
    with pytest.raises(BlobCorrupt, match="do not match"):
        client._store.get(digest)


def test_blob_with_more_bytes_than_its_digest_says_is_refused(client, tracker):
    digest = client._store.put(b"abc")
    tracker.blobs.blobs[digest.sha256] = b"abcd"
    with pytest.raises(BlobCorrupt, match="too much"):
        client._store.get(digest)
    tracker.blobs.blobs[digest.sha256] = b"ab"
    with pytest.raises(BlobCorrupt, match="do not match"):
        client._store.get(digest)


def test_absent_blob_is_not_found(client, tracker):
    digest = client._store.put(b"abc")
    tracker.blobs.blobs.clear()
    with pytest.raises(NotFound):
        client._store.get(digest)


def test_batch_returns_what_the_calls_would_in_order(module, tracker):
    calls = [("double", [np.full(4, n, np.int32)]) for n in range(100)]
    results = module.batch(calls)
    assert [result.tolist() for result in results] == [[2 * n] * 4 for n in range(100)]
    (batch,) = tracker.sessions.batches
    assert [call.limit_s for call in batch.calls] == [pytest.approx(0.3)] * 100
    assert module.batch([]) == []


def test_batch_is_cut_where_its_limit_would_leave_too_little_for_each_call(module, tracker):
    results = module.batch([("double", [np.zeros(4, np.int32)])] * 25, limit_s=0.1)
    assert len(results) == 25
    assert [len(batch.calls) for batch in tracker.sessions.batches] == [10, 10, 5]


def test_batch_is_cut_before_a_message_becomes_too_large(tracker):
    from farm.api.v1 import session_pb2, tensor_pb2
    from farm.client.batch import requests

    call = session_pb2.CallRequest(inputs=[tensor_pb2.Tensor(inline=bytes(1 << 20))])
    cut = [len(batch.calls) for batch in requests([(call, 0)] * 40, 30.0)]
    assert sum(cut) == 40
    assert max(cut) * call.ByteSize() <= MAX_BATCH_BYTES
    assert [len(b.calls) for b in requests([(session_pb2.CallRequest(), 8 << 20)] * 5, 30.0)] == [
        *(2, 2, 1)
    ]


def test_batch_that_fails_says_at_which_call_and_the_session_goes_on(module, x):
    calls = [("double", [x]), ("double", [x]), ("crash", [x]), ("double", [x])]
    with pytest.raises(KernelCrashed, match="call 2: kernel crash: SIGSEGV") as caught:
        module.batch(calls)
    assert caught.value.details["call"] == "2"
    assert module["double"](x).tolist() == [0, 2, 4, 6]


def test_batch_with_arrays_that_do_not_fit_is_not_sent(module, tracker, x):
    with pytest.raises(InvalidArguments):
        module.batch([("double", [x]), ("double", [np.zeros(5, np.int32)])])
    with pytest.raises(NotFound, match="absent"):
        module.batch([("absent", [x])])
    with pytest.raises(InvalidInput, match="limit_s"):
        module.batch([("double", [x])], limit_s=601)
    assert tracker.sessions.batches == []
