"""What people let an account have: devices at once, what waits, device-seconds in a window."""

from __future__ import annotations

from dataclasses import replace

import pytest
from farm_tracker.state.account import NO_LIMITS, AccountLimits
from farm_tracker.state.events import AccountLimited, LeaseReleased, Tick
from farm_tracker.state.why import explain

from farm.errors import DeviceBusy, QuotaExceeded


@pytest.fixture
def limited(world):
    """Return a farm of two devices, and a function that limits the account alice."""
    world.limit(suspect_s=1e6, offline_s=2e6, prepare_s=1e6)
    world.join("agent", "dev0", "dev1")

    def limit(**limits):
        world.happen(AccountLimited("alice", AccountLimits(**limits), "olga"))
        return world

    return limit


def why(world, job_id):
    return explain(world.state, world.run_job(job_id), world.now).reason


def test_account_with_a_limit_of_devices_waits_while_others_go_on(limited):
    world = limited(held=1)
    world.happen(world.job("a0"))
    world.happen(world.job("a1", priority=9))
    world.happen(world.job("b0", account="bob"))
    assert [world.run_job(it).state for it in ("a0", "a1", "b0")] == [
        "RUNNING",
        "QUEUED",
        "RUNNING",
    ]
    assert why(world, "a1") == "account alice holds 1 devices, its limit"
    world.happen(AccountLimited("alice", AccountLimits(held=0)))
    assert world.run_job("a0").state == "RUNNING", "what it holds stays"
    world.join("agent", "dev0", "dev1", runs=(world.passed("a0.1"), world.passed("b0.1")))
    assert world.run_job("a1").state == "QUEUED"
    world.happen(AccountLimited("alice", NO_LIMITS))
    assert world.run_job("a1").state == "RUNNING"


def test_account_with_a_limit_of_what_waits_is_refused(limited):
    world = limited(held=0, queued=1)
    world.happen(world.job("a0"))
    with pytest.raises(QuotaExceeded, match="account alice: 1 requests wait already"):
        world.happen(world.job("a1"))
    with pytest.raises(QuotaExceeded, match="account alice: 1 requests wait already"):
        world.happen(replace(world.request("l"), account="alice"))
    world.happen(AccountLimited("alice", AccountLimits(held=1, queued=0)))
    assert world.run_job("a0").state == "RUNNING"
    with pytest.raises(DeviceBusy):
        world.happen(replace(world.request("l", wait_s=0.0), account="alice"))
    world.happen(AccountLimited("alice", AccountLimits(queued=0)))
    world.happen(replace(world.request("l"), account="alice"))
    assert world.state.leases["l"].state == "GRANTED", "it did not have to wait"


def test_account_that_used_its_budget_waits_for_the_next_window(limited):
    world = limited(device_s=10.0, window_s=100.0)
    start = world.now
    world.happen(world.job("a0"))
    world.happen(world.job("a1", "device_id=dev0"), after=4.0)
    world.join("agent", "dev0", "dev1", runs=(world.passed("a0.1"),), after=2.0)
    assert world.run_job("a1").state == "RUNNING", "6 of 10 are used"
    world.join("agent", "dev0", "dev1", runs=(world.passed("a1.1", 2),), after=5.0)
    world.happen(world.job("a2"))
    assert world.run_job("a2").state == "QUEUED"
    assert why(world, "a2") == (
        "account alice has used its 10 device-seconds of 100 s; more in 89 s"
    )
    with pytest.raises(DeviceBusy, match="has used its 10 device-seconds"):
        world.happen(replace(world.request("l", wait_s=0.0), account="alice"))
    world.happen(Tick(), after=start + 99.9 - world.now)
    assert world.run_job("a2").state == "QUEUED"
    world.happen(Tick(), after=0.2)
    assert world.run_job("a2").state == "RUNNING"


def test_account_is_charged_in_each_window_for_what_it_held_in_it(limited):
    world = limited(device_s=50.0, window_s=100.0)
    world.happen(replace(world.request("l", ttl_s=1e5), account="alice"))
    for _ in range(3):
        world.happen(Tick(), after=100.0)
    account = world.state.accounts["alice"]
    assert account.spent_s(world.now) == pytest.approx(0.0)
    assert account.spent_s(world.now + 30.0) == pytest.approx(30.0)
    world.happen(LeaseReleased("l", 1), after=20.0)
    assert world.state.accounts["alice"].spent_s(world.now) == pytest.approx(20.0)
    world.happen(Tick(), after=100.0)
    assert world.state.accounts["alice"].window_at is None


def test_account_limits_are_told_in_the_diary_once(limited):
    world = limited(held=1, device_s=3600.0)
    limited(held=1, device_s=3600.0)
    told = [it for it in world.state.notes if it.kind == "account.limited"]
    assert [(it.subject, it.text, it.actor) for it in told] == [
        ("alice", "1 devices at once, 3600 device-seconds in 86400 s", "olga")
    ]
