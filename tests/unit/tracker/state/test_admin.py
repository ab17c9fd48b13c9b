from __future__ import annotations

from dataclasses import replace

import pytest
from farm_tracker.state.events import AdminSet, JobCancelled, LeaseReleased, Tick
from farm_tracker.state.model import Admin, Observed, Use
from farm_tracker.state.state import Changes

from farm.errors import InvalidInput, NobodyCanServe, NotFound
from farm.target import Selector


def wish(admin, selector="", *, reason="fan broken", until_s=0.0):
    return AdminSet(Selector.parse(selector), admin, reason, until_s, "olga")


def told(world):
    return [(it.kind, it.subject, it.text, it.actor) for it in world.state.notes][-1]


def test_drain_of_an_idle_device_is_done_at_once_and_says_who_and_why(world):
    world.join()
    world.happen(wish(Admin.DRAINING))
    device = world.state.devices["dev0"]
    assert (device.admin, device.admin_reason, device.admin_actor) == (
        "DRAINED",
        "fan broken",
        "olga",
    )
    assert ("device.draining", "dev0", "fan broken", "olga") in [
        (it.kind, it.subject, it.text, it.actor) for it in world.state.notes
    ]
    assert told(world) == ("device.drained", "dev0", "fan broken", "")


def test_drain_lets_what_runs_end_and_gives_nothing_new(world):
    world.join()
    world.happen(world.request("l"))
    world.happen(world.job())
    world.happen(wish(Admin.DRAINING))
    assert world.state.devices["dev0"].admin == "DRAINING"
    world.happen(LeaseReleased("l", 1))
    assert world.state.devices["dev0"].admin == "DRAINING"
    world.join()
    assert (world.state.devices["dev0"].admin, world.run_job().state) == ("DRAINED", "QUEUED")
    world.happen(wish(Admin.DRAINING))
    assert world.state.devices["dev0"].admin == "DRAINED"
    world.happen(wish(Admin.ENABLED))
    assert world.run_job().state == "RUNNING"
    assert world.state.devices["dev0"].admin_reason == ""


def test_maintenance_ends_by_itself_when_its_time_is_over(world):
    world.join()
    world.happen(wish(Admin.MAINTENANCE, until_s=3.0))
    world.happen(world.job())
    world.happen(Tick(), after=2.9)
    assert (world.state.devices["dev0"].admin, world.run_job().state) == ("MAINTENANCE", "QUEUED")
    world.happen(Tick(), after=0.1)
    assert (world.state.devices["dev0"].admin, world.run_job().state) == ("ENABLED", "RUNNING")


def test_retired_devices_serve_nobody_so_that_requests_are_refused_at_once(world):
    world.join()
    world.happen(wish(Admin.RETIRED))
    for event in (world.job(), world.request()):
        with pytest.raises(NobodyCanServe):
            world.happen(event)


def test_wish_for_no_device_or_for_drained_is_refused(world):
    world.join()
    with pytest.raises(NotFound):
        world.happen(wish(Admin.ENABLED, "device_id=other"))
    with pytest.raises(InvalidInput):
        world.happen(wish(Admin.DRAINED))


def test_notes_are_numbered_one_by_one(world):
    world.join()
    world.happen(world.job())
    world.happen(JobCancelled("j", actor="olga"))
    assert [it.number for it in world.state.notes] == list(range(1, len(world.state.notes) + 1))
    kinds = [it.kind for it in world.state.notes]
    assert kinds == ["agent.joined", "job.submitted", "lease.granted", "lease.ended", "job.ended"]
    assert told(world)[3] == "olga"


def test_draining_device_of_a_restarted_tracker_is_drained_once_its_agent_tells_of_it(
    world, new_world
):
    world.join()
    world.happen(world.request("l"))
    world.happen(wish(Admin.DRAINING))
    world.happen(LeaseReleased("l", 1))
    left = replace(world.state.devices["dev0"], use=Use.IDLE, observed=Observed.UNKNOWN)
    restarted = new_world()
    restarted.state.apply(Changes(agents=dict(world.state.agents), devices={"dev0": left}))
    restarted.happen(Tick())  # what it does is not known yet, and that is no contradiction
    assert restarted.state.devices["dev0"].admin == "DRAINING"
    restarted.join()
    assert restarted.state.devices["dev0"].admin == "DRAINED"
