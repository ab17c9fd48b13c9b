from __future__ import annotations

from dataclasses import replace

import pytest
from farm_tracker.state.commands import GrantLease, JobAccepted, JobChanged, PushDesired, RunOrder
from farm_tracker.state.events import (
    AgentDisconnected,
    JobCancelled,
    JobWatched,
    LeaseReleased,
    LeaseRenewed,
    LeaseRevoked,
    Tick,
)
from farm_tracker.state.jobs import USER_FAULTS
from farm_tracker.state.model import Use
from farm_tracker.state.why import explain

from farm.core.digest import digest_of
from farm.errors import InvalidInput, NobodyCanServe, QuotaExceeded, all_errors


def ended(world, job_id="j"):
    job = world.run_job(job_id)
    return (job.outcome, job.verdict, job.failure.code if job.failure else None)


def lose_agent_a(world):
    """Let agent a be silent for ten seconds while agent b reports on."""
    for after in (4.0, 3.0, 3.0):
        world.now += after
        world.join("b", "dev1", connected=False)
    assert world.state.agents["a"].observed == "OFFLINE"


def test_job_is_acknowledged_gets_a_lease_of_fixed_term_and_is_ordered_from_its_agent(world):
    world.join("agent", "dev0")
    world.happen(world.job(limit_s=10.0))
    assert world.only(JobAccepted) == JobAccepted("j", "j", False)
    lease = world.only(GrantLease).lease
    assert (lease.job_id, lease.epoch, lease.holder) == ("j", 1, "job j")
    assert lease.expires_at - world.now == 30.0 + 60.0 + 10.0 + 15.0
    desired = world.only(PushDesired)
    assert desired.runs == (RunOrder(world.state.run_attempts["j.1"], b"run j"),)
    assert [it.lease_id for it in desired.leases] == [lease.lease_id]
    assert (world.run_job().state, world.tries()) == ("RUNNING", [("dev0", "RUNNING")])


def test_job_term_is_never_over_ten_minutes(world):
    world.join()
    world.happen(world.job(limit_s=495.0))
    assert world.only(GrantLease).lease.ttl_s == 600.0


def test_job_lease_is_neither_renewed_nor_released_by_clients(world):
    world.join()
    world.happen(world.job())
    for event in (LeaseRenewed("j.1.lease", 1, 60.0), LeaseReleased("j.1.lease", 1)):
        with pytest.raises(InvalidInput, match="serves job j"):
            world.happen(event)


def test_job_result_is_committed_then_its_attempt_leaves_the_desired_state(world):
    world.join()
    world.happen(world.job())
    world.join(held={"dev0": 1}, connected=False, runs=(world.running("j.1"),))
    world.join(held={"dev0": 1}, connected=False, runs=(world.passed("j.1"),))
    assert ended(world) == ("COMPLETED", "PASS", None)
    assert (world.run_job().result, world.tries()) == (b"result", [("dev0", "DONE")])
    desired = world.only(PushDesired)
    assert (desired.runs, desired.leases) == ((), ())
    assert world.state.leases["j.1.lease"].state == "RELEASED"
    world.join(runs=(world.broke("j.1", "KERNEL_CRASHED"),))
    assert ended(world) == ("COMPLETED", "PASS", None), "the first result stands"


@pytest.mark.parametrize("cls", sorted(all_errors(), key=lambda cls: cls.code))
def test_job_error_of_the_work_is_a_verdict_and_of_the_farm_a_retry(world, cls):
    world.join()
    world.happen(world.job())
    world.join(runs=(world.broke("j.1", cls.code),))
    if issubclass(cls, USER_FAULTS):
        assert ended(world) == ("COMPLETED", "FAIL", cls.code)
        assert world.tries() == [("dev0", "DONE")]
    else:
        state = "LOST" if cls.code == "DEVICE_LOST" else "INFRA_FAILED"
        world.happen(Tick(), after=1.0)
        assert world.tries() == [("dev0", state), ("dev0", "RUNNING")]
        assert ended(world) == (None, None, None)


def test_job_that_the_farm_fails_too_often_is_infra_failed_without_a_verdict(world):
    world.join()
    world.happen(world.job())
    for number in (1, 2, 3):
        world.join(runs=(world.broke(f"j.{number}", "STORE_FULL", number),))
        world.happen(Tick(), after=2.0)
    assert ended(world) == ("INFRA_FAILED", None, "STORE_FULL")
    assert world.tries() == [("dev0", "INFRA_FAILED")] * 3


def test_job_that_the_farm_failed_waits_longer_each_time_and_says_so(world):
    world.limit(infra_budget=8, backoff_s=2.0, backoff_ceiling_s=20.0)
    world.limit(suspect_s=1e3, offline_s=1e4)
    world.join()
    world.happen(world.job())
    waits = []
    for number in range(1, 9):
        world.join(runs=(world.broke(f"j.{number}", "STORE_FULL", number),))
        job = world.run_job()
        assert (job.state, job.attempt_id, len(world.state.queue)) == ("DELAYED", None, 0)
        waits.append(job.not_before - world.now)
        world.happen(Tick(), after=0.99 * waits[-1])
        assert explain(world.state, world.run_job(), world.now).reason.endswith("tried again: m")
        world.happen(Tick(), after=0.02 * waits[-1])
        assert world.run_job().state == "RUNNING"
    longest = [min(20.0, 2.0 * 2**index) for index in range(8)]
    assert all(most / 2 <= it <= most for it, most in zip(waits, longest, strict=True))
    assert len({it / most for it, most in zip(waits, longest, strict=True)}) == 8, "no jitter"


@pytest.mark.parametrize("how", ["cancel", "unwatched"])
def test_job_that_is_delayed_can_end(world, how):
    world.limit(backoff_s=1e3, backoff_ceiling_s=1e3)
    world.join()
    world.happen(world.job(cancel_when_unwatched=how == "unwatched"))
    world.join(runs=(world.broke("j.1", "STORE_FULL"),))
    if how == "cancel":
        world.happen(JobCancelled("j", "test"))
    else:
        world.state.limits = replace(world.state.limits, offline_s=1e4, suspect_s=1e3)
        world.join()
        world.join(after=61.0)
    assert ended(world)[:2] == ("CANCELLED", None)


def test_job_whose_agent_falls_silent_is_tried_elsewhere(world):
    world.join("a", "dev0")
    world.happen(world.job())
    world.join("b", "dev1")
    lose_agent_a(world)
    assert world.tries() == [("dev0", "LOST"), ("dev1", "RUNNING")]
    world.join("b", "dev1", runs=(world.passed("j.2"),))
    assert ended(world) == ("COMPLETED", "PASS", None)


def test_job_that_loses_two_distinct_devices_is_poisoned(world):
    world.join("a", "dev0")
    world.happen(world.job())
    world.join("b", "dev1")
    lose_agent_a(world)
    world.join("b", "dev1", instance_id="p2")
    assert world.tries() == [("dev0", "LOST"), ("dev1", "LOST")]
    assert ended(world) == ("POISONED", None, "INFRASTRUCTURE")
    assert "dev0, dev1" in world.run_job().failure.message


def test_job_that_loses_one_device_again_and_again_is_infra_failed(world):
    world.join("a", "dev0")
    world.happen(world.job())
    for number in (2, 3, 4):
        world.join("a", "dev0", instance_id=f"p{number}")
        world.join("a", "dev0", instance_id=f"p{number}", connected=False)
    assert world.tries() == [("dev0", "LOST")] * 3
    assert ended(world) == ("INFRA_FAILED", None, "DEVICE_LOST")


def test_job_goes_rather_to_a_device_that_did_not_fail_it(world):
    world.join("a", "dev0", "dev1")
    world.happen(world.job())
    world.join("a", "dev0", "dev1", runs=(world.broke("j.1", "INFRASTRUCTURE"),))
    world.happen(Tick(), after=1.0)
    assert world.tries() == [("dev0", "INFRA_FAILED"), ("dev1", "RUNNING")]


def test_job_late_result_counts_while_nobody_has_begun_anew(world):
    world.join("a", "dev0")
    world.happen(world.job())
    world.happen(Tick(), after=4.0)
    world.happen(Tick(), after=6.0)
    assert (world.run_job().state, world.tries()) == ("QUEUED", [("dev0", "LOST")])
    world.join("a", "dev0", runs=(world.passed("j.1"),))
    assert (ended(world), world.tries()) == (("COMPLETED", "PASS", None), [("dev0", "DONE")])
    assert len(world.state.queue) == 0


def come_back(world, how):
    """Let the agent of a running job be lost and come back while it still stores the result."""
    world.join("a", "dev0")
    world.happen(world.job())
    if how == "restart":
        world.join("a", "dev0", instance_id="p2", runs=(world.running("j.1"),))
        return {"instance_id": "p2", "connected": False}
    world.happen(Tick(), after=4.0)
    world.happen(Tick(), after=6.0)
    world.join("a", "dev0", runs=(world.running("j.1"),))
    return {"connected": False}


@pytest.mark.parametrize("how", ["silence", "restart"])
def test_job_waits_for_the_result_that_a_returned_agent_has_yet_to_store(world, how):
    fields = come_back(world, how)
    world.join("b", "dev1")
    assert (world.run_job().state, world.tries()) == ("DELAYED", [("dev0", "LOST")])
    why = explain(world.state, world.run_job(), world.now).reason
    assert why == "waits up to 30.0 s for what agent a still has of its lost attempt"
    world.join("a", "dev0", runs=(world.passed("j.1"),), **fields)
    assert (ended(world), world.tries()) == (("COMPLETED", "PASS", None), [("dev0", "DONE")])


@pytest.mark.parametrize("how", ["silence", "restart"])
def test_job_runs_again_as_soon_as_a_returned_agent_has_no_result(world, how):
    fields = come_back(world, how)
    world.join("a", "dev0", runs=(world.broke("j.1", "CANCELLED"),), **fields)
    assert world.tries() == [("dev0", "LOST"), ("dev0", "RUNNING")]


def test_job_waits_once_and_not_for_ever_for_a_late_result(world):
    fields = come_back(world, "silence")
    for _ in range(29):
        world.join("a", "dev0", runs=(world.running("j.1"),), **fields)
        world.happen(Tick(), after=1.0)
    assert world.run_job().state == "DELAYED"
    world.join("a", "dev0", runs=(world.running("j.1"),), **fields)
    world.happen(Tick(), after=1.0)
    assert world.tries() == [("dev0", "LOST"), ("dev0", "RUNNING")]
    world.join("a", "dev0", runs=(world.passed("j.1"),), **fields)
    assert world.tries()[0] == ("dev0", "SUPERSEDED")


def test_job_that_waits_for_a_late_result_can_be_cancelled(world):
    fields = come_back(world, "silence")
    world.happen(JobCancelled("j"))
    assert ended(world)[0] == "CANCELLED"
    world.join("a", "dev0", runs=(world.passed("j.1"),), **fields)
    assert world.tries() == [("dev0", "SUPERSEDED")]


def test_job_result_kept_by_a_process_is_taken_from_its_successor(world):
    world.join("a", "dev0")
    world.happen(world.job())
    world.join("a", "dev0", instance_id="p2", runs=(world.passed("j.1"),))
    assert (ended(world), world.tries()) == (("COMPLETED", "PASS", None), [("dev0", "DONE")])


def test_job_late_result_after_a_newer_attempt_is_kept_and_never_counted(world):
    world.join("a", "dev0")
    world.happen(world.job())
    world.join("b", "dev1")
    lose_agent_a(world)
    world.join("a", "dev0", runs=(world.broke("j.1", "KERNEL_CRASHED"),))
    assert world.tries() == [("dev0", "SUPERSEDED"), ("dev1", "RUNNING")]
    assert world.state.run_attempts["j.1"].failure.code == "KERNEL_CRASHED"
    world.join("b", "dev1", runs=(world.passed("j.2"),))
    assert ended(world) == ("COMPLETED", "PASS", None)
    world.join("a", "dev0", runs=(world.passed("j.1"),))
    assert world.tries() == [("dev0", "SUPERSEDED"), ("dev1", "DONE")]


@pytest.mark.parametrize(("agent", "epoch"), [("a", 2), ("b", 1)])
def test_job_result_of_another_epoch_or_agent_is_fenced(world, agent, epoch):
    world.join("a", "dev0")
    world.happen(world.job())
    devices = {"a": ("dev0",), "b": ("dev1",)}[agent]
    world.join(agent, *devices, connected=agent == "b", runs=(world.passed("j.1", epoch),))
    assert world.run_job().state == "RUNNING"
    assert "attempt.fenced" in [it.kind for it in world.state.notes]
    assert any(it.agent_id == agent for it in world.commands if isinstance(it, PushDesired))


def test_job_running_report_of_a_successor_does_not_stand_for_its_predecessors_attempt(world):
    world.join("a", "dev0")
    world.happen(world.job())
    world.join("a", "dev0", instance_id="p2", runs=(world.running("j.1"),))
    assert world.tries()[0] == ("dev0", "LOST")


def test_job_whose_agent_drops_the_device_is_lost(world):
    world.join("a", "dev0")
    world.happen(world.job())
    world.join("a", "dev0", held={"dev0": 1}, connected=False, runs=(world.running("j.1"),))
    world.join("a", "dev0", connected=False, runs=(world.running("j.1"),))
    assert world.tries()[0] == ("dev0", "LOST")


def test_job_whose_lease_runs_out_is_lost_and_whose_lease_is_revoked_is_infra_failed(world):
    world.join("a", "dev0")
    world.happen(world.job(limit_s=1.0))
    for _ in range(36):
        world.join("a", "dev0", held={"dev0": 1}, connected=False)
        world.happen(Tick(), after=3.0)
    assert world.tries()[0] == ("dev0", "LOST")
    world.join("a", "dev0", connected=False)
    assert world.tries()[1] == ("dev0", "RUNNING")
    world.happen(LeaseRevoked("j.2.lease", "test"))
    assert world.tries()[1] == ("dev0", "INFRA_FAILED")


def test_job_survives_that_its_agents_stream_breaks(world):
    world.join("a", "dev0")
    world.happen(world.job())
    world.happen(AgentDisconnected("a", "p1"), after=1.0)
    world.join("a", "dev0", held={"dev0": 1}, runs=(world.running("j.1"),))
    world.join("a", "dev0", held={"dev0": 1}, runs=(world.passed("j.1"),), connected=False)
    assert world.tries() == [("dev0", "DONE")]


def test_job_submitted_twice_is_one_job_whatever_became_of_it(world):
    world.join()
    world.happen(world.job(client_key="k"))
    for _ in range(2):
        world.happen(world.job("other", client_key="k"))
        assert world.commands == (JobAccepted("other", "j", True),)
        world.happen(JobCancelled("j"))
    assert list(world.state.run_jobs) == ["j"]
    with pytest.raises(InvalidInput, match="another content"):
        world.happen(world.job("other", client_key="k", content="d"))
    world.happen(world.job("other", client_key="k", account="bob", content="d"))
    world.happen(world.job("third"))
    assert list(world.state.run_jobs) == ["j", "other", "third"]
    with pytest.raises(InvalidInput, match="exists already"):
        world.happen(world.job("third"))


def test_job_that_nobody_can_serve_is_refused_unless_it_waits_for_a_device(world):
    world.join()
    with pytest.raises(NobodyCanServe, match="nearest: dev0 fails arch=arm"):
        world.happen(world.job(selector="arch=arm"))
    world.happen(world.job(selector="arch=arm", wait_for_device=True))
    assert world.run_job().state == "QUEUED"
    world.happen(world.agent("b", devices=(world.device("dev1", arch="arm"),)))
    assert world.tries() == [("dev1", "RUNNING")]


def test_job_over_its_accounts_limit_of_waiting_is_refused(world):
    world.limit(account_queued=2)
    for number in range(2):
        world.happen(world.job(f"j{number}", wait_for_device=True))
    with pytest.raises(QuotaExceeded, match="account alice"):
        world.happen(world.job("j3", wait_for_device=True))
    world.happen(world.job("b", account="bob", wait_for_device=True))
    world.happen(JobCancelled("j0"))
    world.happen(world.job("j3", wait_for_device=True))


def test_job_that_does_not_start_in_time_ends_as_time_limit_without_a_verdict(world):
    world.happen(world.job(wait_for_device=True, queue_limit_s=50.0))
    world.happen(Tick(), after=49.0)
    assert world.run_job().state == "QUEUED"
    world.happen(Tick(), after=1.0)
    assert ended(world) == ("TIME_LIMIT", None, "TIME_LIMIT")


def test_job_that_started_but_is_not_started_again_in_time_is_infra_failed(world):
    world.join("a", "dev0")
    world.happen(world.job(queue_limit_s=50.0))
    for after in (4.0, 6.0, 50.0):
        world.happen(Tick(), after=after)
    assert ended(world) == ("INFRA_FAILED", None, "INFRASTRUCTURE")


def test_job_is_cancelled_in_every_state(world):
    world.happen(world.job("queued", wait_for_device=True))
    world.happen(JobCancelled("queued", "no need", "bob"))
    assert ended(world, "queued") == ("CANCELLED", None, "CANCELLED")
    assert "cancelled by bob (no need)" in world.run_job("queued").failure.message
    world.join()
    world.happen(world.job("running"))
    world.happen(JobCancelled("running"))
    assert ended(world, "running") == ("CANCELLED", None, "CANCELLED")
    assert world.tries("running") == [("dev0", "CANCELLED")]
    assert world.state.devices["dev0"].use == "CLEANING"
    assert world.only(PushDesired).runs == ()
    world.join(held={"dev0": 1}, runs=(world.passed("running.1"),))
    assert ended(world, "running") == ("CANCELLED", None, "CANCELLED")
    world.happen(JobCancelled("running", "again"))
    world.happen(JobCancelled("unknown"))
    assert world.commands == ()


def test_job_that_nobody_watches_ends_after_a_minute_if_asked_to(world):
    world.limit(suspect_s=500.0, offline_s=900.0, prepare_s=500.0)
    world.join()
    world.happen(world.job(cancel_when_unwatched=True))
    world.happen(world.job("stays"))
    for watched, after in ((True, 59.0), (True, 1.0), (False, 90.0), (False, 1.0)):
        world.happen(JobWatched("j", watched), after=after)
    world.happen(Tick(), after=59.0)
    assert world.run_job().state == "RUNNING"
    world.happen(Tick(), after=1.0)
    assert ended(world) == ("CANCELLED", None, "CANCELLED")
    assert world.run_job("stays").is_open


def test_job_log_is_numbered_over_attempts_without_gap_or_repeat(world):
    blobs = [digest_of(bytes([number])) for number in range(4)]
    world.join("a", "dev0")
    world.happen(world.job())
    world.join("a", "dev0", held={"dev0": 1}, runs=(world.running("j.1", log=tuple(blobs[:1])),))
    assert JobChanged("j") in world.commands
    world.join("a", "dev0", held={"dev0": 1}, runs=(world.running("j.1", log=tuple(blobs[:1])),))
    assert JobChanged("j") not in world.commands
    failed = world.broke("j.1", "INFRASTRUCTURE", log=tuple(blobs[:2]))
    world.join("a", "dev0", runs=(failed,))
    world.happen(Tick(), after=1.0)
    world.join("a", "dev0", runs=(world.passed("j.2", 2, log=tuple(blobs[2:])),))
    assert [(it.attempt_id, it.blob) for it in world.run_job().log] == [
        ("j.1", blobs[0]),
        ("j.1", blobs[1]),
        ("j.2", blobs[2]),
        ("j.2", blobs[3]),
    ]


def test_job_log_ends_with_a_mark_where_its_limit_was_reached(world):
    world.limit(log_bytes=10)
    blobs = tuple(digest_of(bytes(4) + bytes([number])) for number in range(4))
    world.join()
    world.happen(world.job())
    world.join(held={"dev0": 1}, runs=(world.running("j.1", log=blobs[:3]),))
    world.join(held={"dev0": 1}, runs=(world.passed("j.1", log=blobs, log_is_cut=True),))
    assert [it.blob for it in world.run_job().log] == [blobs[0], blobs[1], None]


def test_job_that_ended_is_forgotten_with_its_attempts_and_key(world):
    world.join()
    world.happen(world.job(client_key="k"))
    world.join(runs=(world.passed("j.1"),))
    world.happen(Tick(), after=world.state.limits.job_retain_s)
    assert (world.state.run_jobs, world.state.run_attempts) == ({}, {})
    assert world.state.client_jobs == {}


def test_job_reports_while_the_device_is_still_in_use_or_cleaned_already_both_end_it(world):
    for number, use in enumerate((Use.LEASED, Use.CLEANING, Use.IDLE), start=1):
        world.join()
        world.happen(world.job(f"j{number}"))
        report = world.device(use=use, epoch=number)
        runs = (world.passed(f"j{number}.1", number),)
        world.happen(world.agent(devices=(report,), runs=runs))
        assert ended(world, f"j{number}") == ("COMPLETED", "PASS", None)
