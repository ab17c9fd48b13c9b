"""The agent's core: transitions, deadlines, fencing, builds; and invariants over random events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from farm_agents.state import initial_state, next_deadline, step
from farm_agents.state.devices import TABLE, AgentDefect, Facts, Trigger, change
from farm_agents.state.messages import (
    BuildEnded,
    BuildMoved,
    Check,
    Clean,
    Cleaned,
    Crashed,
    Desired,
    Fence,
    HealthSeen,
    KillBuild,
    Prepare,
    Prepared,
    Report,
    SessionFailed,
    StartBuild,
    Stop,
    Tick,
)
from farm_agents.state.model import (
    ACTIVE_PHASES,
    CLEAN_LIMIT_S,
    KILL_LIMIT_S,
    PREPARE_LIMIT_S,
    TRANSFER_LIMIT_S,
    BuildOrder,
    BuildPhase,
    Built,
    Device,
    Failed,
    Grant,
    Health,
    Use,
)
from hypothesis import given
from hypothesis import strategies as st

from farm.core.digest import digest_of

OBJECT = Built(digest_of(b"object"), "elf-object", 1, (), "test", b"{}")


def grant(epoch, ends_at=100.0, device="d"):
    return Grant(f"lease-{epoch}", device, epoch, ends_at)


def order(name, limit_s=5.0):
    return BuildOrder(name, "device", "llvm", "f", digest_of(b"f"), limit_s)


def fresh(slots=1):
    state, _ = step(initial_state(["d"], slots), HealthSeen("d", Health.GOOD, ""), 0.0)
    return state


def play(state, *events):
    """Feed ``(now, event)`` pairs; return the state and all commands except Report."""
    commands = []
    for now, event in events:
        state, new = step(state, event, now)
        commands += [command for command in new if not isinstance(command, Report)]
    return state, commands


def test_lease_is_prepared_served_cleaned_and_idle_again():
    lease = grant(1)
    state, commands = play(fresh(), (1.0, Desired((lease,), ())))
    assert commands == [Prepare(lease)]
    assert (state.devices["d"].use, state.devices["d"].epoch) == (Use.PREPARING, 1)
    assert next_deadline(state) == 1.0 + PREPARE_LIMIT_S
    state, commands = play(state, (2.0, Prepared("d", 1)))
    assert (state.devices["d"].use, commands, next_deadline(state)) == (Use.LEASED, [], 100.0)
    state, commands = play(state, (3.0, Desired((), ())))
    assert (state.devices["d"].use, commands) == (Use.CLEANING, [Clean("d", 1)])
    assert next_deadline(state) == 3.0 + CLEAN_LIMIT_S
    state, commands = play(state, (4.0, Cleaned("d", 1)))
    assert (state.devices["d"].use, state.devices["d"].epoch, commands) == (Use.IDLE, 0, [])
    assert (state.devices["d"].last_epoch, next_deadline(state)) == (1, None)


@pytest.mark.parametrize("epoch", [1, 2])
def test_lease_with_an_epoch_not_above_the_last_is_fenced(epoch):
    state, _ = play(
        fresh(), (1.0, Desired((grant(2),), ())), (2.0, Desired((), ())), (3.0, Cleaned("d", 2))
    )
    late = Grant("late", "d", epoch, 100.0)
    state, commands = play(state, (4.0, Desired((late,), ())))
    assert commands == [Fence("late", "d", epoch, 2)]
    assert state.devices["d"].use is Use.IDLE


def test_epoch_that_is_over_before_its_grant_came_is_said_at_once_and_never_served():
    over = Desired((), (), ended=(("d", 3), ("another", 9)))
    state, commands = step(fresh(), over, 1.0)
    assert commands == (Report(),)
    assert (state.devices["d"].use, state.devices["d"].reported_epoch) == (Use.IDLE, 3)
    assert step(state, over, 2.0) == (state, ())
    assert play(state, (3.0, Desired((grant(3),), ())))[1] == [Fence("lease-3", "d", 3, 3)]
    assert play(state, (3.0, Desired((grant(4),), ())))[1] == [Prepare(grant(4))]


def test_epoch_that_is_over_while_an_older_one_is_served_waits_for_its_proof():
    state, _ = play(fresh(), (1.0, Desired((grant(1),), ())), (2.0, Prepared("d", 1)))
    state, commands = play(state, (3.0, Desired((), (), ended=(("d", 2),))))
    assert commands == [Clean("d", 1)]
    assert (state.devices["d"].use, state.devices["d"].reported_epoch) == (Use.CLEANING, 1)
    state, _ = play(state, (4.0, Cleaned("d", 1)))
    assert (state.devices["d"].use, state.devices["d"].reported_epoch) == (Use.IDLE, 2)


def test_lease_of_a_lower_epoch_ends_what_is_served_and_is_refused():
    state, _ = play(fresh(), (1.0, Desired((grant(5),), ())), (2.0, Prepared("d", 5)))
    state, commands = play(state, (3.0, Desired((grant(4),), ())))
    assert commands == [Fence("lease-4", "d", 4, 5), Clean("d", 5)]
    state, commands = play(state, (4.0, Cleaned("d", 5)))
    assert (state.devices["d"].use, commands) == (Use.IDLE, [])


def test_lease_of_a_higher_epoch_starts_only_after_cleaning():
    state, _ = play(fresh(), (1.0, Desired((grant(1),), ())), (2.0, Prepared("d", 1)))
    state, commands = play(state, (3.0, Desired((grant(2),), ())))
    assert commands == [Clean("d", 1)]
    state, commands = play(state, (4.0, Cleaned("d", 1)))
    assert commands == [Prepare(grant(2))]


def test_lease_that_is_renewed_moves_its_deadline():
    state, _ = play(fresh(), (1.0, Desired((grant(1, 10.0),), ())), (2.0, Prepared("d", 1)))
    state, commands = play(state, (9.0, Desired((grant(1, 20.0),), ())))
    assert (commands, next_deadline(state)) == ([], 20.0)


def test_lease_ends_by_the_clock_and_expiry_wins_over_a_late_renewal():
    state, _ = play(fresh(), (1.0, Desired((grant(1, 10.0),), ())), (2.0, Prepared("d", 1)))
    state, commands = play(state, (10.0, Desired((grant(1, 20.0),), ())))
    assert (state.devices["d"].use, commands) == (Use.CLEANING, [Clean("d", 1)])
    state, commands = play(state, (11.0, Cleaned("d", 1)))
    assert (state.devices["d"].use, commands) == (Use.IDLE, [])


def test_lease_whose_worker_does_not_start_in_time_is_given_up():
    state, _ = play(fresh(), (0.0, Desired((grant(1),), ())))
    state, commands = play(state, (PREPARE_LIMIT_S, Tick()))
    assert (state.devices["d"].use, commands) == (Use.CLEANING, [Clean("d", 1)])
    state, commands = play(state, (31.0, Prepared("d", 1)))  # too late
    assert (state.devices["d"].use, commands) == (Use.CLEANING, [])


def test_lease_whose_session_fails_is_cleaned():
    state, _ = play(fresh(), (0.0, Desired((grant(1),), ())), (1.0, Prepared("d", 1)))
    state, commands = play(state, (2.0, SessionFailed("d", 1, "refused")))
    assert commands == [Clean("d", 1)]


def test_device_that_cannot_be_cleaned_is_bad_until_it_is_proved_clean():
    state, _ = play(fresh(), (0.0, Desired((grant(1),), ())), (1.0, Desired((), ())))
    state, commands = play(state, (1.0 + CLEAN_LIMIT_S, Tick()))
    device = state.devices["d"]
    assert (device.use, device.health, commands) == (Use.CLEANING, Health.BAD, [Clean("d", 1)])
    assert device.health_cause.startswith("unkillable: ")
    state, _ = play(state, (12.0, HealthSeen("d", Health.GOOD, "")))  # no check can heal it
    assert state.devices["d"].health is Health.BAD
    state, commands = play(state, (13.0, Cleaned("d", 1)))
    device = state.devices["d"]
    assert (device.use, device.health, commands) == (Use.IDLE, Health.UNCHECKED, [Check("d")])


def test_device_on_which_something_crashed_is_checked_before_it_is_used_again():
    state, _ = play(fresh(), (0.0, Desired((grant(1),), ())), (1.0, Prepared("d", 1)))
    state, commands = play(state, (2.0, Desired((), ())), (2.0, Crashed("d", 1)))
    assert (state.devices["d"].health, commands) == (Health.GOOD, [Clean("d", 1)])
    state, commands = play(state, (3.0, Cleaned("d", 1)))
    device = state.devices["d"]
    assert (device.use, device.health, commands) == (Use.IDLE, Health.CHECKING, [Check("d")])
    state, _ = play(state, (4.0, HealthSeen("d", Health.GOOD, "")))
    assert state.devices["d"] == replace(device, health=Health.GOOD, health_cause="")


def test_device_that_was_sick_before_a_crash_stays_so_until_it_is_checked():
    state, _ = play(fresh(), (0.0, Desired((grant(1),), ())), (1.0, Prepared("d", 1)))
    state, _ = play(state, (1.0, HealthSeen("d", Health.BAD, "hot")), (2.0, Desired((), ())))
    state, commands = play(state, (2.0, Crashed("d", 1)), (3.0, Cleaned("d", 1)))
    assert (state.devices["d"].health, commands[-1]) == (Health.BAD, Check("d"))


def test_crash_of_an_earlier_lease_changes_nothing():
    state, _ = play(fresh(), (0.0, Desired((grant(2),), ())))
    after, commands = play(state, (1.0, Crashed("d", 1)))
    assert (after, commands) == (state, [])


def test_device_that_is_bad_takes_no_lease_until_it_is_well():
    state, _ = play(fresh(), (0.0, HealthSeen("d", Health.BAD, "locked by pid 1")))
    state, commands = play(state, (1.0, Desired((grant(1),), ())))
    assert commands == []
    state, commands = play(state, (2.0, HealthSeen("d", Health.GOOD, "")))
    assert commands == [Prepare(grant(1))]


def test_answer_of_an_earlier_lease_changes_nothing():
    state, _ = play(fresh(), (0.0, Desired((grant(1),), ())), (1.0, Desired((grant(2),), ())))
    state, _ = play(state, (2.0, Cleaned("d", 1)))
    after, commands = play(state, (3.0, Prepared("d", 1)), (3.0, Cleaned("d", 1)))
    assert (after, commands) == (state, [])


def test_invalid_transition_tells_the_story():
    state, _ = play(fresh(), (0.0, Desired((grant(1),), ())), (1.0, Prepared("d", 1)))
    with pytest.raises(
        AgentDefect,
        match=r"no transition from LEASED\(1\) on CLEANED; story: 0.000 GRANTED: IDLE\(0\) -> "
        r"PREPARING\(1\); 1.000 PREPARED",
    ):
        step(state, Cleaned("d", 1), 2.0)


def test_table_covers_each_use_and_leads_only_to_the_next_one():
    following = {
        Use.IDLE: {Use.PREPARING},
        Use.PREPARING: {Use.PREPARING, Use.LEASED, Use.CLEANING},
        Use.LEASED: {Use.LEASED, Use.CLEANING},
        Use.CLEANING: {Use.CLEANING, Use.IDLE},
    }
    assert {use for use, _ in TABLE} == set(Use)
    for use, trigger in TABLE:
        lease = None if use is Use.IDLE else grant(1)
        device = Device("d", use=use, lease=lease, deadline=None if use is Use.IDLE else 50.0)
        changed, _ = change(device, trigger, Facts(1.0, grant(1)))
        assert changed.use in following[use], (use, trigger)


def test_build_goes_through_its_phases_and_stays_until_it_is_dropped():
    state, commands = play(fresh(), (0.0, Desired((), (order("a"),))))
    assert commands == [StartBuild(order("a"))]
    assert next_deadline(state) == TRANSFER_LIMIT_S
    state, _ = play(state, (1.0, BuildMoved("a", BuildPhase.COMPILING)))
    assert next_deadline(state) == 6.0
    state, _ = play(state, (2.0, BuildMoved("a", BuildPhase.STORING)))
    state, commands = play(state, (3.0, BuildEnded("a", OBJECT, 0.5)), (4.0, Tick()))
    assert (state.builds["a"].outcome, state.builds["a"].seconds) == (OBJECT, 0.5)
    assert (commands, next_deadline(state)) == ([], None)
    state, _ = play(state, (5.0, Desired((), ())))
    assert state.builds == {}


def test_build_past_its_limit_is_killed_and_says_so():
    state, _ = play(
        fresh(), (0.0, Desired((), (order("a"),))), (1.0, BuildMoved("a", BuildPhase.COMPILING))
    )
    state, commands = play(state, (6.0, Tick()))
    assert commands == [KillBuild("a")]
    state, commands = play(state, (6.0 + KILL_LIMIT_S, Tick()))
    assert commands == [KillBuild("a")]  # once more
    state, _ = play(state, (17.0, BuildEnded("a", Failed("CANCELLED", "killed"), 0.0)))
    assert state.builds["a"].outcome.code == "TIME_LIMIT"


def test_build_whose_transfer_takes_too_long_is_a_fault_of_the_farm():
    state, _ = play(fresh(), (0.0, Desired((), (order("a"),))), (TRANSFER_LIMIT_S, Tick()))
    state, _ = play(state, (121.0, BuildEnded("a", Failed("CANCELLED", "killed"), 0.0)))
    assert state.builds["a"].outcome.code == "INFRASTRUCTURE"


def test_build_that_is_unwanted_keeps_its_slot_until_it_is_gone():
    state, _ = play(fresh(), (0.0, Desired((), (order("a"),))))
    state, commands = play(state, (1.0, Desired((), (order("b"),))))
    assert commands == [KillBuild("a")]
    state, commands = play(state, (2.0, BuildEnded("a", OBJECT, 0.1)))
    assert (commands, list(state.builds)) == ([StartBuild(order("b"))], ["b"])


def test_build_that_is_wanted_again_while_it_dies_starts_afresh():
    state, _ = play(fresh(), (0.0, Desired((), (order("a"),))), (1.0, Desired((), ())))
    state, _ = play(state, (2.0, Desired((), (order("a"),))))
    _, commands = play(state, (3.0, BuildEnded("a", Failed("CANCELLED", "killed"), 0.0)))
    assert commands == [StartBuild(order("a"))]


@pytest.mark.parametrize(
    "event", [BuildEnded("x", OBJECT, 0.0), BuildMoved("a", BuildPhase.STORING)]
)
def test_build_answers_that_do_not_fit_are_defects(event):
    state, _ = play(fresh(), (0.0, Desired((), (order("a"),))))
    with pytest.raises(AgentDefect):
        step(state, event, 1.0)


def test_stop_ends_everything_and_takes_nothing_new():
    state, _ = play(fresh(), (0.0, Desired((grant(1),), (order("a"),))))
    state, commands = play(state, (1.0, Stop()))
    assert commands == [Clean("d", 1), KillBuild("a")]
    assert not state.at_rest
    state, commands = play(
        state,
        (2.0, Desired((grant(2),), (order("b"),))),
        (3.0, Cleaned("d", 1)),
        (3.0, BuildEnded("a", OBJECT, 0.0)),
    )
    assert (commands, state.at_rest, state.builds) == ([], True, {})


def test_report_comes_when_a_device_is_ready_or_free_and_not_for_each_step_on_the_way():
    state, commands = step(fresh(), Desired((grant(1),), (order("a"),)), 0.0)
    assert Report() not in commands
    state, commands = step(state, Prepared("d", 1), 1.0)
    assert Report() in commands
    state, commands = step(state, Desired((replace(grant(1), ends_at=200.0),), (order("a"),)), 1.0)
    assert commands == ()
    state, commands = step(state, BuildEnded("a", OBJECT, 0.0), 1.0)
    assert commands == (Report(),)
    state, commands = step(state, Desired((), ()), 2.0)
    assert commands == (Clean("d", 1),)
    _, commands = step(state, Cleaned("d", 1), 3.0)
    assert commands == (Report(),)


@pytest.mark.parametrize(
    "event",
    [SessionFailed("d", 1, "no worker"), Tick(), HealthSeen("d", Health.BAD, "hot"), Stop()],
)
def test_report_comes_at_once_for_what_the_tracker_did_not_ask_for(event):
    state, _ = play(fresh(), (0.0, Desired((grant(1),), ())), (1.0, Prepared("d", 1)))
    _, commands = step(state, event, 1000.0)
    assert Report() in commands


# Random histories: a shell that answers in any order and at any time, a tracker that wants anything.

EPOCHS = st.integers(1, 6)
NAMES = st.sampled_from("abc")
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("desired"),
            st.lists(st.tuples(EPOCHS, st.floats(0, 30)), max_size=1),
            st.sets(NAMES),
            st.lists(EPOCHS, max_size=1),
        ),
        st.tuples(st.just("answer"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("stale"), EPOCHS, st.booleans()),
        st.tuples(st.just("wait"), st.floats(0, 15)),
        st.tuples(st.just("health"), st.sampled_from([Health.GOOD, Health.BAD, None])),
        st.tuples(st.just("stop")),
    ),
    max_size=40,
)


class Shell:
    """Does what the core commands, when the random history says so."""

    def __init__(self):
        self.now = 0.0
        self.state = initial_state(["d"], 2)
        self.pending = []
        self.prepared = []
        self.dirty = 0
        self.over = 0

    def feed(self, event):
        before = self.state
        if isinstance(event, Desired) and not before.stopping:
            self.over = max([self.over, *(epoch for _, epoch in event.ended)])
        self.state, commands = step(before, event, self.now)
        for command in commands:
            self.obey(command)
        check(before, self.state)

    def obey(self, command):
        match command:
            case Prepare(lease):
                assert lease.epoch > self.over, "an epoch that was over is served"
                assert self.dirty == 0, "prepared before the last lease was cleaned"
                assert all(lease.epoch > epoch for epoch in self.prepared), "an epoch came twice"
                self.prepared.append(lease.epoch)
                self.dirty = lease.epoch
                self.pending.append(Prepared("d", lease.epoch))
            case Clean(device, epoch):
                self.pending = [p for p in self.pending if not isinstance(p, Prepared)]
                if Cleaned(device, epoch) not in self.pending:
                    self.pending.append(Cleaned(device, epoch))
            case StartBuild(build):
                self.pending.append(BuildMoved(build.attempt_id, BuildPhase.COMPILING))
            case KillBuild(attempt_id):
                self.pending = [
                    p
                    for p in self.pending
                    if not (isinstance(p, BuildMoved | BuildEnded) and p.attempt_id == attempt_id)
                ]
                self.pending.append(BuildEnded(attempt_id, Failed("CANCELLED", ""), 0.0))
            case _:
                pass

    def answer(self, index, well):
        event = self.pending.pop(index % len(self.pending))
        match event:
            case Prepared(device, epoch) if not well:
                event = SessionFailed(device, epoch, "no")
            case Cleaned():
                self.dirty = 0
            case BuildMoved(attempt_id, BuildPhase.COMPILING):
                self.pending.append(BuildMoved(attempt_id, BuildPhase.STORING))
            case BuildMoved(attempt_id, _):
                self.pending.append(BuildEnded(attempt_id, OBJECT, 1.0))
            case _:
                pass
        self.feed(event)


def check(before, after):
    for device in after.devices.values():
        assert (device.use is Use.IDLE) == (device.lease is None) == (device.deadline is None)
        assert device.last_epoch >= before.devices[device.device_id].last_epoch
        assert device.epoch <= device.last_epoch
        assert not device.unkillable or device.health is Health.BAD
        assert not device.suspect or device.use is not Use.IDLE
    active = [build for build in after.builds.values() if build.phase in ACTIVE_PHASES]
    assert len(active) <= after.slots
    for build in after.builds.values():
        assert (build.phase in ACTIVE_PHASES) == (build.deadline is not None)
        assert (build.phase is BuildPhase.FINISHED) == (build.outcome is not None)
        wanted = build.order.attempt_id in after.wanted_builds
        assert wanted or build.phase is BuildPhase.KILLING


@given(STEPS)
def test_random_history_keeps_the_invariants_and_comes_to_rest(history):
    shell = Shell()
    for kind, *values in history:
        match kind:
            case "desired":
                leases = tuple(grant(epoch, shell.now + left) for epoch, left in values[0])
                builds = tuple(map(order, sorted(values[1])))
                ended = tuple(("d", epoch) for epoch in values[2])
                shell.feed(Desired(leases, builds, ended=ended))
            case "answer" if shell.pending:
                shell.answer(*values)
            case "stale":
                epoch = values[0]
                if epoch != shell.state.devices["d"].epoch:
                    shell.feed(Cleaned("d", epoch) if values[1] else Prepared("d", epoch))
            case "wait":
                shell.now += values[0]
                shell.feed(Tick())
                deadline = next_deadline(shell.state)
                assert deadline is None or deadline > shell.now
            case "health":
                epoch = shell.state.devices["d"].epoch
                seen = HealthSeen("d", values[0], "") if values[0] else Crashed("d", epoch)
                shell.feed(seen)
            case "stop":
                shell.feed(Stop())
            case _:
                pass
    shell.feed(Stop())
    while shell.pending:
        shell.answer(0, True)
    assert shell.state.at_rest
    assert shell.dirty == 0
    assert next_deadline(shell.state) is None


def test_triggers_all_appear_in_the_table():
    assert {trigger for _, trigger in TABLE} == set(Trigger)
