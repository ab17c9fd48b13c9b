from __future__ import annotations

import sqlite3
import stat
from dataclasses import replace

import pytest
from farm_tracker.state.model import (
    Admin,
    Agent,
    Description,
    Device,
    Lease,
    LeaseState,
    TimingClass,
)
from farm_tracker.state.state import Changes
from farm_tracker.state.work import (
    Attempt,
    BuildJob,
    BuildUnit,
    CacheEntry,
    Failure,
    ItemKind,
    JobState,
    Module,
    UnitSpec,
)
from farm_tracker.store import Store, StoredChanges

from farm.core.digest import digest_of
from farm.core.ids import AgentId, DeviceId, Epoch, LeaseId
from farm.errors import InfrastructureError
from farm.target import Selector

AGENT = Agent(
    AgentId("a"), "p2", "1", ("ea",), 2, "ray", "here", (DeviceId("d"),), former_instances=("p1",)
)
DEVICE = Device(
    Description(DeviceId("d"), ("t",), {"arch": "arm"}, TimingClass.EMULATED, ("arch:arm",)),
    AgentId("a"),
    admin=Admin.MAINTENANCE,
    epoch=Epoch(7),
)
LEASE = Lease(
    LeaseId("l"),
    Selector.parse("arch=arm"),
    "me",
    60.0,
    wait_until=100.0,
    state=LeaseState.ACTIVE,
    device_id=DeviceId("d"),
    agent_id=AgentId("a"),
    epoch=Epoch(7),
    expires_at=150.0,
    active_by=130.0,
)
SPEC = UnitSpec(ItemKind.HOST, "t", "0" * 16, "llvm/x", "f", digest_of(b"f"))
MODULE = Module(digest_of(b"o"), "elf-object", 1, ("arch:arm",), "cc 1", b"{}")
JOB = BuildJob("j", "key", "host", ("u",), True, 900.0, JobState.BUILDING)
UNIT = BuildUnit("u", SPEC, ("j",), 200.0, 2, 2)
ATTEMPT = Attempt("u.1", "u", "a", "p2", 300.0, 120.0, failure=Failure("X", "m", (("k", "v"),)))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tracker.db"


def everything() -> StoredChanges:
    changes = Changes(
        agents={"a": AGENT},
        devices={"d": DEVICE},
        leases={"l": LEASE},
        jobs={"j": JOB},
        attempts={"u.1": ATTEMPT},
        cached=[CacheEntry(SPEC, "0.1.0", MODULE)],
    )
    return StoredChanges(changes, {"u": UNIT})


def write(path, *stored: StoredChanges, now=100.0, wall=1000.0) -> None:
    store = Store(path)
    for it in stored:
        store.write(it, now, wall)
    store.close()


def test_store_loads_agents_devices_and_live_leases_on_the_new_clock(path):
    write(path, everything())
    store = Store(path)
    loaded = store.load(5.0, 1020.0)
    store.close()
    (agent,), (device,), (lease,) = loaded.agents, loaded.devices, loaded.leases
    assert agent == Agent(
        AgentId("a"),
        "p2",
        "1",
        ("ea",),
        2,
        "ray",
        "here",
        (DeviceId("d"),),
        last_report=5.0,
        former_instances=("p1",),
    )
    assert device == DEVICE
    # 50 s were left when it was written, 20 s have passed since.
    assert (lease.state, lease.epoch, lease.expires_at) == ("ACTIVE", 7, 35.0)
    assert loaded.ended_jobs == 1


def test_store_ends_jobs_and_attempts_of_a_former_run(path):
    write(path, everything())
    store = Store(path)
    store.load(5.0, 1020.0)
    assert store.load(6.0, 1021.0).ended_jobs == 0
    store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("select state, cause from builds").fetchall() == [
            ("CANCELLED", "the tracker was restarted")
        ]
        assert connection.execute("select state, failure from attempts").fetchall() == [
            ("LOST", '{"code":"X","details":[["k","v"]],"message":"m"}')
        ]
    connection.close()


def test_store_wall_clock_that_was_set_back_never_lengthens_a_lease(path):
    write(path, everything())
    store = Store(path)
    (lease,) = store.load(5.0, 0.0).leases
    store.close()
    assert lease.expires_at == 65.0


def test_store_looks_up_the_cache_by_everything_that_the_bytes_depend_on(path):
    write(path, everything())
    store = Store(path)
    other = UnitSpec(ItemKind.DEVICE, "t", "0" * 16, "llvm/x", "f", digest_of(b"f"))
    assert store.lookup([other], 0.0) == []
    assert store.lookup([SPEC, other], 0.0) == [CacheEntry(SPEC, "0.1.0", MODULE)]
    many = [
        UnitSpec(ItemKind.HOST, "t", "0" * 16, "x", f"f{i}", digest_of(b"f")) for i in range(450)
    ]
    assert store.lookup([*many, SPEC], 0.0) == [CacheEntry(SPEC, "0.1.0", MODULE)]
    store.close()


def test_store_write_is_whole_or_absent(path):
    store = Store(path)
    broken = everything()
    broken.units.clear()
    with pytest.raises(KeyError):
        store.write(broken, 0.0, 0.0)
    assert store.counts() == {
        "meta": 1,
        "agents": 0,
        "devices": 0,
        "counters": 0,
        "leases": 0,
        "builds": 0,
        "attempts": 0,
        "action_cache": 0,
        "jobs": 0,
        "run_attempts": 0,
        "accounts": 0,
        "events": 0,
    }
    store.close()


def test_store_is_in_wal_mode_with_full_synchronisation(path):
    store = Store(path)
    with store._engine.connect() as connection:
        pragmas = [
            connection.exec_driver_sql(f"pragma {name}").scalar()
            for name in ("journal_mode", "synchronous")
        ]
    store.close()
    assert pragmas == ["wal", 2]


def test_store_forgets_agents_that_are_gone(path):
    write(path, everything(), StoredChanges(Changes(agents={"a": None}), {}))
    store = Store(path)
    assert store.load(0.0, 0.0).agents == ()
    store.close()


def test_store_prunes_what_is_old_and_not_open_in_small_transactions(path, monkeypatch):
    monkeypatch.setattr("farm_tracker.store.PRUNED_AT_ONCE", 3)
    store = Store(path)
    for number in range(10):
        changes = Changes(
            jobs={f"j{number}": replace(JOB, job_id=f"j{number}", state=JobState.DONE)},
            cached=[CacheEntry(replace(SPEC, symbol=f"f{number}"), "1", MODULE)],
        )
        store.write(StoredChanges(changes, {}), 0.0, wall=1000.0 + number)
    store.write(everything(), 0.0, wall=1000.0)  # an open build, and an attempt under way
    assert store.prune(1005.0, 100.0) == 0
    store.lookup([replace(SPEC, symbol="f0")], wall=2000.0)
    rounds = []
    while rows := store.prune(2000.0, 995.0):
        rounds.append(rows)
    assert rounds == [6, 4]  # five builds, and five modules but the one that was used
    counts = store.counts()
    assert (counts["builds"], counts["attempts"], counts["action_cache"]) == (6, 1, 6)
    assert len(store.lookup([replace(SPEC, symbol="f0")], wall=2000.0)) == 1
    assert store.lookup([replace(SPEC, symbol="f1")], wall=2000.0) == []
    store.close()


def test_store_is_readable_for_its_owner_alone_also_if_it_was_not_before(path):
    path.touch(mode=0o644)
    path.chmod(0o644)
    store = Store(path)
    files = sorted(path.parent.glob("*.db*"))
    assert len(files) == 3  # with SQLite's log and index
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    store.close()


@pytest.mark.parametrize(
    "url",
    ["nosuch+driver://me:hunter2@host/farm", "postgresql+psycopg://me:hunter2@127.0.0.1:1/farm"],
)
def test_a_password_in_a_url_is_shown_to_nobody(url, caplog):
    with pytest.raises(InfrastructureError) as refusal:
        Store(url)
    assert "hunter2" not in str(refusal.value) + caplog.text
