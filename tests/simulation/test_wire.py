"""What the simulation passes from one side to the other is what the real messages carry."""

from __future__ import annotations

from types import SimpleNamespace

from farm_agents.session import Identity
from farm_agents.state.model import (
    Build,
    BuildOrder,
    BuildPhase,
    Built,
    Device,
    Failed,
    Grant,
    Health,
    State,
    Use,
)
from farm_agents.state.run import Run, RunOrder, RunPhase, RunResult
from farm_agents.wire import desired_from_proto, state_to_proto
from farm_tracker.cas import BlobStore
from farm_tracker.service.convert import desired_to_proto
from farm_tracker.service.reports import Reports
from farm_tracker.state.commands import BuildOrder as SentBuild
from farm_tracker.state.commands import PushDesired
from farm_tracker.state.commands import RunOrder as SentRun
from farm_tracker.state.model import Description, Lease, LeaseState, TimingClass
from farm_tracker.state.run import RunAttempt

from farm.api.v1 import job_pb2
from farm.core.digest import digest_of
from simulation.clients import selector_of, spec_of
from simulation.wire import RUN_LIMIT_S, Sent, report_of

ABOUT = Description(
    "d0", ("llvm/x86_64",), {"kind": "sim"}, TimingClass.SIMULATED, ("arch:x86_64",)
)
OBJECT = digest_of(b"object")


def build(number: int, outcome: Built | Failed | None) -> Build:
    order = BuildOrder(f"u{number}.1", "device", "llvm", "f", OBJECT, 8.0)
    phase = BuildPhase.COMPILING if outcome is None else BuildPhase.FINISHED
    return Build(
        order,
        phase,
        9.0 if outcome is None else None,
        outcome=outcome,
        seconds=0.5 if outcome else 0.0,
    )


def run(number: int, outcome: RunResult | Failed | None) -> Run:
    order = RunOrder(f"j{number}.1", f"j{number}", f"l{number}", "d0", 7, 6.0, b"")
    phase = RunPhase.RUNNING if outcome is None else RunPhase.FINISHED
    return Run(order, phase, 9.0 if outcome is None else None, outcome=outcome, log=(OBJECT,))


def test_report_is_what_the_messages_carry(tmp_path):
    blobs = BlobStore(tmp_path)
    assert blobs.put(b"object") == OBJECT
    lost = Failed("DEVICE_LOST", "gone", (("device", "d0"),))
    built = Built(OBJECT, "elf-object", 1, ("arch:x86_64",), "test 1", b'{"params":[]}')
    result = RunResult(job_pb2.JobResult(samples_ns=[1, 2], target="llvm").SerializeToString())
    state = State(
        slots=2,
        devices={
            "d0": Device("d0", Use.LEASED, Grant("l", "d0", 7, 50.0), 7, 50.0, Health.GOOD),
        },
        builds={
            it.order.attempt_id: it for it in (build(1, None), build(2, built), build(3, lost))
        },
        runs={it.order.attempt_id: it for it in (run(1, None), run(2, result), run(3, lost))},
    )
    here = report_of(state, "a", "a-1", ("llvm/x86_64",), {"d0": ABOUT}, connected=True)
    about = SimpleNamespace(
        targets=ABOUT.targets,
        labels=ABOUT.labels,
        timing_class=ABOUT.timing_class,
        provides=ABOUT.provides,
    )
    message = state_to_proto(
        state,
        SimpleNamespace(builds=("llvm/x86_64",), slots=2, hosted_by="simulation"),
        Identity("a", "a-1"),
        {"d0": SimpleNamespace(description=about, labels=dict(ABOUT.labels))},
        {"llvm/x86_64": "test 1"},
    )
    message.host, message.version = "host", "1"
    there = Reports(blobs).take(message)
    assert there == here


def test_desired_state_is_what_the_messages_carry():
    lease = Lease(
        lease_id="l1",
        selector=selector_of(""),
        holder="somebody",
        ttl_s=60.0,
        wait_until=0.0,
        state=LeaseState.GRANTED,
        device_id="d0",
        agent_id="a",
        epoch=3,
        expires_at=150.0,
    )
    attempt = RunAttempt("j1.1", "j1", "l1", "d0", "a", "a-1", 3, 100.0)
    spec = job_pb2.RunSpec(symbol="f", limit_s=RUN_LIMIT_S).SerializeToString()
    desired = PushDesired(
        "a",
        "a-1",
        (SentBuild("u1.1", spec_of("f", "ea"), 8.0),),
        (lease,),
        (SentRun(attempt, spec),),
        (("d1", 4),),
    )
    here = Sent(desired, 2.5, 100.0).received(1000.0)
    there, refused = desired_from_proto(desired_to_proto(desired, 1, 2.5, 100.0), 1000.0)
    assert (there, refused) == (here, ())
