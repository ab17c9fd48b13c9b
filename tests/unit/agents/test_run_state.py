"""Run attempts in the agent's core: one start each, fencing, ends of leases, what is kept and when it is dropped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from farm_agents.state import initial_state, next_deadline, step
from farm_agents.state.devices import AgentDefect
from farm_agents.state.messages import (
    Clean,
    Cleaned,
    Desired,
    DropRun,
    Fence,
    HealthSeen,
    KillRun,
    Prepare,
    Prepared,
    Report,
    RunEnded,
    RunLogged,
    RunMoved,
    RunsTold,
    SessionFailed,
    StartRun,
    Stop,
    Tick,
)
from farm_agents.state.model import KILL_LIMIT_S, Failed, Grant, Health, Use
from farm_agents.state.run import (
    KEEP_LIMIT_S,
    LOAD_LIMIT_S,
    RUN_GRACE_S,
    Run,
    RunOrder,
    RunPhase,
    RunResult,
)
from hypothesis import given
from hypothesis import strategies as st

from farm.core.digest import digest_of
from farm.core.limits import JOB_END_S, JOB_PREPARE_S, JOB_SETUP_S, MAX_JOB_LIMIT_S

CHUNK = digest_of(b"noise\n")
KILLED = Failed("CANCELLED", "killed")


def grant(epoch, ends_at=100.0):
    return Grant(f"lease-{epoch}", "d", epoch, ends_at)


def order(epoch, name=None, device="d"):
    return RunOrder(name or f"job.{epoch}", "job", f"lease-{epoch}", device, epoch, 5.0, b"run")


def ended(epoch, outcome=None):
    return RunEnded(f"job.{epoch}", outcome or RunResult(b"result"), 10.0, 11.0)


def wanted(*epochs):
    """What the tracker wants: for each epoch its lease and its run."""
    return Desired(tuple(map(grant, epochs)), (), tuple(map(order, epochs)))


NOTHING = Desired((), ())


def play(state, *events):
    """Feed ``(now, event)`` pairs; return the state and all commands except Report."""
    commands = []
    for now, event in events:
        state, new = step(state, event, now)
        commands += [command for command in new if not isinstance(command, Report)]
    return state, commands


@pytest.fixture
def fresh():
    return step(initial_state(["d"], 1), HealthSeen("d", Health.GOOD, ""), 0.0)[0]


@pytest.fixture
def running(fresh):
    """Epoch 1, RUNNING since 4.0."""
    return play(
        fresh,
        (1.0, wanted(1)),
        (2.0, Prepared("d", 1)),
        (3.0, RunMoved("job.1", RunPhase.LOADING)),
        (4.0, RunMoved("job.1", RunPhase.RUNNING)),
    )[0]


def test_run_goes_through_its_phases_and_stays_until_it_is_told_and_dropped(fresh):
    state, commands = play(fresh, (1.0, wanted(1)))
    assert (state.runs["job.1"].phase, commands) == (RunPhase.WAITING, [Prepare(grant(1))])
    assert state.is_for_run(grant(1))
    assert not state.is_for_run(grant(2))
    state, commands = play(state, (2.0, Prepared("d", 1)))
    assert (state.runs["job.1"].phase, commands) == (RunPhase.FETCHING, [StartRun(order(1))])
    assert state.runs["job.1"].deadline == 100.0 - 5.0 - RUN_GRACE_S  # so that the run has its time
    state, _ = play(state, (3.0, RunMoved("job.1", RunPhase.LOADING)))
    assert next_deadline(state) == 3.0 + LOAD_LIMIT_S
    state, _ = play(state, (4.0, RunMoved("job.1", RunPhase.RUNNING)))
    assert next_deadline(state) == 4.0 + 5.0 + RUN_GRACE_S
    state, _ = play(state, (5.0, RunLogged("job.1", (CHUNK,), False)))
    state, _ = play(state, (6.0, RunMoved("job.1", RunPhase.STORING)))
    assert state.runs["job.1"].deadline == 6.0 + KEEP_LIMIT_S
    state, commands = play(state, (7.0, ended(1)), (7.5, wanted(1)))
    assert commands == []
    assert state.runs["job.1"] == Run(
        order(1),
        RunPhase.FINISHED,
        outcome=RunResult(b"result"),
        log=(CHUNK,),
        run_by=100.0 - 5.0 - RUN_GRACE_S,
        started_at=10.0,
        ended_at=11.0,
    )
    state, commands = play(state, (8.0, RunsTold(frozenset({"job.1"}))), (9.0, wanted(1)))
    assert (state.runs["job.1"].is_told, commands) == (True, [])
    state, commands = play(state, (9.5, NOTHING))
    assert (state.runs, commands) == ({}, [DropRun("job.1"), Clean("d", 1)])


@given(
    limit_s=st.floats(0.01, MAX_JOB_LIMIT_S),
    ready_s=st.floats(0.0, JOB_PREPARE_S),
    fetch_s=st.floats(0.0, 1.0),
    load_s=st.floats(0.0, 1.0),
)
def test_run_that_begins_in_time_meets_its_own_limit_before_its_lease_ends(
    limit_s, ready_s, fetch_s, load_s
):
    term_s = JOB_PREPARE_S + JOB_SETUP_S + limit_s + JOB_END_S
    wish = replace(order(1), limit_s=limit_s)
    wants = Desired((grant(1, ends_at=term_s),), (), (wish,))
    state = initial_state(["d"], 1)
    state, _ = play(state, (0.0, HealthSeen("d", Health.GOOD, "")), (0.0, wants))
    state, _ = play(state, (ready_s, Prepared("d", 1)))
    fetched_at = ready_s + fetch_s * JOB_SETUP_S
    loaded_at = fetched_at + load_s * (ready_s + JOB_SETUP_S - fetched_at)
    state, _ = play(state, (fetched_at, RunMoved("job.1", RunPhase.LOADING)))
    state, _ = play(state, (loaded_at, RunMoved("job.1", RunPhase.RUNNING)))
    over_at = next_deadline(state)
    assert over_at <= term_s * (1 + 1e-9)
    state, commands = play(state, (over_at, Tick()))
    assert state.runs["job.1"].verdict.code == "TIME_LIMIT"
    assert KillRun("job.1") in commands


def test_run_that_is_not_set_up_in_time_is_the_farms_failure_not_the_works(fresh):
    for moves in ((), ((3.0, RunMoved("job.1", RunPhase.LOADING)),)):
        state, _ = play(fresh, (1.0, wanted(1)), (2.0, Prepared("d", 1)), *moves)
        state, commands = play(state, (80.0, Tick()))
        assert (state.runs["job.1"].verdict.code, commands) == (
            "INFRASTRUCTURE",
            [KillRun("job.1")],
        )


def test_run_that_is_known_never_starts_again_whatever_comes_how_often(running):
    state, commands = play(running, (5.0, wanted(1)), (6.0, wanted(1)))
    assert (state, commands) == (running, [])
    state, _ = play(state, (7.0, RunMoved("job.1", RunPhase.STORING)), (7.0, ended(1)))
    _, commands = play(state, (8.0, wanted(1)), (9.0, wanted(1)))
    assert commands == []


def test_run_whose_lease_is_withdrawn_is_killed_and_says_so(running):
    state, commands = play(running, (5.0, Desired((), (), (order(1),))))
    assert commands == [Clean("d", 1), KillRun("job.1")]
    assert not state.at_rest
    state, commands = play(state, (5.0 + KILL_LIMIT_S, Tick()))
    assert commands[-1] == KillRun("job.1")  # once more
    state, _ = play(state, (16.0, ended(1, KILLED)))
    failed = state.runs["job.1"].outcome
    assert failed.code == "INFRASTRUCTURE"
    assert failed.message.startswith(
        "run job.1: its lease on d ended (5.000 WITHDRAWN: LEASED(1) -> CLEANING(1))"
    )


def test_run_whose_lease_is_over_by_the_clock_is_killed(running):
    state, commands = play(running, (100.0, Tick()))
    assert commands == [Clean("d", 1), KillRun("job.1")]
    state, _ = play(state, (101.0, ended(1, KILLED)))
    # Its own limit was over earlier than the lease's term.
    assert state.runs["job.1"].outcome.code == "TIME_LIMIT"


def test_run_that_is_unwanted_is_killed_and_forgotten_when_it_was_told(running):
    state, commands = play(running, (5.0, NOTHING))
    assert commands == [Clean("d", 1), KillRun("job.1")]
    state, commands = play(state, (6.0, ended(1, KILLED)), (6.5, NOTHING))
    assert (state.runs["job.1"].outcome.code, commands) == ("CANCELLED", [])
    _, commands = play(state, (7.0, RunsTold(frozenset({"job.1"}))), (7.0, NOTHING))
    assert commands == [DropRun("job.1")]


def test_run_that_only_stores_survives_its_lease_and_the_trackers_silence(running):
    state, commands = play(running, (5.0, RunMoved("job.1", RunPhase.STORING)), (6.0, NOTHING))
    assert (state.runs["job.1"].phase, commands) == (RunPhase.STORING, [Clean("d", 1)])
    state, _ = play(state, (7.0, Cleaned("d", 1)), (900.0, ended(1)))
    assert state.runs["job.1"].outcome == RunResult(b"result")


def test_run_whose_kernel_returned_survives_its_lease(running):
    state, commands = play(running, (5.0, RunMoved("job.1", RunPhase.ENDING)), (6.0, NOTHING))
    assert (state.runs["job.1"].phase, commands) == (RunPhase.ENDING, [Clean("d", 1)])
    state, _ = play(state, (7.0, RunMoved("job.1", RunPhase.STORING)), (8.0, ended(1)))
    assert state.runs["job.1"].outcome == RunResult(b"result")


def test_run_that_cannot_be_stored_in_a_day_is_given_up(running):
    state, _ = play(running, (5.0, RunMoved("job.1", RunPhase.STORING)), (6.0, NOTHING))
    state, commands = play(state, (7.0, Cleaned("d", 1)), (5.0 + KEEP_LIMIT_S, Tick()))
    assert commands == [KillRun("job.1")]
    state, _ = play(state, (90_000.0, ended(1, KILLED)))
    assert state.runs["job.1"].outcome.code == "INFRASTRUCTURE"


@pytest.mark.parametrize(
    ("moves", "code"),
    [
        ((), "INFRASTRUCTURE"),
        ((RunPhase.LOADING,), "INFRASTRUCTURE"),
        ((RunPhase.LOADING, RunPhase.RUNNING), "TIME_LIMIT"),
        ((RunPhase.ENDING,), "INFRASTRUCTURE"),
        ((RunPhase.LOADING, RunPhase.RUNNING, RunPhase.ENDING), "INFRASTRUCTURE"),
    ],
)
def test_run_past_a_limit_is_killed_with_the_fault_of_its_phase(fresh, moves, code):
    state, _ = play(fresh, (0.0, Desired((grant(1, 500.0),), (), (order(1),))))
    state, _ = play(state, (1.0, Prepared("d", 1)), *((1.0, RunMoved("job.1", m)) for m in moves))
    state, commands = play(state, (200.0, Tick()))
    assert commands == [KillRun("job.1")]
    state, _ = play(state, (201.0, ended(1, KILLED)))
    assert state.runs["job.1"].outcome.code == code


def test_run_whose_worker_does_not_start_is_the_farms_fault(fresh):
    state, commands = play(fresh, (0.0, wanted(1)), (1.0, SessionFailed("d", 1, "disk full")))
    assert commands == [Prepare(grant(1)), Clean("d", 1)]
    failed = state.runs["job.1"].outcome
    assert (failed.code, "disk full" in failed.message) == ("INFRASTRUCTURE", True)


def test_run_waits_for_the_cleaning_of_the_lease_before_and_not_for_ever(fresh):
    state, _ = play(fresh, (0.0, wanted(1)), (1.0, wanted(2)))
    assert state.devices["d"].use is Use.CLEANING
    assert [run.phase for run in state.runs.values()] == [RunPhase.WAITING]
    after, commands = play(state, (2.0, Cleaned("d", 1)), (3.0, Prepared("d", 2)))
    assert commands == [Prepare(grant(2)), StartRun(order(2))]
    after, commands = play(state, (100.0, Tick()))
    assert commands == [Clean("d", 1)]
    assert after.runs["job.2"].outcome.code == "INFRASTRUCTURE"


@pytest.mark.parametrize("epoch", [1, 2])
def test_run_of_an_epoch_that_is_over_is_fenced(fresh, epoch):
    state, _ = play(fresh, (0.0, Desired((grant(2),), ())), (1.0, NOTHING), (2.0, Cleaned("d", 2)))
    late = replace(order(epoch, "late.1"), lease_id="late")
    stale = Grant("late", "d", epoch, 100.0)
    state, commands = play(state, (3.0, Desired((stale,), (), (late,))))
    assert commands == [Fence("late", "d", epoch, 2)]
    assert state.runs["late.1"].outcome.code == "FENCED"
    assert state.devices["d"].use is Use.IDLE


@pytest.mark.parametrize("it", [order(1, device="other"), order(1)])
def test_run_without_lease_or_device_here_is_refused(fresh, it):
    state, commands = play(fresh, (0.0, Desired((), (), (it,))))
    assert commands == []
    assert state.runs["job.1"].outcome.code == "INFRASTRUCTURE"


def test_run_of_an_earlier_process_is_told_and_then_dropped():
    kept = Run(order(1), RunPhase.FINISHED, outcome=RunResult(b"result"))
    going = Run(order(2), RunPhase.STORING, deadline=KEEP_LIMIT_S)
    state = initial_state(["d"], 1, [kept, going])
    assert state.at_rest
    state, commands = play(state, (0.0, NOTHING))
    assert (set(state.runs), commands) == ({"job.1", "job.2"}, [])
    state, _ = play(state, (1.0, ended(2)), (1.0, RunsTold(frozenset({"job.1", "job.2"}))))
    state, commands = play(state, (2.0, wanted(2)))
    assert (set(state.runs), commands) == ({"job.2"}, [DropRun("job.1"), Prepare(grant(2))])


def test_run_stopped_with_the_agent_is_killed_and_results_may_stay(running):
    storing, _ = play(running, (5.0, RunMoved("job.1", RunPhase.STORING)), (6.0, Stop()))
    storing, _ = play(storing, (6.0, Cleaned("d", 1)))
    assert storing.at_rest
    state, commands = play(running, (5.0, Stop()))
    assert commands == [Clean("d", 1), KillRun("job.1")]
    state, _ = play(state, (6.0, Cleaned("d", 1)), (6.0, ended(1, KILLED)))
    assert state.at_rest


@pytest.mark.parametrize(
    "event",
    [
        ended(7),
        RunMoved("job.1", RunPhase.LOADING),
        RunMoved("job.1", RunPhase.KILLING),
    ],
)
def test_run_answers_that_do_not_fit_are_defects(running, event):
    with pytest.raises(AgentDefect):
        step(running, event, 5.0)


def test_run_that_prints_after_its_end_is_a_defect(running):
    state, _ = play(running, (5.0, ended(1)))
    with pytest.raises(AgentDefect, match="printed in phase FINISHED"):
        step(state, RunLogged("job.1", (CHUNK,), False), 6.0)


def test_report_comes_when_a_run_prints_and_ends(fresh):
    state, commands = step(fresh, wanted(1), 1.0)
    assert Report() not in commands
    state, commands = step(state, Prepared("d", 1), 2.0)
    assert Report() not in commands  # nobody waits for the device but the run
    state, commands = step(state, RunMoved("job.1", RunPhase.LOADING), 2.0)
    assert commands == ()
    _, commands = step(state, HealthSeen("d", Health.BAD, "smoke"), 2.0)
    assert commands == (Report(),)
    state, commands = step(state, RunLogged("job.1", (CHUNK,), False), 2.0)
    assert commands == (Report(),)
    state, commands = step(state, ended(1), 2.0)
    assert commands == (Report(),)
    state, commands = step(state, RunsTold(frozenset({"job.1"})), 2.0)
    assert commands == ()
    state, commands = step(state, Desired((), (), ()), 2.0)
    assert set(commands) == {Clean("d", 1), DropRun("job.1")}
    _, commands = step(state, Cleaned("d", 1), 3.0)
    assert Report() in commands
