from __future__ import annotations

from dataclasses import replace

from farm_tracker.state.events import AdminSet, JobCancelled
from farm_tracker.state.model import Admin, Health
from farm_tracker.state.why import explain

from farm.target import Selector


def why(world, job_id="j"):
    found = explain(world.state, world.run_job(job_id), world.now)
    return found.reason, found.position, found.estimate_s


def test_why_of_a_job_that_runs_says_where_since_when_and_until_when(world):
    world.join()
    world.happen(world.job(limit_s=10.0))
    world.now += 7.0
    assert why(world) == ("running on dev0 for 7 s, at most 108 s more", 0, 0.0)


def test_why_of_a_job_that_waits_counts_who_is_ahead_and_estimates_from_limits(world):
    world.join("agent", "dev0", "dev1")
    for number in range(7):
        world.happen(world.job(f"j{number}", limit_s=10.0), after=0.001)
    found = [why(world, f"j{number}") for number in range(2, 7)]
    assert [it[0].removeprefix("2 devices that match are in use; ") for it in found] == [
        "it is next",
        "1 ahead of it",
        "2 ahead of it",
        "3 ahead of it",
        "4 ahead of it",
    ]
    assert [it[1] for it in found] == [1, 2, 3, 4, 5]
    assert [round(it[2]) for it in found] == [115, 115, 230, 230, 345]


def test_why_counts_only_those_who_wait_for_the_same_devices(world):
    world.join("agent", "dev0", "dev1")
    for number in range(4):
        world.happen(world.job(f"x{number}", "device_id=dev1"), after=0.001)
    world.happen(world.job("y0", "device_id=dev0"))
    world.happen(world.job("y1", "device_id=dev0"))
    world.happen(world.job("any"), after=0.001)
    assert why(world, "y1")[1] == 1
    assert why(world, "any")[1] == 5


def test_why_goes_by_priority_then_share(world):
    world.join()
    world.happen(world.job("first", account="alice"))
    world.happen(world.job("a", account="alice"), after=1.0)
    world.happen(world.job("b", account="bob"), after=1.0)
    world.happen(world.job("low", account="carol", priority=-1), after=1.0)
    assert [why(world, it)[1] for it in ("b", "a", "low")] == [1, 2, 3]


def test_why_names_what_keeps_devices_out_of_service(world):
    world.join("agent", "dev0")
    world.happen(AdminSet(Selector.parse(""), Admin.MAINTENANCE, "fan"))
    world.happen(world.job())
    assert why(world)[0] == ("the device that matches is out of service: dev0 (MAINTENANCE: fan)")
    world.happen(AdminSet(Selector.parse(""), Admin.ENABLED))
    world.happen(JobCancelled("j"))
    world.happen(world.agent(devices=(world.device(health=Health.BAD),)))
    world.happen(world.job("k"))
    assert "dev0 (BAD)" in why(world, "k")[0]


def test_why_of_a_job_that_no_device_fits_names_the_nearest(world):
    world.join()
    world.happen(world.job(selector="arch=arm", wait_for_device=True))
    reason, position, estimate_s = why(world)
    assert reason.startswith("waits for a device: selector 'arch=arm': no device of this farm fits")
    assert "nearest: dev0 fails arch=arm (unset)" in reason
    assert (position, estimate_s) == (1, -1.0)


def test_why_of_an_account_at_its_limit_says_so(world):
    world.limit(account_held=1)
    world.join("agent", "dev0", "dev1")
    world.happen(world.job("a"))
    world.happen(world.job("b"))
    assert why(world, "b")[0] == "account alice holds 1 devices, its limit"


def test_why_of_a_job_that_ended_says_how(world):
    world.join()
    world.happen(world.job())
    world.join(runs=(world.broke("j.1", "KERNEL_CRASHED"),))
    assert why(world) == ("ended: COMPLETED, FAIL: m", 0, -1.0)


def test_why_tells_what_is_wrong_with_the_only_device(world):
    cause = "canary: canary_floats gave wrong numbers"
    sick = replace(world.device(health=Health.BAD), health_cause=cause)
    world.happen(world.agent(devices=(sick,)))
    world.happen(world.job())
    reason = f"the device that matches is out of service: dev0 (BAD {cause})"
    assert why(world) == (reason, 1, -1.0)


def test_why_names_no_device_that_is_not_to_be_seen(world):
    world.join("a", "dev0")
    world.join("b", "dev1")
    world.happen(world.job(selector="arch=none", wait_for_device=True))
    seen = explain(world.state, world.run_job(), world.now, Selector.parse("device_id=dev1")).reason
    assert "dev1 fails arch=none" in seen
    assert "dev0" not in seen
    assert "dev0" in explain(world.state, world.run_job(), world.now).reason
    nothing = explain(world.state, world.run_job(), world.now, Selector.parse("colour=red")).reason
    assert nothing == "waits for a device: none with colour=red is there"
