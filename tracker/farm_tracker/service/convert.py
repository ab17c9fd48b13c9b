"""Messages and values: devices, agents, errors, and checks of single fields.

Owns: turning protobuf messages that are shared by services into values of the core, checked, and back.
Does not own: messages of one service only, what agents report (`reports`).

Invariant: a value that comes out obeys every limit of the contract.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from farm.api.v1 import agent_pb2, build_pb2, device_pb2, error_pb2, job_pb2, lease_pb2
from farm.core.ids import NAME
from farm.core.wire import error_message, error_parts
from farm.errors import FarmError, InvalidInput
from farm.rpc import digest_to_proto
from farm_tracker.state.model import Device, Lease, Observed
from farm_tracker.state.work import Failure, ItemKind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import StrEnum

    from farm.core.ids import AttemptId
    from farm_tracker.state.commands import PushDesired
    from farm_tracker.state.model import Agent

E = TypeVar("E", bound="StrEnum")

MAX_TEXT = 1024


def desired_to_proto(
    desired: PushDesired,
    revision: int,
    heartbeat_s: float,
    now: float,
    codes: Mapping[AttemptId, bytes] = MappingProxyType({}),
) -> agent_pb2.DesiredState:
    """Return the message that tells an agent what is wanted of it; `codes` are the functions that it carries."""
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
                    code=codes.get(order.attempt_id, b""),
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
        ended=[
            agent_pb2.EndedEpoch(device_id=device_id, epoch=epoch)
            for device_id, epoch in desired.ended
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
    return error_message(failure.code, failure.message, failure.details)


def failure_from_proto(error: error_pb2.Error) -> Failure:
    """Return an error that is data, cut to what is kept."""
    code, message, details = error_parts(error)
    return Failure(code or FarmError.code, message, details)


def check_id(text: str, what: str) -> str:
    """Return an id if it is well formed."""
    return check_match(NAME, text, what)


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


def check_match(pattern: re.Pattern[str], text: str, what: str) -> str:
    """Return text if all of it matches."""
    if not pattern.fullmatch(text):
        raise InvalidInput(f"{what}: malformed ({text[:80]!r}); it must match {pattern.pattern}")
    return text


def _observed(observed: Observed) -> device_pb2.Observed.ValueType:
    return device_pb2.Observed.Value(f"OBSERVED_{observed}")
