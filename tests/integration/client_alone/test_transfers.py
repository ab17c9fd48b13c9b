"""Arrays and batches against a server that counts what moves, loses blobs and damages them."""

from __future__ import annotations

import _thread
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from farm.artifact import ParamSpec, Signature
from farm.client import RemoteFunction
from farm.client.batch import MESSAGE_BYTES, MESSAGE_CALLS, messages
from farm.client.layout import layout_of
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


def test_blob_that_the_store_lost_is_sent_again(
    client, tracker, large_artifact, artifact, monkeypatch
):
    x = np.arange(1 << 17, dtype=np.int32)
    client.submit(large_artifact, "large", [x])
    tracker.blobs.blobs.clear()
    client.submit(large_artifact, "large", [x])
    assert len(tracker.jobs.jobs) == 2
    monkeypatch.setattr("farm.client.session.MAX_INLINE_ARTIFACT_BYTES", 0)
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


def calls_of(count):
    return [("double", [np.full(4, n, np.int32)]) for n in range(count)]


def test_batch_returns_what_the_calls_would_in_order(module, tracker):
    results = module.batch(calls_of(100))
    assert [result.tolist() for result in results] == [[2 * n] * 4 for n in range(100)]
    assert all(result.flags.writeable and result.flags.aligned for result in results)
    (packed,) = tracker.sessions.packs
    assert (len(packed.functions), len(packed.order), packed.limit_s) == (1, 100, 30)
    assert module.batch([]) == []


def test_batch_takes_arrays_as_they_are_when_their_call_is_given(module):
    x = np.zeros(4, np.int32)

    def calls():
        for n in range(5):
            x[:] = n
            yield "double", [x]

    assert [result.tolist() for result in module.batch(calls())] == [[2 * n] * 4 for n in range(5)]


def test_batch_of_many_calls_has_several_messages_on_their_way(module, tracker):
    results = module.batch(calls_of(7 * MESSAGE_CALLS + 1))
    assert [result[0] for result in results] == list(range(0, 14 * MESSAGE_CALLS + 2, 2))
    packs = tracker.sessions.packs
    assert [len(packed.order) for packed in packs] == [MESSAGE_CALLS] * 7 + [1]
    assert [packed.follows for packed in packs] == [0] + [1] * 7


def test_batch_whose_calls_are_made_by_calling_goes_on(module):
    def calls():
        for n in range(2 * MESSAGE_CALLS):
            if n % MESSAGE_CALLS == 1:
                yield "double", [module["double"](np.full(4, n, np.int32))]
            yield "double", [np.full(4, n, np.int32)]

    results = [int(result[0]) for result in module.batch(calls())]
    assert len(results) == 2 * MESSAGE_CALLS + 2
    assert (results[1], results[2], results[-1]) == (4, 2, 4 * MESSAGE_CALLS - 2)


@pytest.mark.parametrize("size", [64 << 10, 256 << 10])
def test_batch_is_cut_before_a_message_becomes_too_large(size):
    for sizes in ((size, 1), (1, size)):
        x = ParamSpec("x", "uint8", (sizes[0],), "input")
        y = ParamSpec("y", "uint8", (sizes[1],), "output")
        signature = Signature((x, y))
        function = RemoteFunction(None, 1, "f", "llvm", signature, layout_of("f", signature))
        array = np.zeros(x.shape, np.uint8)
        cut = [it.request(0, 1).packed for it in messages([(function, [array])] * 40, None, 30.0)]
        assert sum(len(packed.order) for packed in cut) == 40
        assert len(cut) == -(-40 * size // MESSAGE_BYTES)


def test_batch_with_large_arrays_names_blobs(client, large_artifact, tracker):
    arrays = [np.full(1 << 17, n, np.int32) for n in range(25)]
    with client.acquire() as session:
        module = session.load(large_artifact)
        results = module.batch([("large", [array]) for array in arrays], limit_s=0.1)
    assert [int(result[0]) for result in results] == [2 * n for n in range(25)]
    batches = tracker.sessions.batches
    assert [len(batch.calls) for batch in batches] == [10, 10, 5]
    assert [batch.follows for batch in batches] == [0, 1, 1]
    assert [call.limit_s for call in batches[0].calls] == [pytest.approx(0.01)] * 10


@pytest.mark.parametrize("at", [0, MESSAGE_CALLS - 1, MESSAGE_CALLS + 3, 5 * MESSAGE_CALLS])
def test_batch_that_fails_somewhere_makes_no_call_after_it(module, tracker, x, at):
    calls = calls_of(6 * MESSAGE_CALLS)
    calls[at] = ("crash", [x])
    with pytest.raises(KernelCrashed, match=f"call {at}: kernel crash: SIGSEGV") as caught:
        module.batch(calls)
    assert caught.value.details["call"] == str(at)
    assert module["double"](x).tolist() == [0, 2, 4, 6]
    assert tracker.sessions.made == at + 1


def test_session_of_several_threads_gives_each_its_own_replies(module):
    def work(n):
        x = np.full(4, n, np.int32)
        single = [int(module["double"](x)[0]) for _ in range(20)]
        return single + [int(result[0]) for result in module.batch([("double", [x])] * 100)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(8))) == [[2 * n] * 120 for n in range(8)]


def test_interrupted_call_says_that_the_session_is_over(module, tracker, x, later):
    tracker.sessions.slow.clear()
    before = tracker.sessions.calling
    later(lambda: tracker.sessions.calling > before, _thread.interrupt_main)
    with pytest.raises(KeyboardInterrupt):
        module["double"](x)
    tracker.sessions.slow.set()
    with pytest.raises(InvalidInput, match="interrupted; acquire"):
        module["double"](x)


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
    assert tracker.sessions.packs == []
