from __future__ import annotations

import asyncio
import resource
import threading

import pytest
from farm_tracker.blob_writer import BlobWriter
from farm_tracker.cas import BlobStore, checked_digest
from farm_tracker.service.blob import BlobService

from farm.core.digest import Digest, digest_of
from farm.errors import BlobCorrupt, InvalidInput, NotFound, StoreFull
from farm.rpc.chunks import write_messages


@pytest.fixture
def store(tmp_path):
    return BlobStore(tmp_path, max_blob_bytes=1 << 22)


def everything(store, digest):
    async def collect():
        return [chunk async for chunk in store.read(digest)]

    return asyncio.run(collect())


def test_store_gives_back_what_was_put_under_two_levels_of_folders(store):
    digest = store.put(b"some bytes")
    name = digest.sha256
    assert store.path(digest) == store.blobs / name[:2] / name[2:4] / name
    assert store.get(digest) == b"some bytes"
    assert store.put(b"some bytes") == digest
    assert list(store.incoming.iterdir()) == []


def test_store_reads_in_chunks_of_a_mebibyte(store):
    data = bytes(range(256)) * 9000
    digest = store.put(data)
    chunks = everything(store, digest)
    assert [len(chunk) for chunk in chunks] == [1 << 20, 1 << 20, len(data) - (2 << 20)]
    assert b"".join(chunks) == data
    assert everything(store, store.put(b"")) == []


def test_store_finds_what_is_missing_by_name_and_size(store):
    here = store.put(b"here")
    wrong_size, absent = Digest(here.sha256, 5), digest_of(b"absent")
    assert store.missing([absent, here, wrong_size, absent]) == [absent, wrong_size]


@pytest.mark.parametrize("damage", [b"hurt", b"her", b"here and more"])
@pytest.mark.parametrize("how", ["get", "read"])
def test_store_removes_a_corrupt_blob_when_it_is_read(store, damage, how):
    digest = store.put(b"here")
    store.path(digest).write_bytes(damage)
    read = store.get if how == "get" else lambda it: everything(store, it)
    with pytest.raises(BlobCorrupt):
        read(digest)
    assert not store.path(digest).exists()
    with pytest.raises(NotFound):
        read(digest)


@pytest.mark.parametrize("data", [b"here", bytes(3 << 20)], ids=["short", "long"])
@pytest.mark.parametrize("damage", ["changed", "cut", "longer", "gone"])
def test_store_replaces_a_damaged_blob_when_it_is_put_again(store, data, damage):
    digest = store.put(data)
    hurt = {"changed": data[:-1] + b"!", "cut": data[:-1], "longer": data + b"!"}
    if damage == "gone":
        store.path(digest).unlink()
    else:
        store.path(digest).write_bytes(hurt[damage])
    assert not store.holds(digest)
    assert store.put(data) == digest
    assert store.holds(digest)
    assert store.get(digest) == data
    assert (store.usage().blobs, store.usage().used_bytes) == (1, len(data))


def test_reader_of_a_damaged_blob_leaves_the_one_that_has_replaced_it(store):
    data = bytes(3 << 20)
    digest = store.put(data)
    store.path(digest).write_bytes(data[:-1] + b"!")

    async def read():
        reading = store.read(digest)
        await anext(reading)
        store.put(data)
        with pytest.raises(BlobCorrupt):
            async for _ in reading:
                pass

    asyncio.run(read())
    assert store.get(digest) == data


def test_store_does_not_write_a_whole_blob_again(store):
    digest = store.put(b"here")
    before = store.path(digest).stat().st_ino
    store.put(b"here")
    assert store.path(digest).stat().st_ino == before


def test_store_never_gives_the_last_chunk_of_a_corrupt_blob(store):
    data = bytes(3 << 20)
    digest = store.put(data)
    store.path(digest).write_bytes(data[:-1] + b"\x01")
    got = []

    async def collect():
        async for chunk in store.read(digest):
            got.append(len(chunk))

    with pytest.raises(BlobCorrupt):
        asyncio.run(collect())
    assert got == [1 << 20, 1 << 20]


@pytest.mark.parametrize("content", [b"wrong", b"righ", b"right too"])
def test_writer_of_other_bytes_than_promised_leaves_nothing(store, content):
    digest = digest_of(b"right")

    def write():
        with BlobWriter(store, digest) as writer:
            writer.feed(content)
            writer.commit()

    with pytest.raises(BlobCorrupt):
        write()
    assert not store.has(digest)
    assert list(store.incoming.iterdir()) == []


def test_writer_that_is_given_up_leaves_nothing(store):
    with BlobWriter(store, digest_of(b"right")) as writer:
        writer.feed(b"ri")
    assert list(store.incoming.iterdir()) == []


def test_store_on_a_path_that_cannot_be_written_is_full(store):
    store.incoming.rmdir()
    with pytest.raises(StoreFull, match="No such file"):
        store.put(b"data")


@pytest.mark.parametrize("size_bytes", [5000, 3 << 20])
def test_store_on_a_full_disk_says_so_and_leaves_nothing(store, size_bytes):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # as a full disk, for this process
    try:
        with pytest.raises(StoreFull, match="cannot write"):
            store.put(bytes(size_bytes))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(store.incoming.iterdir()) == []
    assert store.put(bytes(size_bytes)) == digest_of(bytes(size_bytes))


def test_store_refuses_blobs_over_the_limit_and_impossible_ones(store):
    with pytest.raises(StoreFull, match="over the limit"):
        store.put(bytes((1 << 22) + 1))
    with pytest.raises(InvalidInput, match="no empty blob"):
        checked_digest(store, Digest("0" * 64, 0))
    assert checked_digest(store, digest_of(b"")) == digest_of(b"")


def test_store_starts_without_what_a_killed_one_left(tmp_path):
    store = BlobStore(tmp_path)
    (store.incoming / "half").write_bytes(b"half")
    assert list(BlobStore(tmp_path).incoming.iterdir()) == []


@pytest.mark.parametrize("step", ["claim", "take"])
def test_upload_that_is_cancelled_in_any_step_leaves_no_claim_and_no_file(store, step, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    inner = getattr(store, step)

    def slow(*args):
        if step == "take":
            inner(*args)
        begun.set()
        assert go_on.wait(20)
        if step == "claim":
            inner(*args)

    monkeypatch.setattr(store, step, slow)
    data = b"some bytes"

    async def messages():
        for message in write_messages(digest_of(data), data):
            yield message

    async def main():
        uploading = asyncio.ensure_future(BlobService(store).Write(messages(), None))
        await asyncio.to_thread(begun.wait, 20)
        uploading.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not uploading.done(), "its thread is at work"
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await uploading

    asyncio.run(main())
    assert store.usage().claimed_bytes == 0
    assert list(store.incoming.iterdir()) == []
    assert store.has(digest_of(data)) == (step == "take")
