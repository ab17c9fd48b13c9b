from __future__ import annotations

from dataclasses import replace

import pytest
from farm_tracker.state.account import Account
from farm_tracker.state.commands import GrantLease
from farm_tracker.state.events import LeaseReleased, Tick

from farm.errors import DeviceBusy


def holder_of(world, device_id="dev0"):
    lease = world.state.leases[world.state.devices[device_id].lease_id]
    return lease.job_id or lease.lease_id


def serve(world, *, for_s=1.0):
    """Let whoever holds dev0 run for a while; return who gets it next."""
    world.now += for_s
    held = world.state.leases[world.state.devices["dev0"].lease_id]
    if held.job_id is None:
        world.happen(LeaseReleased(held.lease_id, held.epoch))
        world.join()
    else:
        world.join(runs=(world.passed(world.run_job(held.job_id).attempt_id, held.epoch),))
    return holder_of(world) if world.state.devices["dev0"].lease_id else None


def test_queue_serves_higher_priorities_first_and_equal_ones_in_order(world):
    world.join()
    world.happen(world.request("first"))
    for job_id, priority in (("low", -5), ("a", 0), ("high", 7), ("b", 0)):
        world.happen(world.job(job_id, priority=priority), after=0.1)
    assert [serve(world) for _ in range(4)] == ["high", "a", "b", "low"]


def test_queue_counts_against_no_limit_of_those_who_wait_in_it(world):
    world.join()
    jobs = [f"j{number}" for number in range(50)]
    for job_id in jobs:  # each may run for 10 s, and runs for nearly as long
        world.happen(world.job(job_id, limit_s=10.0))
    began = world.now
    for _ in jobs:
        for _ in range(3):
            held = world.state.leases[world.state.devices["dev0"].lease_id]
            attempt = world.run_job(held.job_id).attempt_id
            runs = (world.running(attempt, held.epoch),)
            world.join(held={"dev0": held.epoch}, runs=runs, after=3.0)
        serve(world, for_s=0.5)
    assert world.now - began == 50 * 9.5
    for job_id in jobs:
        job = world.run_job(job_id)
        assert (job.outcome, job.verdict, len(job.attempt_ids)) == ("COMPLETED", "PASS", 1)


def test_queue_holds_leases_and_jobs_alike(world):
    world.join()
    world.happen(world.request("l1"))
    world.happen(world.job("j1", account="local"), after=0.1)
    world.happen(world.request("l2", wait_s=100.0), after=0.1)
    world.happen(world.job("j2", account="local"), after=0.1)
    assert [serve(world) for _ in range(3)] == ["j1", "l2", "j2"]


def test_queue_serves_the_account_that_had_less_device_time(world):
    world.join()
    world.happen(world.job("a0", account="alice"))
    for number in range(1, 4):
        world.happen(world.job(f"a{number}", account="alice"), after=0.1)
    for number in range(3):
        world.happen(world.job(f"b{number}", account="bob"), after=0.1)
    order = [serve(world, for_s=5.0)]
    order += [serve(world, for_s=2.0) for _ in range(5)]
    assert order == ["b0", "b1", "b2", "a1", "a2", "a3"]


def test_queue_counts_what_an_account_holds_right_now(world):
    world.join("agent", "dev0", "dev1")
    for number in range(4):
        world.happen(world.job(f"a{number}", account="alice"))
    world.happen(world.job("b0", account="bob"), after=0.5)
    world.now += 3.0
    world.join("agent", "dev0", "dev1", held={"dev1": 1}, runs=(world.passed("a0.1"),))
    assert holder_of(world) == "b0"


def test_account_usage_fades_by_half_every_half_life():
    account = Account("a", usage_s=80.0, usage_at=10.0)
    assert account.used_s(10.0, 100.0) == 80.0
    assert account.used_s(110.0, 100.0) == 40.0
    assert account.used_s(0.0, 100.0) == 80.0
    held = account.granted(110.0)
    assert held.share_s(130.0, 1e9) == pytest.approx(100.0)
    back = held.gave_back(110.0, 210.0, 100.0)
    assert (back.usage_s, back.usage_at, back.held, back.held_since_s) == (120.0, 210.0, 0, 0.0)


def test_account_that_used_much_long_ago_is_equal_again(world):
    world.limit(half_life_s=10.0)
    world.join()
    world.happen(world.job("a0", account="alice"))
    assert serve(world, for_s=3.0) is None
    assert world.state.accounts["alice"].usage_s == 3.0
    world.now += 400.0
    world.join()
    world.happen(world.job("c0", account="carol"))
    world.happen(world.job("a1", account="alice"), after=0.1)
    world.happen(world.job("b1", account="bob"), after=0.1)
    assert serve(world) == "a1"


def test_account_at_its_limit_of_devices_is_passed_over_until_one_comes_back(world):
    world.limit(account_held=1)
    world.join("agent", "dev0", "dev1")
    world.happen(world.job("a0", account="alice"))
    world.happen(world.job("a1", account="alice", priority=9))
    assert world.run_job("a1").state == "QUEUED"
    assert world.state.devices["dev1"].is_free
    with pytest.raises(DeviceBusy, match="account alice holds 1 devices, its limit"):
        world.happen(replace(world.request("l", wait_s=0.0), account="alice"))
    world.happen(world.job("b0", account="bob"))
    assert world.tries("b0") == [("dev1", "RUNNING")]
    world.join("agent", "dev0", "dev1", held={"dev0": 1}, runs=(world.passed("b0.1"),))
    assert world.run_job("a1").state == "QUEUED"
    world.join("agent", "dev0", "dev1", runs=(world.passed("a0.1"),))
    assert world.run_job("a1").state == "RUNNING"


def test_queue_gives_each_device_to_the_first_whose_selector_it_matches(world):
    world.join("agent", "dev0", "dev1")
    for lease_id in ("x", "y"):
        world.happen(world.request(lease_id, wait_s=100.0))
    world.happen(world.job("any"))
    world.happen(world.job("one", "device_id=dev1"), after=0.1)
    world.happen(LeaseReleased("y", 1))
    world.join("agent", "dev0", "dev1", held={"dev0": 1})
    assert (holder_of(world, "dev0"), holder_of(world, "dev1")) == ("x", "any")
    world.happen(LeaseReleased("x", 1))
    world.join("agent", "dev0", "dev1", held={"dev1": 2})
    assert world.state.devices["dev0"].is_free
    assert world.run_job("one").state == "QUEUED"


def test_queue_notices_that_a_devices_labels_changed(world):
    world.join()
    world.happen(world.job("j", "arch=arm", wait_for_device=True))
    assert world.run_job().state == "QUEUED"
    world.happen(world.agent(devices=(world.device(arch="arm"),)))
    assert world.only(GrantLease).lease.job_id == "j"


def test_queue_keeps_a_retried_jobs_place(world):
    world.join()
    world.happen(world.job("a"))
    world.happen(world.job("b"), after=0.1)
    world.happen(world.job("c"), after=0.1)
    world.join(runs=(world.broke("a.1", "INFRASTRUCTURE"),))
    assert holder_of(world) == "b"
    world.happen(Tick(), after=1.0)
    world.join(runs=(world.passed("b.1", 2),))
    assert holder_of(world) == "c", "a device goes last to the job that it failed"
    world.happen(world.agent("other", devices=(world.device("dev1"),)))
    assert world.tries("a") == [("dev0", "INFRA_FAILED"), ("dev1", "RUNNING")]


def test_account_is_forgotten_when_its_usage_has_faded(world):
    world.limit(half_life_s=10.0)
    world.join()
    world.happen(world.job("a0", account="alice"))
    serve(world)
    world.happen(Tick(), after=199.0)
    assert "alice" in world.state.accounts
    world.happen(Tick(), after=2.0)
    assert "alice" not in world.state.accounts
