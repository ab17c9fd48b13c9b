from __future__ import annotations

from dataclasses import replace

import pytest
from farm_tracker.state.commands import EndSession, FenceAgent, PushDesired, Warn
from farm_tracker.state.events import AgentDisconnected, LeaseReleased, Tick
from farm_tracker.state.model import Health, Observed, Use

from farm.errors import Fenced


def observed(world):
    return (world.state.agents["agent"].observed, world.state.devices["dev0"].observed)


def test_agent_silence_makes_it_suspect_then_offline_then_online_again(world):
    world.happen(world.agent(devices=(world.device(),)))
    seen = []
    for after in (3.9, 0.1, 5.9, 0.1):
        world.happen(Tick(), after=after)
        seen.append(observed(world)[0])
        assert observed(world)[0] == observed(world)[1]
    assert seen == ["ONLINE", "SUSPECT", "SUSPECT", "OFFLINE"]
    world.happen(world.agent(devices=(world.device(),), connected=False))
    assert observed(world) == ("ONLINE", "ONLINE")


def test_agent_that_disconnects_is_suspect_at_once_and_keeps_its_lease(world):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request())
    world.happen(AgentDisconnected("agent", "p1"))
    assert observed(world) == ("SUSPECT", "SUSPECT")
    assert world.state.leases["l1"].state == "GRANTED"
    world.happen(world.agent(devices=(world.device(use=Use.LEASED, epoch=1),)), after=9.0)
    assert world.only(PushDesired).leases == (world.state.leases["l1"],)
    assert world.state.leases["l1"].state == "ACTIVE"


def test_agent_that_stays_away_loses_its_lease(world):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request())
    world.happen(AgentDisconnected("agent", "p1"))
    world.happen(Tick(), after=10.0)
    assert world.state.leases["l1"].state == "LOST"
    assert "agent agent has been silent for 10 s" in world.only(EndSession).error.message
    assert world.state.devices["dev0"].use == "CLEANING"


def test_agent_disconnect_of_a_former_process_means_nothing(world):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.agent(instance_id="p2", devices=(world.device(),)))
    world.happen(AgentDisconnected("agent", "p1"))
    world.happen(AgentDisconnected("unknown", "p1"))
    assert observed(world) == ("ONLINE", "ONLINE")


def test_agent_restarted_replaces_the_former_process_for_good(world):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request())
    world.happen(world.agent(instance_id="p2", devices=(world.device(),)))
    assert world.only(FenceAgent) == FenceAgent("agent", "p1")
    assert world.state.leases["l1"].state == "LOST"
    heard = world.agent(instance_id="p2", devices=(world.device(),), connected=False)
    world.happen(heard)
    assert world.state.devices["dev0"].is_free
    for connected in (True, False):
        with pytest.raises(Fenced, match="process p1 was replaced by p2"):
            world.happen(world.agent(devices=(world.device(),), connected=connected))
    with pytest.raises(Fenced):  # a report on a stream that never connected as this process
        world.happen(world.agent(instance_id="p3", connected=False))


def test_agent_process_that_yields_is_refused_while_another_speaks_and_let_in_when_it_is_gone(
    world,
):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request())
    second = replace(world.agent(instance_id="p2", devices=(world.device(),)), yields=True)
    for after in (0.0, 5.0):  # ONLINE, then SUSPECT
        with pytest.raises(Fenced, match="process p1 on here speaks for it; end that one or give"):
            world.happen(second, after=after)
        assert world.state.leases["l1"].is_live
        world.happen(Tick())
    world.happen(Tick(), after=10.0)
    assert observed(world) == ("OFFLINE", "OFFLINE")
    world.happen(second)
    assert observed(world) == ("ONLINE", "ONLINE")
    with pytest.raises(Fenced, match="process p1 was replaced by p2"):
        world.happen(world.agent(devices=(world.device(),)))


def test_agent_device_that_is_no_longer_reported_is_offline_and_its_lease_lost(world):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request())
    world.happen(world.agent())
    assert world.state.devices["dev0"].observed == "OFFLINE"
    assert world.state.leases["l1"].state == "LOST"
    assert world.happen(world.agent(connected=False)) == ()


def test_agent_device_of_a_live_agent_is_not_taken_over(world):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.agent("thief", devices=(world.device(), world.device("dev1"))))
    assert world.only(Warn).message == "agent thief: dev0 is agent agent's; ignored"
    assert world.state.devices["dev0"].agent_id == "agent"
    assert world.state.agents["thief"].device_ids == ("dev1",)


def test_agent_device_of_an_agent_that_is_gone_moves_with_its_epoch(world):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request())
    world.happen(Tick(), after=10.0)
    world.happen(world.agent("heir", devices=(world.device(),)))
    assert world.state.agents["agent"].device_ids == ()
    assert (world.state.devices["dev0"].agent_id, world.state.devices["dev0"].epoch) == ("heir", 1)
    world.happen(world.request("l2"))
    assert world.state.leases["l2"].epoch == 2
    world.happen(Tick(), after=700.0)
    assert set(world.state.agents) == {"heir"}


@pytest.mark.parametrize("late", ["idle", "restarted"])
def test_agent_that_has_not_heard_of_a_lease_proves_no_device_clean(world, late):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(world.request())
    world.happen(LeaseReleased("l1", 1))
    assert world.only(PushDesired).ended == (("dev0", 1),)
    fields = {"connected": False} if late == "idle" else {"instance_id": "p2"}
    world.happen(world.agent(devices=(world.device(epoch=0),), **fields))
    assert world.state.devices["dev0"].use == "CLEANING"
    world.happen(Tick(), after=world.state.limits.clean_s)
    assert world.state.devices["dev0"].health == "BAD"
    world.happen(world.agent(devices=(world.device(epoch=0),), **fields))
    assert world.state.devices["dev0"].health == "BAD"
    world.happen(world.agent(devices=(world.device(epoch=1),), **fields | {"connected": False}))
    assert world.state.devices["dev0"].is_free
    assert world.state.devices["dev0"].health == "GOOD"


def test_agent_that_knows_a_higher_epoch_raises_the_trackers(world):
    world.happen(world.agent(devices=(world.device(use=Use.LEASED, epoch=41),)))
    device = world.state.devices["dev0"]
    assert (device.use, device.epoch, device.is_free) == ("CLEANING", 41, False)
    world.happen(world.agent(devices=(world.device(),), connected=False))
    world.happen(world.request())
    assert world.state.leases["l1"].epoch == 42


@pytest.mark.parametrize("health", [it for it in Health if it is not Health.GOOD])
def test_agent_device_that_is_not_good_is_not_granted_until_it_is(world, health):
    world.happen(world.agent(devices=(world.device(health=health),)))
    world.happen(world.request())
    assert world.state.leases["l1"].state == "QUEUED"
    world.happen(world.agent(devices=(world.device(),), connected=False))
    assert world.state.leases["l1"].state == "GRANTED"


def test_agent_device_that_gains_a_label_serves_who_waits_for_it(world):
    world.happen(world.agent(devices=(world.device(),)))
    world.happen(
        world.agent("other", devices=(world.device("dev1", health=Health.BAD, fast="yes"),))
    )
    world.happen(world.request(selector="fast"))
    assert world.state.leases["l1"].state == "QUEUED"
    world.happen(world.agent(devices=(world.device(fast="yes"),), connected=False))
    assert world.state.leases["l1"].device_id == "dev0"


def test_agent_without_devices_is_forgotten_after_a_while(world):
    world.happen(world.agent())
    world.happen(Tick(), after=10.0)
    assert world.state.agents["agent"].observed is Observed.OFFLINE
    world.happen(AgentDisconnected("agent", "p1"))
    world.happen(Tick(), after=600.0)
    assert world.state.agents == {}
