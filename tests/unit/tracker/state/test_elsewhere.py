"""A job that the farm failed waits for another device rather than to be tried again where it failed."""

from __future__ import annotations

import pytest
from farm_tracker.state.events import AdminSet, LeaseReleased, Tick
from farm_tracker.state.model import Admin, Health
from farm_tracker.state.why import explain

from farm.target import Selector

BOTH = ("dev0", "dev1")


@pytest.fixture
def failed(world):
    """A farm of two devices: one that a job failed on, now free, and one that somebody else uses."""
    world.limit(backoff_s=1.0, suspect_s=1e6, offline_s=1e7)
    world.join("a", *BOTH)
    world.happen(world.request("l", "device_id=dev1", ttl_s=1e5))
    world.happen(world.job(queue_limit_s=1e4))
    busy = {"dev1": 1}
    world.join("a", *BOTH, held=busy, runs=(world.broke("j.1", "STORE_FULL"),))
    world.join("a", *BOTH, held=busy, after=1.0)
    assert world.tries() == [("dev0", "INFRA_FAILED")]
    assert world.state.devices["dev0"].is_free
    return world


def test_job_waits_for_a_busy_device_that_did_not_fail_it_and_gets_it(failed):
    failed.happen(Tick(), after=30.0)
    assert failed.run_job().state == "QUEUED"
    failed.happen(LeaseReleased("l", 1))
    failed.join("a", *BOTH)
    assert failed.tries() == [("dev0", "INFRA_FAILED"), ("dev1", "RUNNING")]
    assert failed.run_job().elsewhere_until is None


def test_job_that_waited_long_enough_is_tried_where_it_failed(failed):
    failed.happen(Tick(), after=failed.state.limits.elsewhere_s)
    assert failed.tries() == [("dev0", "INFRA_FAILED"), ("dev0", "RUNNING")]


def test_job_says_for_what_it_waits_and_how_long(failed):
    found = explain(failed.state, failed.run_job(), failed.now)
    assert found.reason == (
        "the device that matches is in use; tried again where it failed (dev0) in 60 s; it is next"
    )
    assert found.estimate_s == 60.0


def test_job_leaves_the_device_that_failed_it_to_others(failed):
    failed.happen(failed.job("other"))
    assert failed.tries("other") == [("dev0", "RUNNING")]
    failed.happen(failed.job("third"))
    failed.happen(LeaseReleased("l", 1))
    failed.join("a", *BOTH, held={"dev0": 2})
    assert failed.tries()[-1] == ("dev1", "RUNNING")  # it had waited longer
    assert failed.tries("third") == []


def test_jobs_behind_one_that_avoids_a_device_get_it(failed):
    failed.happen(failed.job("other", "device_id=dev0"))
    failed.happen(failed.job("third", "device_id=dev0"))
    failed.join("a", *BOTH, held={"dev1": 1}, runs=(failed.passed("other.1", 2),))
    assert failed.tries("third") == [("dev0", "RUNNING")]
    assert failed.run_job().state == "QUEUED"


@pytest.mark.parametrize("selector", ["device_id=dev0", ""])
def test_job_is_tried_again_at_once_where_it_failed_if_no_other_device_may_do(world, selector):
    world.limit(backoff_s=1.0)
    world.join("a", *BOTH)
    if not selector:  # one is out of service, and the other alone is left
        world.happen(AdminSet(Selector.parse("device_id=dev1"), Admin.MAINTENANCE))
    world.happen(world.job("j", selector))
    world.join("a", *BOTH, runs=(world.broke("j.1", "STORE_FULL"),))
    world.happen(Tick(), after=1.0)
    assert world.tries() == [("dev0", "INFRA_FAILED"), ("dev0", "RUNNING")]


def test_job_does_not_wait_for_a_device_that_is_broken(world):
    world.limit(backoff_s=1.0)
    sick = world.device("dev1", health=Health.BAD)
    world.happen(world.agent("a", devices=(world.device(), sick)))
    world.happen(world.job())
    broken = (world.broke("j.1", "STORE_FULL"),)
    world.happen(world.agent("a", devices=(world.device(epoch=1), sick), runs=broken))
    world.happen(Tick(), after=1.0)
    assert world.tries() == [("dev0", "INFRA_FAILED"), ("dev0", "RUNNING")]


def test_job_that_waits_for_another_device_still_ends_at_its_queue_limit(world):
    world.limit(backoff_s=1.0, suspect_s=1e6, offline_s=1e7)
    world.join("a", *BOTH)
    world.happen(world.request("l", "device_id=dev1", ttl_s=1e5))
    world.happen(world.job(queue_limit_s=20.0))
    world.join("a", *BOTH, held={"dev1": 1}, runs=(world.broke("j.1", "STORE_FULL"),))
    world.happen(Tick(), after=1.0)
    world.happen(Tick(), after=20.0)
    assert world.run_job().outcome == "INFRA_FAILED"
    assert len(world.tries()) == 1
