"""Messages and values: devices, agents, modules, errors.

Owns: turning protobuf messages that are shared by services into values of the core, checked, and back.
Does not own: messages of one service only.

Invariant: a value that comes out obeys every limit of the contract.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from farm.api.v1 import agent_pb2, build_pb2, device_pb2, error_pb2, job_pb2, lease_pb2
from farm.artifact import BuiltModule, Signature
from farm.core.ids import NAME, AgentId, AttemptId, DeviceId, Epoch
from farm.errors import FarmError, InfrastructureError, InvalidInput
from farm.rpc import digest_from_proto, digest_to_proto
from farm_tracker.jobs import check_tensors
from farm_tracker.state.builds import as_failure
from farm_tracker.state.events import AgentReported, AttemptReport, DeviceReport, RunReport
from farm_tracker.state.model import Description, Device, Health, Lease, Observed, TimingClass, Use
from farm_tracker.state.work import Failure, ItemKind, Module

if TYPE_CHECKING:
    from collections.abc import Iterable
    from enum import StrEnum

    from farm.api.v1 import digest_pb2
    from farm.core.digest import Digest
    from farm_tracker.cas import BlobStore
    from farm_tracker.state.commands import PushDesired
    from farm_tracker.state.model import Agent

E = TypeVar("E", bound="StrEnum")

MAX_DEVICES = 256
MAX_ATTEMPTS = 1024
MAX_RUNS = 1024
MAX_LOG_CHUNKS = 4096
MAX_CHUNK_BYTES = 64 << 10
MAX_RESULT_BYTES = 1 << 20
MAX_SAMPLES = 10_000
MAX_BUILDS = 64
MAX_SLOTS = 256
MAX_LABELS = 128
MAX_TEXTS = 256
MAX_TEXT = 1024
MAX_MESSAGE = 64 << 10
MAX_EPOCH = 1 << 53

_LABEL = re.compile(r"[a-z][a-z0-9._/-]{0,62}")
_FAMILY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def report_from_proto(
    state: agent_pb2.AgentState, blobs: BlobStore, *, connected: bool
) -> AgentReported:
    """Return an agent's report.

    Raises
    ------
    InvalidInput
        A field breaks the contract; the message names it.
    """
    agent_id = check_id(state.agent_id, "agent_id")
    check_count(len(state.devices), MAX_DEVICES, "devices")
    check_count(len(state.attempts), MAX_ATTEMPTS, "attempts")
    check_count(len(state.builds), MAX_BUILDS, "families that it builds")
    check_count(state.build_slots, MAX_SLOTS, "build_slots")
    devices = tuple(map(_device_report, state.devices))
    if len({it.description.device_id for it in devices}) != len(devices):
        raise InvalidInput(f"agent {agent_id}: a device is listed twice; list each once")
    for family in (*state.builds, *state.toolchains):
        _match(_FAMILY, family, "family")
    check_count(len(state.toolchains), MAX_BUILDS, "toolchains")
    check_count(len(state.runs), MAX_RUNS, "runs")
    if len({it.attempt_id for it in state.runs}) != len(state.runs):
        raise InvalidInput(f"agent {agent_id}: a run is listed twice; list each once")
    return AgentReported(
        agent_id=AgentId(agent_id),
        instance_id=_match(_INSTANCE, state.instance_id, "instance_id"),
        version=check_text(state.version, "version"),
        builds=tuple(sorted(set(state.builds))),
        build_slots=state.build_slots,
        devices=devices,
        attempts=tuple(_attempt_report(it, blobs) for it in state.attempts),
        hosted_by=check_text(state.hosted_by, "hosted_by"),
        host=check_text(state.host, "host"),
        connected=connected,
        runs=tuple(_run_report(it, blobs) for it in state.runs),
        toolchains={k: check_text(v, "toolchain") for k, v in sorted(state.toolchains.items())},
    )


def desired_to_proto(
    desired: PushDesired, revision: int, heartbeat_s: float, now: float
) -> agent_pb2.DesiredState:
    """Return the message that tells an agent what is wanted of it."""
    return agent_pb2.DesiredState(
        revision=revision,
        heartbeat_s=heartbeat_s,
        builds=[
            agent_pb2.BuildTask(
                attempt_id=order.attempt_id,
                item=build_pb2.BuildItem(
                    kind=ITEM_KINDS[order.spec.kind],
                    target=order.spec.target,
                    symbol=order.spec.symbol,
                    function=digest_to_proto(order.spec.function),
                ),
                limit_s=order.limit_s,
            )
            for order in desired.builds
        ],
        leases=[
            agent_pb2.LeaseGrant(
                lease_id=lease.lease_id,
                device_id=lease.device_id or "",
                epoch=lease.epoch,
                remaining_s=max(0.0, lease.expires_at - now),
            )
            for lease in desired.leases
        ],
        runs=[
            agent_pb2.RunTask(
                attempt_id=order.attempt.attempt_id,
                job_id=order.attempt.job_id,
                lease_id=order.attempt.lease_id,
                device_id=order.attempt.device_id,
                epoch=order.attempt.epoch,
                run=job_pb2.RunSpec.FromString(order.run),
            )
            for order in desired.runs
        ],
    )


ITEM_KINDS = {
    ItemKind.DEVICE: build_pb2.ITEM_KIND_DEVICE,
    ItemKind.HOST: build_pb2.ITEM_KIND_HOST,
}


def device_to_proto(device: Device) -> device_pb2.Device:
    """Return the message for a device."""
    about = device.description
    return device_pb2.Device(
        description=device_pb2.DeviceDescription(
            device_id=about.device_id,
            targets=about.targets,
            labels=dict(about.labels),
            timing_class=device_pb2.TimingClass.Value(f"TIMING_CLASS_{about.timing_class}"),
            provides=about.provides,
        ),
        agent_id=device.agent_id,
        admin=device_pb2.Admin.Value(f"ADMIN_{device.admin}"),
        observed=_observed(device.observed),
        health=device_pb2.Health.Value(f"HEALTH_{device.health}"),
        health_cause=device.health_cause,
        use=device_pb2.Use.Value(f"USE_{device.use}"),
        epoch=device.epoch,
        lease_id=device.lease_id or "",
    )


def agent_to_proto(agent: Agent) -> device_pb2.Agent:
    """Return the message for an agent."""
    return device_pb2.Agent(
        agent_id=agent.agent_id,
        observed=_observed(agent.observed),
        builds=agent.builds,
        device_ids=agent.device_ids,
        hosted_by=agent.hosted_by,
        host=agent.host,
    )


def lease_to_proto(lease: Lease, device: Device, now: float) -> lease_pb2.Lease:
    """Return the message for a lease that was granted."""
    return lease_pb2.Lease(
        lease_id=lease.lease_id,
        epoch=lease.epoch,
        device=device_to_proto(device),
        remaining_s=max(0.0, lease.expires_at - now),
    )


def failure_to_proto(failure: Failure) -> error_pb2.Error:
    """Return the message for an error that is data."""
    return error_pb2.Error(
        code=failure.code, message=failure.message, details=dict(failure.details)
    )


def failure_from_proto(error: error_pb2.Error) -> Failure:
    """Return an error that is data, cut to what is kept."""
    details = sorted((k[:64], v[:MAX_TEXT]) for k, v in list(error.details.items())[:32])
    return Failure(error.code[:64] or FarmError.code, error.message[:MAX_MESSAGE], tuple(details))


def check_id(text: str, what: str) -> str:
    """Return an id if it is well formed."""
    return _match(NAME, text, what)


def check_text(text: str, what: str, limit: int = MAX_TEXT) -> str:
    """Return free text if it is not too long."""
    if len(text.encode()) > limit:
        raise InvalidInput(f"{what}: {len(text.encode())} bytes of text; send at most {limit}")
    return text


def check_count(count: int, limit: int, what: str) -> None:
    """Raise InvalidInput if there are too many, or fewer than none."""
    if not 0 <= count <= limit:
        raise InvalidInput(f"{what}: {count} is out of range; send 0 to {limit}")


def check_range(value: float, low: float, high: float, what: str) -> float:
    """Return a number if it is in range; not-a-number never is."""
    if not low <= value <= high:
        raise InvalidInput(f"{what}: {value:g} is out of range; send {low:g} to {high:g}")
    return value


def _match(pattern: re.Pattern[str], text: str, what: str) -> str:
    if not pattern.fullmatch(text):
        raise InvalidInput(f"{what}: malformed ({text[:80]!r}); it must match {pattern.pattern}")
    return text


def _texts(texts: Iterable[str], what: str) -> tuple[str, ...]:
    found = tuple(texts)
    check_count(len(found), MAX_TEXTS, what)
    return tuple(check_text(text, what) for text in found)


def _device_report(state: agent_pb2.DeviceState) -> DeviceReport:
    about = state.description
    device_id = check_id(about.device_id, "device_id")
    check_count(len(about.labels), MAX_LABELS, f"device {device_id}: labels")
    if not 0 <= state.epoch < MAX_EPOCH:
        raise InvalidInput(
            f"device {device_id}: impossible epoch ({state.epoch}); report a real one"
        )
    description = Description(
        device_id=DeviceId(device_id),
        targets=_texts(about.targets, f"device {device_id}: targets"),
        labels={
            _match(_LABEL, key, f"device {device_id}: label"): check_text(
                value, f"label {key}", 128
            )
            for key, value in sorted(about.labels.items())
        },
        timing_class=_enum(TimingClass, _TIMING_CLASSES, about.timing_class, device_id),
        provides=_texts(about.provides, f"device {device_id}: provides"),
    )
    return DeviceReport(
        description=description,
        use=_enum(Use, _USES, state.use, device_id),
        epoch=Epoch(state.epoch),
        health=_enum(Health, _HEALTHS, state.health, device_id),
        health_cause=check_text(state.health_cause, "health_cause"),
    )


def _attempt_report(attempt: agent_pb2.BuildAttempt, blobs: BlobStore) -> AttemptReport:
    attempt_id = AttemptId(check_text(attempt.attempt_id, "attempt_id", 128))
    seconds = check_range(attempt.seconds, 0.0, 1e6, f"attempt {attempt_id}: seconds")
    match attempt.WhichOneof("outcome"):
        case "module":
            try:
                module = _module(attempt.module, blobs)
            except FarmError as error:
                return AttemptReport(attempt_id, failure=_unusable(error), seconds=seconds)
            return AttemptReport(attempt_id, module=module, seconds=seconds)
        case "error":
            failure = failure_from_proto(attempt.error)
            return AttemptReport(attempt_id, failure=failure, seconds=seconds)
        case _:
            return AttemptReport(attempt_id)


def _run_report(run: agent_pb2.RunAttempt, blobs: BlobStore) -> RunReport:
    attempt_id = AttemptId(check_text(run.attempt_id, "attempt_id", 256))
    if not 0 < run.epoch < MAX_EPOCH:
        raise InvalidInput(f"run {attempt_id}: impossible epoch ({run.epoch}); report a real one")
    check_count(len(run.log_chunks), MAX_LOG_CHUNKS, f"run {attempt_id}: log_chunks")
    result: bytes | None = None
    failure: Failure | None = None
    match run.WhichOneof("outcome"):
        case "result":
            try:
                result = _run_result(run.result, blobs)
            except FarmError as error:
                failure = _unusable(error)
        case "error":
            failure = failure_from_proto(run.error)
    return RunReport(
        attempt_id=attempt_id,
        epoch=Epoch(run.epoch),
        result=result,
        failure=failure,
        log=tuple(_chunk(it, attempt_id) for it in run.log_chunks),
        log_is_cut=run.log_truncated,
    )


def _run_result(message: job_pb2.JobResult, blobs: BlobStore) -> bytes:
    """Return what a run gave, if it can be kept and its blobs are in the store."""
    if message.ByteSize() > MAX_RESULT_BYTES:
        raise InvalidInput(
            f"result: {message.ByteSize()} bytes; send large outputs as blobs, at most {MAX_RESULT_BYTES}"
        )
    check_tensors(message.outputs, "result: output")
    check_count(len(message.samples_ns), MAX_SAMPLES, "samples_ns")
    check_text(message.target, "target")
    wanted = [digest_from_proto(it.blob) for it in message.outputs if it.HasField("blob")]
    missing = blobs.missing(wanted)
    if missing:
        raise InfrastructureError(f"result: {missing[0]} is not in the store; send it first")
    return message.SerializeToString(deterministic=True)


def _chunk(message: digest_pb2.Digest, attempt_id: str) -> Digest:
    digest = digest_from_proto(message)
    if digest.size_bytes > MAX_CHUNK_BYTES:
        raise InvalidInput(
            f"run {attempt_id}: a log chunk of {digest.size_bytes} bytes; at most {MAX_CHUNK_BYTES}"
        )
    return digest


def _module(message: build_pb2.Module, blobs: BlobStore) -> Module:
    """Return what an agent built, if an artifact can hold it and its bytes are in the store."""
    digest = digest_from_proto(message.object)
    if not blobs.has(digest):
        raise InfrastructureError(
            f"module: its object ({digest}) is not in the store; send it first"
        )
    BuiltModule(  # checks every field; the bytes themselves are checked when they are read
        kind="device",
        symbol="any",
        target="any",
        format=message.format,
        format_version=message.format_version,
        requires=tuple(message.requires),
        toolchain=message.toolchain,
        signature=Signature.from_json(message.signature),
        data=b"any",
    )
    return Module(
        object=digest,
        format=message.format,
        format_version=message.format_version,
        requires=tuple(message.requires),
        toolchain=message.toolchain,
        signature=message.signature,
    )


def _unusable(error: FarmError) -> Failure:
    """Blame the agent, not the work, for what it sends and cannot be used."""
    return as_failure(
        InfrastructureError(f"agent: what it sent is unusable ({error.message}); try again")
    )


def _enum(cls: type[E], names: dict[int, str], value: int, device_id: str) -> E:
    """Return the member that a message's number stands for."""
    try:
        return cls(names[value])
    except (KeyError, ValueError):
        raise InvalidInput(
            f"device {device_id}: unknown {cls.__name__.lower()} ({value}); send one of "
            f"{', '.join(cls)}"
        ) from None


def _names(values: Iterable[tuple[str, int]], prefix: str) -> dict[int, str]:
    """Return the names of a message's constants by number, without their prefix."""
    return {int(value): name.removeprefix(prefix) for name, value in values}


_USES = _names(device_pb2.Use.items(), "USE_")
_HEALTHS = _names(device_pb2.Health.items(), "HEALTH_")
_TIMING_CLASSES = _names(device_pb2.TimingClass.items(), "TIMING_CLASS_")


def _observed(observed: Observed) -> device_pb2.Observed.ValueType:
    return device_pb2.Observed.Value(f"OBSERVED_{observed}")
