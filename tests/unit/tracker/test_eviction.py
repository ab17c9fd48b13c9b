"""The store's limit: what was not used for longest goes first, and never what must stay."""

from __future__ import annotations

import os
import threading

import pytest
from farm_tracker import cas
from farm_tracker.blob_index import MARK_EVERY_S
from farm_tracker.blob_writer import BlobWriter
from farm_tracker.cas import BlobStore, default_limit
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from farm.core.digest import Digest, digest_of
from farm.errors import NotFound, StoreFull

LIMIT = 10_000
HOLD_S = 100.0


class Clock:
    """A clock that tests move."""

    def __init__(self):
        self.at = 1000.0

    def now(self):
        return self.at

    def wall(self):
        return 1e9 + self.at


def content(number, size_bytes):
    return number.to_bytes(4, "big") + bytes(size_bytes - 4)


def folder_sizes(store):
    return {it.name: it.stat().st_size for it in store.blobs.glob("*/*/*")}


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def open_store(tmp_path, clock):
    def make(**options):
        given = {"limit_bytes": LIMIT, "hold_s": HOLD_S, "clock": clock, **options}
        return BlobStore(tmp_path, **given)

    return make


def test_eviction_takes_what_was_not_used_for_longest_and_no_more_than_it_must(open_store, clock):
    store = open_store()
    digests = []
    for number in range(10):
        digests.append(store.put(content(number, 1000)))
        clock.at += 1.0
    clock.at += HOLD_S
    assert store.has(digests[0])
    store.get(digests[2])
    store.put(content(99, 1000))
    # 1,000 bytes were needed, and a twentieth of the limit more.
    assert store.missing(digests) == [digests[1], digests[3]]
    usage = store.usage()
    assert (usage.blobs, usage.used_bytes, usage.evicted.blobs) == (9, 9000, 2)
    assert (usage.limit_bytes, usage.evicted.size_bytes) == (LIMIT, 2000)


def test_eviction_spares_what_is_pinned_and_what_somebody_was_told_of_just_now(open_store, clock):
    store = open_store()
    digests = [store.put(content(number, 2000)) for number in range(5)]
    store.pinned = lambda: {digests[0].sha256, digests[1].sha256}
    with pytest.raises(
        StoreFull, match=r"no room in the store \(10000 bytes in use, limit 10000\)"
    ):
        store.put(content(9, 2000))
    clock.at += HOLD_S + 1
    assert store.missing(digests[2:3]) == []  # a client asks, and has 100 s from here
    store.put(content(9, 2000))
    assert store.missing(digests) == digests[3:]
    assert store.usage().pinned_bytes == 4000
    with pytest.raises(StoreFull):
        store.put(content(8, 9000))


def test_store_that_is_full_still_says_of_what_it_has_that_it_has_it(open_store):
    store = open_store()
    digest = store.put(content(1, LIMIT))
    assert store.put(content(1, LIMIT)) == digest


def test_uploads_under_way_count_and_give_their_room_back(open_store, clock):
    store = open_store()
    old = store.put(content(0, 1000))
    clock.at += HOLD_S + 1
    big = content(1, 6000)
    with BlobWriter(store, digest_of(big)) as writer:
        writer.feed(big)
        with pytest.raises(StoreFull):
            store.put(content(2, 5000))
        assert store.usage().claimed_bytes == 6000
        writer.commit()
        assert (store.usage().claimed_bytes, store.usage().used_bytes) == (0, 7000)
    assert store.has(old), "nothing goes for what is refused anyway"
    with BlobWriter(store, digest_of(b"given up")):
        assert store.usage().claimed_bytes == 8
    assert store.usage().claimed_bytes == 0


def test_blob_that_can_never_have_room_evicts_nothing(open_store, clock):
    store = open_store()
    pinned, *others = [store.put(content(number, 2000)) for number in range(4)]
    store.pinned = lambda: {pinned.sha256}
    clock.at += HOLD_S + 1
    for size in (LIMIT + 1, LIMIT - 1999):
        with pytest.raises(StoreFull):
            store.put(content(9, size))
    assert store.usage().evicted.blobs == 0
    store.put(content(9, LIMIT - 2000))
    assert store.missing([pinned, *others]) == others


def test_store_remembers_the_order_of_use_over_a_restart(open_store, clock):
    store = open_store()
    digests = [store.put(content(number, 3000)) for number in range(3)]
    clock.at += MARK_EVERY_S
    store.has(digests[0])
    clock.at += HOLD_S + 1
    again = open_store()
    again.put(content(9, 3000))
    assert again.missing(digests) == digests[1:2]


def test_store_whose_wall_clock_was_set_back_takes_blobs_for_used_just_now(open_store, clock):
    store = open_store()
    digest = store.put(content(0, 9000))
    os.utime(store.path(digest), (2e9, 2e9))
    again = open_store()
    with pytest.raises(StoreFull):
        again.put(content(1, 9000))
    clock.at += HOLD_S + 1
    again.put(content(1, 9000))


def test_store_makes_room_on_a_full_disk_too(open_store, clock, monkeypatch):
    store = open_store(limit_bytes=0, keep_free_bytes=1)
    digest = store.put(content(0, 4096))
    clock.at += HOLD_S + 1
    facts = os.statvfs(store.incoming)
    full = os.statvfs_result((*facts[:4], 0, *facts[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: full if store.path(digest).exists() else facts)
    store.put(content(1, 100))
    assert not store.has(digest)


def test_store_on_a_full_disk_blames_the_disk_not_the_limit(open_store, monkeypatch):
    store = open_store(keep_free_bytes=7)
    facts = os.statvfs(store.incoming)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*facts[:4], 0, *facts[5:])))
    told = r"the tracker's disk is full \(0 bytes free, 7 of them stay for results\); free space"
    with pytest.raises(StoreFull, match=told):
        store.put(content(1, 100))


def test_store_that_is_new_may_take_half_of_its_disk(tmp_path):
    facts = os.statvfs(tmp_path)
    assert 0 < default_limit(tmp_path) <= facts.f_blocks * facts.f_frsize // 2


class Operations(RuleBasedStateMachine):
    """Whatever happens to a store, its accounting is the folder's and what must stay stays."""

    make = None
    clock = None

    @initialize(folder=st.integers())
    def begin(self, folder):
        self.clock = Clock()
        self.root = type(self).make() / str(os.urandom(4).hex())
        self.pins = set()
        self.used = {}  # name: when it was used last
        self.writers = []
        self.store = self.open()

    def open(self):
        store = BlobStore(self.root, limit_bytes=LIMIT, hold_s=HOLD_S, clock=self.clock)
        store.pinned = lambda: self.pins
        return store

    def names(self):
        return sorted(folder_sizes(self.store))

    def note_use(self, digest):
        self.used[digest.sha256] = self.clock.at

    def needed(self):
        """Return the size of what may not go now."""
        return sum(
            size
            for name, size in folder_sizes(self.store).items()
            if name in self.pins or self.clock.at - self.used[name] < HOLD_S
        )

    @rule(number=st.integers(0, 30), size=st.sampled_from([100, 1000, 3000, 9000, 10_001]))
    def put(self, number, size):
        data = content(number, size)
        digest = digest_of(data)
        claimed = sum(it._digest.size_bytes for it in self.writers)
        fits = self.needed() + claimed + size <= LIMIT or digest.sha256 in self.names()
        try:
            self.store.put(data)
        except StoreFull:
            assert not fits, "refused although there was room to make"
        else:
            assert fits, "the limit was passed"
            self.note_use(digest)

    @rule(number=st.integers(100, 110), size=st.sampled_from([500, 4000]))
    def begin_upload(self, number, size):
        data = content(number, size)
        writer = BlobWriter(self.store, digest_of(data))
        try:
            writer.open()
        except StoreFull:
            return
        writer.feed(data)
        self.writers.append(writer)

    @precondition(lambda self: self.writers)
    @rule(commits=st.booleans())
    def end_upload(self, commits):
        writer = self.writers.pop()
        if commits:
            writer.commit()
            self.note_use(writer._digest)
        writer.close()

    @precondition(lambda self: self.names())
    @rule(data=st.data(), what=st.sampled_from(["has", "get", "pin", "unpin", "delete", "spoil"]))
    def touch(self, data, what):
        name = data.draw(st.sampled_from(self.names()))
        digest = Digest(name, folder_sizes(self.store)[name])
        match what:
            case "has":
                assert self.store.has(digest)
                self.note_use(digest)
            case "get":
                assert len(self.store.get(digest)) == digest.size_bytes
                self.note_use(digest)
            case "pin":
                self.pins.add(name)
            case "unpin":
                self.pins.discard(name)
            case "delete":  # by somebody else
                self.store.path(digest).unlink()
                self.pins.discard(name)
                assert not self.store.has(digest)
            case "spoil":
                path = self.store.path(digest)
                path.write_bytes(bytes(it ^ 1 for it in path.read_bytes()))
                self.pins.discard(name)
                with pytest.raises(Exception, match="corrupt"):
                    self.store.get(digest)
                with pytest.raises(NotFound):
                    self.store.get(digest)

    @rule(after=st.sampled_from([1.0, 50.0, 101.0, 1000.0]))
    def wait(self, after):
        self.clock.at += after

    @rule()
    def crash(self):
        """Die, with what was being uploaded: marks of use are up to a minute old then."""
        for writer in self.writers:
            writer._file.close()
        self.writers.clear()
        self.store = self.open()
        now, wall = self.clock.now(), self.clock.wall()
        for name in self.names():
            marked = now - (wall - self.store.path(Digest(name, 0)).stat().st_mtime)
            assert marked >= self.used[name] - MARK_EVERY_S - 1e-3
            self.used[name] = marked

    @invariant()
    def accounting_is_the_folder(self):
        sizes = folder_sizes(self.store)
        usage = self.store.usage()
        assert (usage.used_bytes, usage.blobs) == (sum(sizes.values()), len(sizes))
        assert usage.claimed_bytes == sum(it._digest.size_bytes for it in self.writers)
        assert usage.used_bytes + usage.claimed_bytes <= LIMIT

    @invariant()
    def what_is_pinned_stays(self):
        assert self.pins <= set(self.names())

    def teardown(self):
        for writer in self.writers:
            writer.close()


def test_any_operations_keep_what_is_pinned_and_the_limit(tmp_path):
    machine = type("AnyOperations", (Operations,), {"make": staticmethod(lambda: tmp_path)})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=25, stateful_step_count=30, deadline=None)
    )


def test_eviction_of_many_blobs_lets_others_in_between_and_spares_what_they_use(
    open_store, clock, monkeypatch
):
    monkeypatch.setattr(cas, "EVICTED_AT_ONCE", 4)
    store = open_store()
    digests = [store.put(content(number, 100)) for number in range(100)]
    clock.at += HOLD_S + 1
    pauses = []

    def pause(_):
        """Whoever asks for a blob between two slices is not kept waiting."""
        asking = threading.Thread(target=store.has, args=(digests[38],), daemon=True)
        asking.start()
        asking.join(60)
        assert not asking.is_alive(), "the store is locked between two slices"
        pauses.append(len(folder_sizes(store)))

    monkeypatch.setattr(cas.time, "sleep", pause)
    store.put(content(1000, 4000))  # needs 40 blobs to go, and takes 5 more
    assert pauses[:3] == [96, 92, 88]
    kept = set(digests) - set(store.missing(digests))
    assert digests[38] in kept
    usage = store.usage()
    assert (usage.used_bytes, usage.evicted.blobs) == (9600, 44)
    assert usage.used_bytes == sum(folder_sizes(store).values())


def test_eviction_goes_on_if_others_took_the_room_that_it_made(open_store, clock, monkeypatch):
    monkeypatch.setattr(cas, "EVICTED_AT_ONCE", 4)
    store = open_store()
    for number in range(100):
        store.put(content(number, 100))
    clock.at += HOLD_S + 1
    taken = []

    def pause(_):
        if not taken:
            taken.append(store.put(content(2000, 300)))

    monkeypatch.setattr(cas.time, "sleep", pause)
    digest = store.put(content(1000, 1500))
    assert store.missing([digest, *taken]) == []
    assert store.usage().used_bytes <= LIMIT
