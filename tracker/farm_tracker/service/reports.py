"""What an agent reports, as values of the core.

Owns: turning messages of a control stream into reports, checked. Does not own: what a report means (`state.agents`).

Invariant: a value that comes out obeys every limit of the contract. What a message says as the last one of its stream
did is the same value: agents send their whole state each second, and almost always nothing of it has changed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from farm.api.v1 import agent_pb2, build_pb2, device_pb2, job_pb2
from farm.artifact import BuiltModule, Signature
from farm.core.ids import AgentId, AttemptId, DeviceId, Epoch
from farm.core.values import replace
from farm.errors import FarmError, InfrastructureError, InvalidInput
from farm.rpc import digest_from_proto
from farm_tracker.jobs import check_tensors
from farm_tracker.service.convert import (
    check_count,
    check_id,
    check_match,
    check_range,
    check_text,
    failure_from_proto,
)
from farm_tracker.state.builds import as_failure
from farm_tracker.state.events import AgentReported, AttemptReport, DeviceReport, RunReport
from farm_tracker.state.model import Description, Health, TimingClass, Use
from farm_tracker.state.work import Failure, Module

if TYPE_CHECKING:
    from collections.abc import Iterable
    from enum import StrEnum

    from farm.api.v1 import digest_pb2
    from farm.core.digest import Digest
    from farm_tracker.cas import BlobStore

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
MAX_EPOCH = 1 << 53

_LABEL = re.compile(r"[a-z][a-z0-9._/-]{0,62}")
_FAMILY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
_INSTANCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Reports:
    """The reports of one control stream."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._descriptions: dict[str, tuple[device_pb2.DeviceDescription, Description]] = {}
        self._about: tuple[agent_pb2.AgentState, AgentReported] | None = None
        self._last: tuple[agent_pb2.AgentState, AgentReported] | None = None

    def take(self, state: agent_pb2.AgentState) -> AgentReported:
        """Return what an agent reports; the first of the stream is `connected`. Takes the number off the message.

        Raises
        ------
        InvalidInput
            A field breaks the contract; the message names it.
        """
        state.ClearField("sequence")  # else no two messages were the same
        if self._last is not None:
            last, report = self._last
            # What is said of attempts is looked at again: blobs that it names may have come since.
            if state == last and not (state.attempts or state.runs):
                return report
        report = self._report(state)
        connected = self._last is None
        self._last = (state, report)
        return replace(report, connected=True) if connected else report

    def _report(self, state: agent_pb2.AgentState) -> AgentReported:
        about = self._about_agent(state)
        agent_id = about.agent_id
        check_count(len(state.devices), MAX_DEVICES, "devices")
        check_count(len(state.attempts), MAX_ATTEMPTS, "attempts")
        devices = tuple(map(self._device_report, state.devices))
        if len({it.description.device_id for it in devices}) != len(devices):
            raise InvalidInput(f"agent {agent_id}: a device is listed twice; list each once")
        check_count(len(state.runs), MAX_RUNS, "runs")
        if len({it.attempt_id for it in state.runs}) != len(state.runs):
            raise InvalidInput(f"agent {agent_id}: a run is listed twice; list each once")
        return replace(
            about,
            devices=devices,
            attempts=tuple(_attempt_report(it, self._blobs) for it in state.attempts),
            runs=tuple(_run_report(it, self._blobs) for it in state.runs),
        )

    def _about_agent(self, state: agent_pb2.AgentState) -> AgentReported:
        """Return a report with what is said of the agent itself, which hardly ever changes."""
        said = agent_pb2.AgentState()
        said.CopyFrom(state)
        for name in ("devices", "attempts", "runs"):
            said.ClearField(name)
        if self._about is None or self._about[0] != said:
            self._about = (said, _about_agent(said))
        return self._about[1]

    def _device_report(self, state: agent_pb2.DeviceState) -> DeviceReport:
        description = self._description(state.description)
        device_id = description.device_id
        if not 0 <= state.epoch < MAX_EPOCH:
            raise InvalidInput(
                f"device {device_id}: impossible epoch ({state.epoch}); report a real one"
            )
        return DeviceReport(
            description=description,
            use=_enum(_USES, state.use, device_id),
            epoch=Epoch(state.epoch),
            health=_enum(_HEALTHS, state.health, device_id),
            health_cause=check_text(state.health_cause, "health_cause"),
        )

    def _description(self, about: device_pb2.DeviceDescription) -> Description:
        known = self._descriptions.get(about.device_id)
        if known is not None and known[0] == about:
            return known[1]
        description = _description_of(about)
        if len(self._descriptions) >= MAX_DEVICES:  # of former messages
            self._descriptions.clear()
        self._descriptions[about.device_id] = (about, description)
        return description


def _about_agent(state: agent_pb2.AgentState) -> AgentReported:
    agent_id = check_id(state.agent_id, "agent_id")
    check_count(len(state.builds), MAX_BUILDS, "families that it builds")
    check_count(state.build_slots, MAX_SLOTS, "build_slots")
    for family in (*state.builds, *state.toolchains):
        check_match(_FAMILY, family, "family")
    check_count(len(state.toolchains), MAX_BUILDS, "toolchains")
    return AgentReported(
        agent_id=AgentId(agent_id),
        instance_id=check_match(_INSTANCE, state.instance_id, "instance_id"),
        version=check_text(state.version, "version"),
        builds=tuple(sorted(set(state.builds))),
        build_slots=state.build_slots,
        devices=(),
        attempts=(),
        hosted_by=check_text(state.hosted_by, "hosted_by"),
        host=check_text(state.host, "host"),
        toolchains={k: check_text(v, "toolchain") for k, v in sorted(state.toolchains.items())},
        yields=state.yields,
    )


def _description_of(about: device_pb2.DeviceDescription) -> Description:
    device_id = check_id(about.device_id, "device_id")
    check_count(len(about.labels), MAX_LABELS, f"device {device_id}: labels")
    return Description(
        device_id=DeviceId(device_id),
        targets=_texts(about.targets, f"device {device_id}: targets"),
        labels={
            check_match(_LABEL, key, f"device {device_id}: label"): check_text(
                value, f"label {key}", 128
            )
            for key, value in sorted(about.labels.items())
        },
        timing_class=_enum(_TIMING_CLASSES, about.timing_class, device_id),
        provides=_texts(about.provides, f"device {device_id}: provides"),
    )


def _texts(texts: Iterable[str], what: str) -> tuple[str, ...]:
    found = tuple(texts)
    check_count(len(found), MAX_TEXTS, what)
    return tuple(check_text(text, what) for text in found)


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


def _enum(members: dict[int, E], value: int, device_id: str) -> E:
    """Return the member that a message's number stands for."""
    member = members.get(value)
    if member is None:
        what = type(next(iter(members.values()))).__name__.lower()
        raise InvalidInput(
            f"device {device_id}: unknown {what} ({value}); send one of {', '.join(members.values())}"
        )
    return member


def _members(cls: type[E], values: Iterable[tuple[str, int]], prefix: str) -> dict[int, E]:
    """Return the members of an enum by the number of the message's constant of the same name."""
    return {
        int(value): cls(name.removeprefix(prefix))
        for name, value in values
        if name.removeprefix(prefix) in set(cls)
    }


_USES = _members(Use, device_pb2.Use.items(), "USE_")
_HEALTHS = _members(Health, device_pb2.Health.items(), "HEALTH_")
_TIMING_CLASSES = _members(TimingClass, device_pb2.TimingClass.items(), "TIMING_CLASS_")
