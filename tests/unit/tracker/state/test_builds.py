from __future__ import annotations

from dataclasses import replace

import pytest
from farm_tracker.state.commands import JobEnded, PushDesired, UnitChanged
from farm_tracker.state.events import AgentDisconnected, BuildCancelled, BuildMerged, Tick
from farm_tracker.state.model import Observed

from farm.errors import InvalidInput, NobodyCanServe, all_errors

X86 = ("llvm/x86_64",)


def orders(world, agent_id="agent"):
    return [it.attempt_id for it in world.desired(agent_id).builds]


def units(world):
    return {key: str(unit.state) for key, unit in world.state.units.items()}


def test_build_units_go_to_agents_of_their_family_with_free_slots(world):
    world.happen(world.agent("one", builds=X86, slots=1))
    world.happen(world.agent("two", builds=(*X86, "ea"), slots=2))
    world.happen(
        world.submit("j", world.spec("a"), world.spec("b"), world.spec("c"), world.spec("d"))
    )
    assert [(it.attempt_id, it.agent_id) for it in world.state.attempts.values()] == [
        ("j-u0.1", "two"),
        ("j-u1.1", "one"),
        ("j-u2.1", "two"),
    ]
    assert units(world)["j-u3"] == "QUEUED"
    world.happen(world.agent("one", builds=X86, attempts=(world.done("j-u1.1"),), connected=False))
    assert orders(world, "one") == ["j-u3.1"]
    assert world.state.units["j-u1"].module is not None


def test_build_is_ready_to_merge_when_its_last_unit_is_done(world):
    world.happen(world.agent(builds=X86, slots=2))
    world.happen(world.submit("j", world.spec("a"), world.spec("b")))
    world.happen(world.agent(builds=X86, slots=2, attempts=(world.done("j-u0.1"),)))
    assert not [it for it in world.commands if isinstance(it, JobEnded)]
    world.happen(world.agent(builds=X86, slots=2, attempts=(world.done("j-u1.1"),)))
    assert world.only(JobEnded) == JobEnded("j", "BUILDING", "")
    world.happen(BuildMerged("j", world.state.units["j-u0"].module.object))
    assert world.state.jobs["j"].state == "DONE"
    world.happen(BuildCancelled("j"))
    assert world.state.jobs["j"].state == "DONE"


def test_build_that_could_not_be_merged_failed(world):
    world.happen(world.agent(builds=X86))
    world.happen(world.submit("j", world.spec("a")))
    world.happen(world.agent(builds=X86, attempts=(world.done("j-u0.1"),)))
    world.happen(BuildMerged("j", None, "two signatures"))
    assert (world.state.jobs["j"].state, world.state.jobs["j"].cause) == (
        "FAILED",
        "two signatures",
    )
    assert world.happen(BuildMerged("j", None, "again")) == ()


def test_build_first_outcome_of_an_attempt_stands(world):
    world.happen(world.agent(builds=X86))
    world.happen(world.submit("j", world.spec("a")))
    world.happen(world.agent(builds=X86, attempts=(world.done("j-u0.1"),)))
    world.happen(world.agent(builds=X86, attempts=(world.failed("j-u0.1", "INVALID_INPUT"),)))
    assert units(world) == {"j-u0": "DONE"}
    assert orders(world) == []  # the agent may drop it


def test_build_result_of_another_process_or_agent_does_not_count(world):
    world.happen(world.agent(builds=X86))
    world.happen(world.submit("j", world.spec("a")))
    world.happen(world.agent("other", attempts=(world.done("j-u0.1"),)))
    assert units(world) == {"j-u0": "BUILDING"}
    world.happen(world.agent(instance_id="p2", builds=X86, attempts=(world.done("j-u0.1"),)))
    assert world.state.attempts["j-u0.1"].state == "LOST"
    assert world.state.units["j-u0"].attempt_id == "j-u0.2"


def test_build_lost_attempts_are_retried_within_the_budget(world):
    world.happen(world.agent("watcher", builds=("ea",)))
    world.happen(world.agent(builds=X86))
    world.happen(world.submit("j", world.spec("a")))
    for life in range(2, 5):
        world.happen(world.agent(instance_id=f"p{life}", builds=X86))
    assert [str(it.state) for it in world.state.attempts.values()] == ["LOST"] * 3
    assert units(world) == {"j-u0": "FAILED"}
    assert world.state.units["j-u0"].failure.code == "DEVICE_LOST"
    assert world.only(JobEnded).state == "FAILED"


def test_build_job_that_fails_by_a_loss_gives_up_its_other_attempts_on_the_same_agent(world):
    world.happen(world.agent("watcher", builds=X86, slots=1))
    world.limit(lost_budget=0)
    world.happen(world.agent(builds=X86, slots=2))
    world.happen(world.submit("j", world.spec("a"), world.spec("b"), world.spec("c")))
    world.happen(world.agent(instance_id="p2", builds=X86, slots=2))
    assert sorted(units(world).values()) == ["CANCELLED", "CANCELLED", "FAILED"]
    assert sorted(str(it.state) for it in world.state.attempts.values()) == [
        "CANCELLED",
        "CANCELLED",
        "LOST",
    ]


def test_build_of_a_silent_agent_moves_to_another(world):
    world.happen(world.agent(builds=X86))
    world.happen(world.submit("j", world.spec("a")))
    world.happen(AgentDisconnected("agent", "p1"), after=1.0)
    world.happen(world.agent("other", builds=X86), after=8.0)
    assert world.state.units["j-u0"].agent_id == "agent"
    world.happen(Tick(), after=1.0)
    assert world.state.units["j-u0"].agent_id == "other"
    world.happen(world.agent("other", builds=X86, attempts=(world.done("j-u0.2"),)))
    assert units(world) == {"j-u0": "DONE"}


def test_build_attempt_without_an_outcome_in_time_is_lost(world):
    world.limit(suspect_s=1e6, offline_s=1e6)
    world.happen(world.agent(builds=X86))
    world.happen(world.submit("j", world.spec("a")))
    world.happen(Tick(), after=130.0)
    assert world.state.attempts["j-u0.1"].state == "LOST"
    assert world.state.units["j-u0"].attempt_id == "j-u0.2"


@pytest.mark.parametrize("cls", sorted(all_errors(), key=lambda cls: cls.code))
def test_build_failure_is_retried_only_if_the_farm_failed(world, cls):
    from farm.errors import InfrastructureError

    world.happen(world.agent(builds=X86))
    world.happen(world.submit("j", world.spec("a")))
    world.happen(world.agent(builds=X86, attempts=(world.failed("j-u0.1", cls.code),)))
    farm_failed = issubclass(cls, InfrastructureError)
    assert units(world) == {"j-u0": "DELAYED" if farm_failed else "FAILED"}
    world.happen(world.agent(builds=X86), after=1.0)
    assert units(world) == {"j-u0": "BUILDING" if farm_failed else "FAILED"}
    assert world.state.units["j-u0"].infra_left == (1 if farm_failed else 2)


def test_build_equal_units_in_flight_are_one_and_end_only_with_the_last_job(world):
    world.happen(world.agent(builds=X86, slots=4))
    world.happen(world.submit("j1", world.spec("a"), world.spec("b")))
    world.happen(world.submit("j2", world.spec("b"), world.spec("c")))
    assert set(units(world)) == {"j1-u0", "j1-u1", "j2-u1"}
    world.happen(BuildCancelled("j1"))
    assert units(world) == {"j1-u0": "CANCELLED", "j1-u1": "BUILDING", "j2-u1": "BUILDING"}
    world.happen(
        world.agent(builds=X86, slots=4, attempts=(world.done("j1-u1.1"), world.done("j2-u1.1")))
    )
    assert world.only(JobEnded) == JobEnded("j2", "BUILDING", "")


def test_build_keep_going_decides_whether_the_rest_is_given_up(world):
    for job_id, keep_going in (("j1", False), ("j2", True)):
        world.happen(world.agent(builds=X86, slots=1))
        specs = [world.spec(f"{job_id}{name}") for name in "ab"]
        world.happen(world.submit(job_id, *specs, keep_going=keep_going))
        world.happen(world.agent(builds=X86, attempts=(world.failed(f"{job_id}-u0.1", "X"),)))
    assert units(world) == {
        "j1-u0": "FAILED",
        "j1-u1": "CANCELLED",
        "j2-u0": "FAILED",
        "j2-u1": "BUILDING",
    }
    world.happen(world.agent(builds=X86, attempts=(world.done("j2-u1.1"),)))
    assert world.only(JobEnded).state == "FAILED"
    assert "j2a for target llvm/x86_64 failed" in world.state.jobs["j2"].cause


def test_build_that_an_agent_failed_is_tried_on_another_though_that_is_less_free(world):
    world.happen(world.agent("one", builds=X86, slots=4))
    world.happen(world.agent("two", builds=X86, slots=1))
    world.happen(world.submit("j", world.spec("a")))
    broken = world.failed("j-u0.1", "INFRASTRUCTURE")
    world.happen(world.agent("one", builds=X86, slots=4, attempts=(broken,), connected=False))
    world.happen(Tick(), after=3.0)
    world.happen(world.agent("two", builds=X86, slots=1, connected=False))
    tried = [(it.attempt_id, it.agent_id) for it in world.state.attempts.values()]
    assert tried == [("j-u0.1", "one"), ("j-u0.2", "two")]


def test_build_that_only_the_agent_that_failed_it_can_try_is_tried_there(world):
    world.happen(world.agent("one", builds=X86, slots=4))
    world.happen(world.submit("j", world.spec("a")))
    broken = world.failed("j-u0.1", "INFRASTRUCTURE")
    world.happen(world.agent("one", builds=X86, slots=4, attempts=(broken,), connected=False))
    world.happen(Tick(), after=3.0)
    assert orders(world, "one") == ["j-u0.2"]


def test_build_that_no_agent_serves_is_refused(world):
    world.happen(world.agent(builds=("ea",)))
    with pytest.raises(NobodyCanServe, match=r"agents build: ea"):
        world.happen(world.submit("j", world.spec("a")))
    world.happen(world.agent(builds=X86, slots=0))
    with pytest.raises(NobodyCanServe, match="nothing"):
        world.happen(world.submit("j", world.spec("a")))
    assert world.state.jobs == {}


def test_build_waits_for_builders_that_a_restarted_tracker_has_not_heard_of_yet(world):
    world.happen(world.agent(builds=X86))
    before = world.state.agents["agent"]
    world.state.agents["agent"] = replace(before, observed=Observed.UNKNOWN, last_report=world.now)
    world.happen(world.submit("j", world.spec("a")))
    assert units(world) == {"j-u0": "QUEUED"}
    world.happen(world.agent(builds=X86))
    assert units(world) == {"j-u0": "BUILDING"}


def test_build_whose_builders_all_went_away_fails_in_the_end(world):
    world.happen(world.agent(builds=X86))
    world.happen(world.submit("j", world.spec("a"), world.spec("b")))
    world.happen(Tick(), after=10.0)
    assert units(world) == {"j-u0": "QUEUED", "j-u1": "QUEUED"}
    world.happen(Tick(), after=600.0)
    assert set(units(world).values()) <= {"FAILED", "CANCELLED"}
    assert world.state.jobs["j"].state == "FAILED"


def test_build_job_over_its_limit_fails(world):
    world.limit(suspect_s=1e6, offline_s=1e6, attempt_s=1e6, job_s=50.0)
    world.happen(world.agent(builds=X86))
    world.happen(world.submit("j", world.spec("a")))
    world.happen(Tick(), after=50.0)
    assert (world.state.jobs["j"].state, units(world)) == ("FAILED", {"j-u0": "CANCELLED"})
    assert world.only(PushDesired).builds == ()


def test_build_units_are_kept_while_their_job_is_open_then_forgotten(world):
    world.limit(suspect_s=1e6, offline_s=1e6, attempt_s=1e6)
    world.happen(world.agent(builds=X86, slots=2))
    world.happen(world.submit("j", world.spec("a"), world.spec("b")))
    world.happen(world.agent(builds=X86, slots=2, attempts=(world.done("j-u0.1"),)))
    world.happen(Tick(), after=650.0)
    assert units(world) == {"j-u0": "DONE", "j-u1": "BUILDING"}
    world.happen(world.agent(builds=X86, slots=2, attempts=(world.done("j-u1.1"),)))
    world.happen(BuildMerged("j", None, "test"))
    world.happen(Tick(), after=601.0)
    assert (world.state.jobs, world.state.units, world.state.attempts) == ({}, {}, {})


def test_build_news_goes_to_every_job_of_a_unit(world):
    world.happen(world.agent(builds=X86))
    world.happen(world.submit("j1", world.spec("a")))
    world.happen(world.submit("j2", world.spec("a")))
    world.happen(world.agent(builds=X86, attempts=(world.done("j1-u0.1"),)))
    assert world.only(UnitChanged).job_ids == ("j1", "j2")


def test_build_submitted_twice_or_empty_is_refused(world):
    world.happen(world.agent(builds=X86))
    world.happen(world.submit("j", world.spec("a")))
    for event in (world.submit("j", world.spec("b")), world.submit("k")):
        with pytest.raises(InvalidInput):
            world.happen(event)


def test_build_toolchains_of_an_agent_are_what_its_process_reports(world):
    chains = {"llvm/x86_64": "cc 1"}
    world.happen(replace(world.agent(builds=X86), toolchains=chains))
    assert world.state.agents["agent"].toolchains == chains
    world.happen(world.agent(instance_id="p2", builds=X86))
    assert world.state.agents["agent"].toolchains == {}
