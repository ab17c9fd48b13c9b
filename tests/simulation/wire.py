"""What one side says as the other hears it.

Owns: the same conversions as `farm_agents.wire` and `farm_tracker.service.convert` do over protobuf, without the
bytes, for speed. `test_wire.py` compares both on the same values.

Invariant: nothing passes here that the messages have no field for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm_agents.state import messages as agent_messages
from farm_agents.state import model as agent_model
from farm_agents.state.run import RunOrder, RunResult
from farm_agents.wire import EXPIRY_GRACE_S
from farm_tracker.state import events, model
from farm_tracker.state.work import Failure, Module

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farm_agents.state.run import Run
    from farm_tracker.state.commands import PushDesired

    from farm.core.ids import AgentId, DeviceId

RUN_LIMIT_S = 6.0
"""The limit that every run asks for in its RunSpec."""
USES = {it: model.Use(it.value) for it in agent_model.Use}
HEALTHS = {it: model.Health(it.value) for it in agent_model.Health}


def report_of(
    state: agent_model.State,
    agent_id: AgentId,
    instance_id: str,
    builds: tuple[str, ...],
    described: Mapping[DeviceId, model.Description],
    *,
    connected: bool,
) -> events.AgentReported:
    """Return an agent's whole state as the tracker's core sees it."""
    return events.AgentReported(
        agent_id=agent_id,
        instance_id=instance_id,
        version="1",
        builds=builds,
        build_slots=state.slots,
        devices=tuple(
            events.DeviceReport(
                described[name],
                USES[device.use],
                device.reported_epoch,
                HEALTHS[device.health],
                device.health_cause,
            )
            for name, device in state.devices.items()
        ),
        attempts=tuple(_attempt_of(build) for build in state.builds.values()),
        runs=tuple(_run_of(run) for run in state.runs.values()),
        toolchains=dict.fromkeys(builds, "test 1"),
        hosted_by="simulation",
        host="host",
        connected=connected,
    )


def _attempt_of(build: agent_model.Build) -> events.AttemptReport:
    attempt_id = build.order.attempt_id
    match build.outcome:
        case None:
            return events.AttemptReport(attempt_id, seconds=build.seconds)
        case agent_model.Built() as built:
            module = Module(
                built.object,
                built.format,
                built.format_version,
                built.requires,
                built.toolchain,
                built.signature,
            )
            return events.AttemptReport(attempt_id, module=module, seconds=build.seconds)
        case agent_model.Failed() as failed:
            failure = Failure(failed.code, failed.message, failed.details)
            return events.AttemptReport(attempt_id, failure=failure, seconds=build.seconds)


def _run_of(run: Run) -> events.RunReport:
    result = failure = None
    match run.outcome:
        case RunResult(message):
            result = message
        case agent_model.Failed() as failed:
            failure = Failure(failed.code, failed.message, failed.details)
    order = run.order
    return events.RunReport(order.attempt_id, order.epoch, result, failure, run.log, run.log_is_cut)


class Sent:
    """A desired state on its way: what `desired_to_proto` writes at the moment of sending."""

    __slots__ = ("builds", "ended", "heartbeat_s", "leases", "runs")

    def __init__(self, desired: PushDesired, heartbeat_s: float, now: float) -> None:
        self.heartbeat_s = heartbeat_s
        self.leases = tuple(
            (it.lease_id, it.device_id, it.epoch, max(0.0, it.expires_at - now))
            for it in desired.leases
        )
        self.builds = desired.builds
        self.runs = desired.runs
        self.ended = desired.ended

    def received(self, now: float) -> agent_messages.Desired:
        """Return it as the agent's core sees it when it comes at `now`."""
        leases = tuple(
            agent_model.Grant(lease_id, device_id, epoch, now + remaining_s + EXPIRY_GRACE_S)
            for lease_id, device_id, epoch, remaining_s in self.leases
            if device_id is not None
        )
        builds = tuple(
            agent_model.BuildOrder(
                it.attempt_id,
                it.spec.kind.value,
                it.spec.target,
                it.spec.symbol,
                it.spec.function,
                it.limit_s,
            )
            for it in self.builds
        )
        runs = tuple(
            RunOrder(
                it.attempt.attempt_id,
                it.attempt.job_id,
                it.attempt.lease_id,
                it.attempt.device_id,
                it.attempt.epoch,
                RUN_LIMIT_S,
                it.run,
            )
            for it in self.runs
        )
        return agent_messages.Desired(leases, builds, runs, self.ended)
