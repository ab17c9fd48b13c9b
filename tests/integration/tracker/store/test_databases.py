from __future__ import annotations

from dataclasses import replace

import pytest
from farm_tracker import adopting, dialects
from farm_tracker.state.account import Account, AccountLimits
from farm_tracker.state.demand import Variant
from farm_tracker.state.model import (
    Admin,
    Agent,
    Description,
    Device,
    Lease,
    LeaseState,
    Limits,
    TimingClass,
    Use,
)
from farm_tracker.state.notes import Note
from farm_tracker.state.run import (
    LogPart,
    Outcome,
    RunAttempt,
    RunAttemptState,
    RunJob,
    RunState,
    Verdict,
)
from farm_tracker.state.state import Changes, State
from farm_tracker.state.work import Failure
from farm_tracker.store import NOTES_KEPT, Store, StoredChanges

from farm.core.digest import digest_of
from farm.errors import InfrastructureError
from farm.target import Selector

JOB = RunJob(
    job_id="j",
    account="alice",
    client_key="k",
    content="c" * 64,
    selector=Selector.parse("arch=arm"),
    run=b"\0run",
    limit_s=5.0,
    priority=-3,
    queue_limit_s=60.0,
    cancel_when_unwatched=True,
    queued_at=90.0,
    queue_until=150.0,
    infra_left=1,
    lost_left=2,
    state=RunState.RUNNING,
    attempt_id="j.2",
    attempt_ids=("j.1", "j.2"),
    lost_devices=("e",),
    shunned=("e", "f"),
    elsewhere_until=160.0,
    log=(LogPart("j.1", digest_of(b"log")), LogPart("j.2", None)),
    log_bytes=3,
    watchers=2,
    not_before=99.0,
    variants=(Variant("ea -config=ea16", "ea", ("ea:1", "arch:arm")), Variant("t", "f", ())),
)
LOST = RunAttempt(
    "j.1",
    "j",
    "j.1.lease",
    "e",
    "a",
    "p1",
    4,
    91.0,
    state=RunAttemptState.LOST,
    failure=Failure("DEVICE_LOST", "m", (("k", "v"),)),
    log_chunks=1,
    ended_at=95.0,
)
RUNNING = RunAttempt("j.2", "j", "j.2.lease", "d", "a", "p1", 7, 96.0)
LEASE = Lease(
    "j.2.lease",
    JOB.selector,
    "job j",
    95.0,
    wait_until=96.0,
    state=LeaseState.ACTIVE,
    device_id="d",
    agent_id="a",
    epoch=7,
    expires_at=191.0,
    account="alice",
    priority=-3,
    job_id="j",
    queued_at=90.0,
    granted_at=96.0,
)
ENDED = replace(
    JOB,
    job_id="old",
    client_key="",
    state=RunState.TERMINAL,
    outcome=Outcome.COMPLETED,
    verdict=Verdict.PASS,
    result=b"\0\xff",
    attempt_id=None,
    attempt_ids=("old.1",),
    ended_at=80.0,
    forget_at=86_480.0,
    queued_at=70.0,
)
DONE = replace(RUNNING, attempt_id="old.1", job_id="old", state=RunAttemptState.DONE, ended_at=80.0)
DEVICE = Device(
    Description("d", ("t",), {"arch": "arm"}, TimingClass.NATIVE, ()),
    "a",
    admin=Admin.DRAINING,
    use=Use.LEASED,
    epoch=7,
    admin_reason="fan",
    admin_actor="olga",
    admin_until=400.0,
)
AGENT = Agent("a", "p1", "1", (), 0, "ray", "here", ("d",))
LIMITS = AccountLimits(held=3, device_s=40.0, window_s=100.0)
ACCOUNT = Account(
    *("alice", 12.5, 95.0),
    held=1,
    held_since_s=96.0,
    limits=LIMITS,
    window_at=91.0,
    window_used_s=2.5,
)


def everything() -> StoredChanges:
    changes = Changes(
        agents={"a": AGENT},
        devices={"d": DEVICE},
        leases={"j.2.lease": LEASE},
        run_jobs={"j": JOB, "old": ENDED},
        run_attempts={"j.1": LOST, "j.2": RUNNING, "old.1": DONE},
        accounts={"alice": ACCOUNT},
        notes=[Note(1, 90.0, "job.submitted", "j", "for arch=arm", "olga", "alice")],
    )
    return StoredChanges(changes, {})


@pytest.fixture
def reopened(open_store):
    """Return what a store loads 20 s later, on a clock that began anew."""

    def load(*stored, at=5.0, wall=1020.0):
        store = open_store()
        for it in stored:
            store.write(it, 100.0, 1000.0)
        store.close()
        store = open_store()
        loaded = store.load(at, wall)
        store.close()
        return loaded

    return load


def test_store_gives_back_jobs_and_attempts_on_the_new_clock(reopened):
    loaded = reopened(everything())
    shift = 5.0 - 120.0  # what was at 120 s of the old clock is at 5 s of the new
    ended, job = loaded.run_jobs
    assert replace(job, story=()) == replace(
        JOB,
        watchers=0,
        queued_at=90.0 + shift,
        queue_until=150.0 + shift,
        forget_at=shift,
        not_before=99.0 + shift,
        elsewhere_until=160.0 + shift,
    )
    assert replace(ended, story=()) == replace(
        ENDED,
        watchers=0,
        queued_at=70.0 + shift,
        not_before=99.0 + shift,
        queue_until=150.0 + shift,
        elsewhere_until=160.0 + shift,
        ended_at=80.0 + shift,
        forget_at=86_480.0 + shift,
    )
    assert {it.attempt_id: it for it in loaded.run_attempts} == {
        "j.1": replace(LOST, started_at=91.0 + shift, ended_at=95.0 + shift),
        "j.2": replace(RUNNING, started_at=96.0 + shift),
        "old.1": replace(DONE, started_at=96.0 + shift, ended_at=80.0 + shift),
    }
    assert loaded.accounts == (
        replace(ACCOUNT, usage_at=95.0 + shift, held=0, held_since_s=0.0, window_at=91.0 + shift),
    )
    assert loaded.notes == (replace(everything().changes.notes[0], at=90.0 + shift),)
    (lease,) = loaded.leases
    assert (lease.job_id, lease.account, lease.priority) == ("j", "alice", -3)
    assert (lease.queued_at, lease.granted_at) == (90.0 + shift, 96.0 + shift)


def test_store_of_a_wall_clock_that_was_set_back_never_lengthens_a_wait(reopened):
    ended, job = reopened(everything(), wall=0.0).run_jobs
    assert job.queue_until == 65.0
    assert ended.forget_at == 5.0 + 86_380.0


def test_store_forgets_what_the_state_forgot(reopened):
    gone = Changes(
        leases={"j.2.lease": None},
        run_jobs={"j": None},
        run_attempts={"j.1": None, "j.2": None},
        accounts={"alice": None},
    )
    loaded = reopened(everything(), StoredChanges(gone, {}))
    assert [it.job_id for it in loaded.run_jobs] == ["old"]
    assert [it.attempt_id for it in loaded.run_attempts] == ["old.1"]
    assert (loaded.leases, loaded.accounts) == ((), ())


def test_store_keeps_the_newest_notes_only(open_store):
    store = open_store()
    for start in range(1, NOTES_KEPT + 2001, 1000):
        notes = [Note(n, 0.0, "kind", "s", "t") for n in range(start, start + 1000)]
        store.write(StoredChanges(Changes(notes=notes), {}), 0.0, 0.0)
    assert store.counts()["events"] == NOTES_KEPT
    loaded = store.load(0.0, 0.0)
    assert [loaded.notes[0].number, loaded.notes[-1].number] == [2001, NOTES_KEPT + 2000]
    store.close()


def test_adopting_makes_a_state_that_holds_and_gives_watchers_time_to_come_back(reopened):
    loaded = reopened(everything())
    state = State(Limits())
    state.apply(adopting.changes_of(loaded, 5.0, state.limits))
    device = state.devices["d"]
    assert (device.use, device.admin, device.admin_reason) == ("LEASED", "DRAINING", "fan")
    assert device.admin_until == 285.0
    assert state.run_jobs["j"].unwatched_until == 65.0
    assert (state.accounts["alice"].held, state.accounts["alice"].queued) == (1, 0)
    assert state.client_jobs == {("alice", "k"): "j"}
    assert state.note_number == 1
    assert state.next_deadline() is not None


def test_adopting_refuses_a_running_job_without_its_lease(reopened):
    broken = everything()
    broken.changes.leases.clear()
    with pytest.raises(InfrastructureError, match="job j runs without a live lease"):
        adopting.changes_of(reopened(broken), 5.0, Limits())


def test_second_tracker_on_one_server_is_refused_until_the_first_lets_go(postgresql, monkeypatch):
    monkeypatch.setattr(dialects, "HOLD_WAIT_S", 0.1)
    first = Store(postgresql)
    with pytest.raises(InfrastructureError, match="another tracker uses it"):
        Store(postgresql)
    first.close()
    Store(postgresql).close()


def test_store_of_a_tracker_url_refuses_an_unknown_database():
    with pytest.raises(InfrastructureError, match="cannot be opened"):
        Store("nonsense://x")
