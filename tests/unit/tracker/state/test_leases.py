from __future__ import annotations

import pytest
from farm_tracker.state.commands import EndSession, GrantLease, PushDesired, RefuseLease
from farm_tracker.state.events import LeaseReleased, LeaseRenewed, LeaseRevoked, Tick
from farm_tracker.state.leases import end
from farm_tracker.state.model import Health, LeaseState, Use
from farm_tracker.state.state import Draft
from farm_tracker.state.table import Trigger

from farm.errors import (
    DeviceBusy,
    DeviceLost,
    Fenced,
    InvalidInput,
    InvalidTransition,
    NobodyCanServe,
)


def test_lease_of_a_free_device_is_granted_with_the_next_epoch(world):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request())
    granted = world.only(GrantLease)
    assert (granted.lease.state, granted.lease.epoch, granted.device.use) == (
        "GRANTED",
        1,
        "RESERVED",
    )
    assert world.only(PushDesired).leases == (granted.lease,)
    assert granted.lease.expires_at == 160.0
    assert world.state.devices["dev0"].epoch == 1


def test_lease_follows_what_the_agent_reports(world):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request())
    seen = []
    for use in (Use.IDLE, Use.PREPARING, Use.PREPARING, Use.LEASED, Use.LEASED):
        epoch = 0 if use is Use.IDLE else 1
        world.happen(world.agent(devices=(world.device(use=use, epoch=epoch),), connected=False))
        seen.append((world.state.devices["dev0"].use, world.state.leases["l1"].state))
    assert seen == [
        ("RESERVED", "GRANTED"),
        ("PREPARING", "GRANTED"),
        ("PREPARING", "GRANTED"),
        ("LEASED", "ACTIVE"),
        ("LEASED", "ACTIVE"),
    ]


@pytest.mark.parametrize("use", [Use.IDLE, Use.CLEANING])
def test_lease_that_its_agent_dropped_is_lost(world, use):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request())
    world.happen(world.agent(devices=(world.device(use=Use.LEASED, epoch=1),)))
    world.happen(world.agent(devices=(world.device(use=use, epoch=1),)))
    assert world.state.leases["l1"].state == "LOST"
    assert isinstance(world.only(EndSession).error, DeviceLost)
    assert world.state.devices["dev0"].use == use


def test_lease_released_twice_is_fine_and_its_device_is_cleaned_before_the_next(world):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request())
    world.happen(world.agent(devices=(world.device(use=Use.LEASED, epoch=1),)))
    world.happen(world.request("l2"))
    world.happen(LeaseReleased("l1", 1))
    assert world.only(PushDesired).leases == ()
    assert (world.state.devices["dev0"].use, world.state.leases["l2"].state) == (
        "CLEANING",
        "QUEUED",
    )
    assert world.happen(LeaseReleased("l1", 1)) == ()
    assert world.happen(LeaseReleased("unknown", 1)) == ()
    world.happen(world.agent(devices=(world.device(use=Use.CLEANING, epoch=1),)))
    assert world.state.leases["l2"].state == "QUEUED"
    world.happen(world.agent(devices=(world.device(),)))
    assert (world.state.leases["l2"].state, world.state.leases["l2"].epoch) == ("GRANTED", 2)


def test_lease_queue_is_first_in_first_out_among_those_that_match(world):
    world.happen(world.agent(devices=(world.device(arch="arm"), world.device("dev1", arch="x86"))))
    for lease_id in ("h0", "h1"):
        world.happen(world.request(lease_id))
    for lease_id, selector in (("a", "arch=x86"), ("b", ""), ("c", "")):
        world.happen(world.request(lease_id, selector))
    holder = world.state.leases["h0"].device_id
    world.happen(LeaseReleased("h0", 1))
    reports = {
        "dev0": world.device(use=Use.LEASED, epoch=1, arch="arm"),
        "dev1": world.device("dev1", use=Use.LEASED, epoch=1, arch="x86"),
    }
    assert holder == "dev0"
    reports["dev0"] = world.device(arch="arm")
    world.happen(world.agent(devices=tuple(reports.values()), connected=False))
    states = {key: world.state.leases[key].state for key in "abc"}
    assert states == {"a": "QUEUED", "b": "GRANTED", "c": "QUEUED"}


def test_lease_that_nobody_could_serve_is_refused_with_the_nearest(world):
    with pytest.raises(NobodyCanServe, match="has no device"):
        world.happen(world.request())
    reports = (world.device(arch="arm"), world.device("dev1", arch="x86", fast="yes"))
    world.happen(world.agent(devices=reports))
    with pytest.raises(NobodyCanServe) as caught:
        world.happen(world.request(selector="arch=riscv,fast,os=linux"))
    assert "nearest: dev1 fails arch=riscv (it has arch=x86), os=linux (unset); dev0 fails" in str(
        caught.value
    )
    assert world.state.leases == {}


def test_lease_that_cannot_wait_is_refused_at_once_with_the_situation(world):
    world.happen(world.agent(devices=(world.device(health=Health.RECOVERING),)))
    with pytest.raises(DeviceBusy, match=r"dev0 \(RECOVERING\)"):
        world.happen(world.request(wait_s=0.0))
    world.happen(world.request(wait_s=3.0))
    world.happen(Tick(), after=2.9)
    assert world.state.leases["l1"].state == "QUEUED"
    world.happen(Tick(), after=0.1)
    assert isinstance(world.only(RefuseLease).error, DeviceBusy)
    assert world.state.leases["l1"].state == "EXPIRED"


def test_lease_expiry_wins_over_a_renewal_of_the_same_moment(world):
    world.happen(world.agent(devices=(world.device(),)))
    world.limit(offline_s=1e6, suspect_s=1e6)
    world.happen(world.request(ttl_s=20.0))
    world.happen(LeaseRenewed("l1", 1, 25.0), after=19.9)
    world.happen(world.agent(devices=(world.device(use=Use.LEASED, epoch=1),)))
    with pytest.raises(Fenced):
        world.happen(LeaseRenewed("l1", 1, 25.0), after=25.0)
    assert world.state.leases["l1"].state == "ACTIVE"  # what raises changes nothing
    world.happen(Tick())
    assert world.state.leases["l1"].state == "EXPIRED"
    assert isinstance(world.only(EndSession).error, Fenced)


def test_lease_of_another_epoch_is_fenced(world):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request())
    for event in (LeaseRenewed("l1", 2, 5.0), LeaseReleased("l1", 2), LeaseRenewed("l9", 1, 5.0)):
        with pytest.raises(Fenced):
            world.happen(event)


def test_lease_queued_cannot_be_renewed_but_given_up(world):
    world.happen(world.agent(devices=(world.device(health=Health.CHECKING),)))
    world.happen(world.request())
    with pytest.raises(Fenced, match="QUEUED"):
        world.happen(LeaseRenewed("l1", 0, 5.0))
    world.happen(LeaseReleased("l1", None))
    assert world.state.leases["l1"].state == "RELEASED"


def test_lease_id_used_twice_is_refused(world):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request())
    with pytest.raises(InvalidInput):
        world.happen(world.request())


def test_lease_revoked_ends_with_the_cause(world):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request())
    world.happen(LeaseRevoked("l1", "the device is needed"))
    assert world.state.leases["l1"].state == "REVOKED"
    assert "the device is needed" in world.only(EndSession).error.message
    assert world.happen(LeaseRevoked("l1", "again")) == ()


def test_lease_that_is_not_prepared_in_time_is_lost(world):
    world.limit(offline_s=1e6, suspect_s=1e6)
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request(ttl_s=600))
    world.happen(Tick(), after=30.0)
    assert world.state.leases["l1"].state == "LOST"
    assert "did not prepare" in world.state.leases["l1"].cause


def test_device_that_is_not_proved_clean_in_time_is_bad_until_it_is(world):
    world.limit(offline_s=1e6, suspect_s=1e6)
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request())
    world.happen(LeaseReleased("l1", 1))
    world.happen(Tick(), after=30.0)
    device = world.state.devices["dev0"]
    assert (device.use, device.health) == ("CLEANING", "BAD")
    world.happen(world.agent(devices=(world.device(use=Use.CLEANING, epoch=1),)))
    assert world.state.devices["dev0"].health == "BAD"
    world.happen(world.agent(devices=(world.device(),)))
    device = world.state.devices["dev0"]
    assert (device.use, device.health, device.is_free) == ("IDLE", "GOOD", True)


def test_lease_that_ended_is_forgotten_later(world):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request())
    world.happen(LeaseReleased("l1", 1))
    world.happen(Tick(), after=600.0)
    assert world.state.leases == {}


def test_lease_impossible_transition_tells_its_story(world):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request())
    world.happen(LeaseReleased("l1", 1))
    draft = Draft(world.state, world.now)
    with pytest.raises(InvalidTransition) as caught:
        end(draft, world.state.leases["l1"], Trigger.RELEASE, "again")
    assert "lease l1: RELEASE is impossible in state RELEASED" in str(caught.value)
    assert "100.000 GRANTED(1) dev0; 100.000 RELEASED: released by its holder" in str(caught.value)
    assert world.state.leases["l1"].state is LeaseState.RELEASED
