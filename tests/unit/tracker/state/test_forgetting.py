"""Devices that stay away are forgotten, their epochs are not."""

from __future__ import annotations

import pytest
from farm_tracker import adopting
from farm_tracker.commits import durable_part
from farm_tracker.state import State, step, violations
from farm_tracker.state.events import AdminSet, LeaseReleased, Tick
from farm_tracker.state.model import Admin, Health, Use
from farm_tracker.state.state import Changes
from farm_tracker.store import Store
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farm.errors import FarmError, NobodyCanServe
from farm.target import Selector

WEEK_S = 7 * 86_400.0


def use(world, device_id="dev0"):
    """Give a device out and back; return the epoch."""
    lease_id = f"l{world.now}{device_id}"
    world.happen(world.request(lease_id, f"device_id={device_id}"))
    epoch = world.state.leases[lease_id].epoch
    world.happen(LeaseReleased(lease_id, epoch))
    world.join(after=0.5)
    return epoch


def stay_away(world, for_s=WEEK_S):
    world.happen(Tick(), after=10.0)
    world.happen(Tick(), after=for_s)
    world.happen(Tick(), after=0.0)


def test_device_that_was_offline_for_long_is_forgotten_with_its_agent(world):
    world.join()
    stay_away(world, WEEK_S - 0.1)
    assert set(world.state.devices) == {"dev0"}
    world.happen(Tick(), after=0.1)
    world.happen(Tick())
    assert (world.state.devices, world.state.agents) == ({}, {})
    assert world.state.next_deadline() is None
    assert [it.kind for it in world.state.notes][-2:] == ["agent.offline", "device.forgotten"]


@pytest.mark.parametrize("what", ["request", "job"])
def test_request_in_the_step_that_forgets_the_device_is_refused(world, what):
    world.join()
    world.happen(world.request("l", ttl_s=1.0))  # so that it is known which devices match
    world.happen(Tick(), after=10.0)
    with pytest.raises(NobodyCanServe, match="no device"):
        world.happen(getattr(world, what)("x"), after=WEEK_S)


def test_device_that_returns_goes_on_after_every_epoch_it_had(world):
    world.join()
    assert [use(world) for _ in range(3)] == [1, 2, 3]
    stay_away(world)
    world.join()
    assert use(world) == 4


def test_device_that_is_new_goes_on_after_all_that_were_forgotten(world):
    world.join("agent", "dev0", "dev1")
    use(world)
    world.join("agent", "dev0", "dev1", after=0.1)
    epochs = []
    for number in range(2):
        world.happen(world.request(f"m{number}", "device_id=dev1"))
        epochs.append(world.state.leases[f"m{number}"].epoch)
        world.happen(LeaseReleased(f"m{number}", epochs[-1]))
        world.join("agent", "dev0", "dev1", after=0.1)
    stay_away(world)
    assert world.state.devices == {}
    world.join("other", "dev0", "dev2")
    known = world.state.devices
    assert {known["dev0"].epoch, known["dev2"].epoch} == {max(epochs)}


@pytest.mark.parametrize("admin", [Admin.DRAINING, Admin.MAINTENANCE, Admin.RETIRED])
def test_device_that_people_took_out_of_service_is_kept_until_they_take_that_back(world, admin):
    world.join()
    world.happen(AdminSet(Selector(()), admin, "fan broken", 0.0, "olga"))
    stay_away(world, 10 * WEEK_S)
    assert world.state.devices["dev0"].admin_reason == "fan broken"
    world.happen(AdminSet(Selector(()), Admin.ENABLED))
    world.happen(Tick())
    assert world.state.devices == {}


def test_device_that_a_live_agent_no_longer_has_is_forgotten_alone(world):
    world.limit(device_retain_s=5.0)
    world.join("agent", "dev0", "dev1")
    for _ in range(6):
        world.join("agent", "dev0", after=1.0)
    assert (set(world.state.devices), set(world.state.agents)) == ({"dev0"}, {"agent"})
    assert world.state.agents["agent"].device_ids == ("dev0",)


def test_device_that_was_never_proved_clean_has_to_be_when_it_returns(world):
    world.join()
    world.happen(world.request("l"))
    stay_away(world)
    assert world.state.devices == {}
    busy = world.device(use=Use.CLEANING, epoch=1)
    world.happen(world.agent(devices=(busy,)))
    device = world.state.devices["dev0"]
    assert (device.use, device.is_free, device.epoch) == ("CLEANING", False, 1)
    world.happen(Tick(), after=0.0)
    for _ in range(10):
        world.happen(world.agent(devices=(busy,), connected=False), after=3.0)
    assert world.state.devices["dev0"].health is Health.BAD


def test_time_offline_is_counted_from_the_first_silence_also_over_restarts(world):
    world.join()
    world.happen(Tick(), after=10.0)
    since = world.state.devices["dev0"].offline_at
    assert since == world.now
    disk = Disk()
    disk.keep(world.state)
    world.state = disk.restarted(world.state.limits, world.now)
    world.happen(Tick(), after=10.0)
    assert world.state.devices["dev0"].offline_at == since
    world.join()
    assert world.state.devices["dev0"].offline_at is None


class Disk:
    """What a tracker that is killed leaves: rows of a real store."""

    def __init__(self):
        self.store = Store("sqlite://")

    def write(self, state, changes, now):
        stored = durable_part(state, changes)
        if stored is not None:
            self.store.write(stored, now, now)

    def keep(self, state):
        everything = Changes(agents=dict(state.agents), devices=dict(state.devices))
        self.write(State(state.limits), everything, 0.0)

    def restarted(self, limits, now):
        state = State(limits)
        state.apply(adopting.changes_of(self.store.load(now, now), now, limits))
        return state


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.sampled_from(["use", "use", "away", "restart"]), st.sampled_from("abc")),
        max_size=25,
    )
)
def test_no_epoch_of_a_device_comes_twice_whoever_stays_away_or_restarts(world, acts):
    farm = Farm(type(world)())
    for act, name in acts:
        getattr(farm, act)(name)
    farm.disk.store.close()


class Farm:
    """Three agents with a device each, at a tracker with a disk."""

    def __init__(self, world):
        self.world, self.disk = world, Disk()
        world.limit(device_retain_s=20.0)
        self.used, self.gone, self.count = {}, set(), 0

    def happen(self, event, after=0.0):
        self.world.now += after
        try:
            result = step(self.world.state, event, self.world.now)
        except FarmError:
            return
        self.disk.write(self.world.state, result.changes, self.world.now)
        self.world.state.apply(result.changes)
        assert violations(self.world.state) == []

    def report(self, name):
        known = self.world.state.devices.get(name)
        held = known is not None and known.lease_id is not None
        said = (name, Use.LEASED, known.epoch) if held else (name,)
        self.happen(self.world.agent(f"agent-{name}", devices=(self.world.device(*said),)))

    def use(self, name):
        self.gone.discard(name)
        self.report(name)
        self.count += 1
        lease_id = f"l{self.count}"
        self.happen(self.world.request(lease_id, f"device_id={name}"))
        lease = self.world.state.leases[lease_id]
        assert lease.epoch > self.used.get(name, 0)
        self.used[name] = lease.epoch
        self.happen(LeaseReleased(lease_id, lease.epoch))
        self.report(name)

    def away(self, name):
        self.gone.add(name)
        for _ in range(6):
            self.happen(Tick(), after=6.0)
            for other in {"a", "b", "c"} - self.gone:
                self.report(other)
        assert name not in self.world.state.devices

    def restart(self, _):
        self.world.state = self.disk.restarted(self.world.state.limits, self.world.now)
