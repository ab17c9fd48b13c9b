from __future__ import annotations

import os

import pytest
from farm_tracker.reserve import Reserve
from farm_tracker.state.notes import Note
from farm_tracker.state.state import Changes
from farm_tracker.store import Store, StoredChanges
from sqlalchemy.exc import OperationalError

from farm.errors import StoreFull


class Disk:
    """A quota in place of what the disk says is free."""

    free = 10_000


@pytest.fixture
def disk(monkeypatch):
    disk = Disk()
    real = os.statvfs
    monkeypatch.setattr(
        "farm_tracker.reserve.os.statvfs", lambda path: _with_free(real(path), disk.free)
    )
    return disk


def _with_free(found, free):
    fields = list(found)
    fields[1], fields[4] = 1, free
    return os.statvfs_result(fields)


def test_reserve_occupies_its_size_until_it_is_given_up(tmp_path, disk):
    path = tmp_path / "reserve"
    reserve = Reserve(path, 1000)
    assert reserve.take()
    assert path.stat().st_blocks * 512 >= 1000
    reserve.check()
    assert reserve.give_up()
    assert not path.exists()
    assert not reserve.give_up()


def test_reserve_that_cannot_be_had_refuses_new_work_until_there_is_room(tmp_path, disk):
    reserve = Reserve(tmp_path / "reserve", 1000)
    disk.free = 1999
    with pytest.raises(StoreFull, match=r"1999 bytes free in .*, 2000 are needed"):
        reserve.check()
    disk.free = 2000
    reserve.check()
    disk.free = 249
    with pytest.raises(StoreFull, match=r"249 bytes free in .*, 250 are needed"):
        reserve.check()
    disk.free = 250
    reserve.check()


def test_store_gives_its_reserve_up_for_a_write_that_finds_the_disk_full(tmp_path):
    store = Store(tmp_path / "tracker.db", reserve_bytes=1 << 16)
    reserve = tmp_path / "tracker.db.reserve"
    assert reserve.exists()
    with store._engine.connect() as connection:
        pages = connection.exec_driver_sql("pragma page_count").scalar()
        connection.exec_driver_sql(f"pragma max_page_count = {pages}")
    notes = [Note(number, 0.0, "kind", "s", "t" * 500) for number in range(1, 100)]
    with pytest.raises(OperationalError, match="full"):
        store.write(StoredChanges(Changes(notes=notes), {}), 0.0, 0.0)
    assert not reserve.exists()
    assert store.counts()["events"] == 0
    store.close()


def test_store_whose_disk_has_less_than_the_reserve_says_so_when_it_is_opened(
    tmp_path, disk, caplog
):
    disk.free = 1500
    Store(tmp_path / "tracker.db", reserve_bytes=1000).close()
    (warning,) = [it for it in caplog.records if it.levelname == "WARNING"]
    assert warning.getMessage().startswith(
        "disk nearly full: new jobs are refused until 2000 bytes are free in"
    )
    caplog.clear()
    disk.free = 2000
    Store(tmp_path / "tracker.db", reserve_bytes=1000).close()
    assert [it for it in caplog.records if it.levelname == "WARNING"] == []
