"""Between the core's values and the messages of AgentService.

Owns: the conversions both ways, and the checks of what the tracker sends.
Does not own: the stream (`farm_agents.agent`).

Invariant: a malformed grant or task is left out and named; the rest of the desired state counts.
"""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Mapping

import farm
from farm.api.v1 import agent_pb2, build_pb2, device_pb2, job_pb2
from farm.core.ids import AttemptId, DeviceId, Epoch, JobId, LeaseId
from farm.core.limits import DEFAULT_LIMIT_S, MAX_JOB_LIMIT_S, MIN_LIMIT_S
from farm.core.wire import digest_from_proto, digest_to_proto
from farm.errors import InvalidInput
from farm_agents.builder import KINDS
from farm_agents.device import LocalDevice
from farm_agents.failures import failed_to_proto
from farm_agents.session import Identity
from farm_agents.spec import AgentSpec
from farm_agents.state.messages import Desired
from farm_agents.state.model import Build, BuildOrder, Built, Device, Failed, Grant, State
from farm_agents.state.run import Run, RunOrder, RunResult

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
MAX_LEASE_S = 86_400.0
# The tracker ends a lease first and says why; the agent does so alone only when it hears nothing. A late end is
# safe: the device is not granted again before the agent has reported it idle.
EXPIRY_GRACE_S = 1.0
MAX_BUILD_S = 3_600.0


def state_to_proto(
    state: State,
    spec: AgentSpec,
    identity: Identity,
    devices: Mapping[DeviceId, LocalDevice],
    toolchains: Mapping[str, str],
) -> agent_pb2.AgentState:
    """Return the message of the agent's whole state.

    Parameters
    ----------
    toolchains
        Compiler and version for each family, as far as they are known.
    """
    return agent_pb2.AgentState(
        agent_id=identity.agent_id,
        instance_id=identity.instance_id,
        version=farm.__version__,
        builds=spec.builds,
        build_slots=spec.slots,
        devices=[_device_to_proto(device, devices[name]) for name, device in state.devices.items()],
        attempts=[_build_to_proto(build) for build in state.builds.values()],
        hosted_by=spec.hosted_by,
        host=socket.gethostname(),
        runs=[_run_to_proto(run) for run in state.runs.values()],
        toolchains=toolchains,
    )


def desired_from_proto(
    message: agent_pb2.DesiredState, now: float
) -> tuple[Desired, tuple[InvalidInput, ...]]:
    """Return the desired state, and what is wrong with the parts that were left out.

    Parameters
    ----------
    now
        The agent's clock when the message came.
    """
    leases: list[Grant] = []
    builds: list[BuildOrder] = []
    refused: list[InvalidInput] = []
    for grant in message.leases:
        try:
            leases.append(_grant_from_proto(grant, now))
        except InvalidInput as error:
            refused.append(error)
    for task in message.builds:
        try:
            builds.append(_order_from_proto(task))
        except InvalidInput as error:
            refused.append(error)
    runs: list[RunOrder] = []
    for run in message.runs:
        try:
            runs.append(_run_from_proto(run))
        except InvalidInput as error:
            refused.append(error)
    ended: list[tuple[DeviceId, Epoch]] = []
    for it in message.ended:
        try:
            ended.append(
                (DeviceId(it.device_id), _epoch_from_proto("device", it.device_id, it.epoch))
            )
        except InvalidInput as error:
            refused.append(error)
    return Desired(tuple(leases), tuple(builds), tuple(runs), tuple(ended)), tuple(refused)


def _device_to_proto(device: Device, local: LocalDevice) -> agent_pb2.DeviceState:
    described = local.description
    description = device_pb2.DeviceDescription(
        device_id=device.device_id,
        targets=described.targets,
        labels=local.labels,
        timing_class=device_pb2.TimingClass.Value(f"TIMING_CLASS_{described.timing_class.value}"),
        provides=described.provides,
    )
    return agent_pb2.DeviceState(
        description=description,
        use=device_pb2.Use.Value(f"USE_{device.use.value}"),
        epoch=device.reported_epoch,
        health=device_pb2.Health.Value(f"HEALTH_{device.health.value}"),
        health_cause=device.health_cause,
    )


def _build_to_proto(build: Build) -> agent_pb2.BuildAttempt:
    attempt = agent_pb2.BuildAttempt(attempt_id=build.order.attempt_id, seconds=build.seconds)
    match build.outcome:
        case None:
            attempt.running = True
        case Built() as built:
            attempt.module.CopyFrom(_module_to_proto(built))
        case Failed() as failed:
            attempt.error.CopyFrom(failed_to_proto(failed))
    return attempt


def _run_to_proto(run: Run) -> agent_pb2.RunAttempt:
    attempt = agent_pb2.RunAttempt(
        attempt_id=run.order.attempt_id,
        epoch=run.order.epoch,
        log_chunks=map(digest_to_proto, run.log),
        log_truncated=run.log_is_cut,
        started_at=run.started_at,
        ended_at=run.ended_at,
    )
    match run.outcome:
        case None:
            attempt.running = True
        case RunResult(message):
            attempt.result.CopyFrom(job_pb2.JobResult.FromString(message))
        case Failed() as failed:
            attempt.error.CopyFrom(failed_to_proto(failed))
    return attempt


def _module_to_proto(built: Built) -> build_pb2.Module:
    return build_pb2.Module(
        object=digest_to_proto(built.object),
        format=built.format,
        format_version=built.format_version,
        requires=built.requires,
        toolchain=built.toolchain,
        signature=built.signature,
        data=built.data,
    )


def _grant_from_proto(message: agent_pb2.LeaseGrant, now: float) -> Grant:
    lease_id = _checked_id("lease", message.lease_id)
    epoch = _epoch_from_proto("lease", lease_id, message.epoch)
    remaining_s = _checked_seconds(f"lease {lease_id}", message.remaining_s, MAX_LEASE_S)
    return Grant(
        lease_id=LeaseId(lease_id),
        device_id=DeviceId(message.device_id),
        epoch=epoch,
        ends_at=now + remaining_s + EXPIRY_GRACE_S,
    )


def _order_from_proto(message: agent_pb2.BuildTask) -> BuildOrder:
    attempt_id = _checked_id("build attempt", message.attempt_id)
    item = message.item
    if item.kind not in KINDS:
        raise InvalidInput(f"build {attempt_id}: unknown kind ({item.kind}); send device or host")
    return BuildOrder(
        attempt_id=AttemptId(attempt_id),
        kind=KINDS[item.kind],
        target=item.target,
        symbol=item.symbol,
        function=digest_from_proto(item.function),
        limit_s=_checked_seconds(f"build {attempt_id}", message.limit_s, MAX_BUILD_S),
        code=item.code,
    )


def _run_from_proto(message: agent_pb2.RunTask) -> RunOrder:
    attempt_id = _checked_id("run attempt", message.attempt_id)
    epoch = _epoch_from_proto("run", attempt_id, message.epoch)
    limit_s = message.run.limit_s or DEFAULT_LIMIT_S
    if not MIN_LIMIT_S <= limit_s <= MAX_JOB_LIMIT_S:
        raise InvalidInput(
            f"run {attempt_id}: impossible limit ({limit_s} s); send {MIN_LIMIT_S:g} to {MAX_JOB_LIMIT_S:g}"
        )
    return RunOrder(
        attempt_id=AttemptId(attempt_id),
        job_id=JobId(message.job_id),
        lease_id=LeaseId(_checked_id("lease", message.lease_id)),
        device_id=DeviceId(message.device_id),
        epoch=epoch,
        limit_s=limit_s,
        run=message.run.SerializeToString(),
    )


def _epoch_from_proto(what: str, name: str, epoch: int) -> Epoch:
    if epoch < 1:
        raise InvalidInput(f"{what} {name[:80]}: impossible epoch ({epoch}); send one above 0")
    return Epoch(epoch)


def _checked_id(what: str, text: str) -> str:
    # Ids name folders of this agent, so that nothing but these characters may come.
    if not _ID.fullmatch(text) or ".." in text:
        raise InvalidInput(f"{what}: malformed id ({text[:80]!r}); send letters, digits and ._:-")
    return text


def _checked_seconds(what: str, value: float, most: float) -> float:
    if not math.isfinite(value) or not 0 <= value <= most:
        raise InvalidInput(f"{what}: impossible time ({value} s); send 0 to {most:g}")
    return value
