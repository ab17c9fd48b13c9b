"""Rows of the store and the values that they stand for.

Owns: the form of each column. Does not own: tables and transactions (`store`).

Invariant: points in time are stored on the wall clock, since the steady clock begins anew with each boot.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from farm.core.digest import Digest, canonical_json
from farm.core.ids import AgentId, DeviceId, Epoch, JobId, LeaseId
from farm.core.values import replace
from farm.target import Selector
from farm_tracker.state.account import NO_LIMITS, Account, AccountLimits
from farm_tracker.state.model import (
    Admin,
    Agent,
    Description,
    Device,
    Lease,
    LeaseState,
    TimingClass,
    Use,
)
from farm_tracker.state.notes import Note
from farm_tracker.state.work import (
    Attempt,
    BuildJob,
    BuildUnit,
    CacheEntry,
    Failure,
    Module,
    UnitSpec,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Row = dict[str, Any]


def agent_row(agent: Agent) -> Row:
    """Return the row of an agent."""
    return {
        "agent_id": agent.agent_id,
        "instance_id": agent.instance_id,
        "former_instances": _json(agent.former_instances),
        "version": agent.version,
        "builds": _json(agent.builds),
        "build_slots": agent.build_slots,
        "hosted_by": agent.hosted_by,
        "host": agent.host,
        "device_ids": _json(agent.device_ids),
    }


def agent_of(row: Mapping[str, Any], now: float) -> Agent:
    """Return the agent of a row, not observed yet."""
    return Agent(
        agent_id=AgentId(row["agent_id"]),
        instance_id=row["instance_id"],
        version=row["version"],
        builds=tuple(json.loads(row["builds"])),
        build_slots=row["build_slots"],
        hosted_by=row["hosted_by"],
        host=row["host"],
        device_ids=tuple(map(DeviceId, json.loads(row["device_ids"]))),
        former_instances=tuple(json.loads(row["former_instances"])),
        last_report=now,
    )


def device_row(device: Device, now: float, wall: float) -> Row:
    """Return the row of a device."""
    about = device.description
    description = {
        "targets": about.targets,
        "labels": dict(about.labels),
        "timing_class": about.timing_class,
        "provides": about.provides,
    }
    return {
        "device_id": device.device_id,
        "agent_id": device.agent_id,
        "description": _json(description),
        "admin": device.admin.value,
        "admin_reason": device.admin_reason,
        "admin_actor": device.admin_actor,
        "admin_until_wall": on_wall(device.admin_until, now, wall),
        "epoch": device.epoch,
        "offline_wall": on_wall(device.offline_at, now, wall),
    }


def device_of(row: Mapping[str, Any], now: float, wall: float) -> Device:
    """Return the device of a row, not observed yet and idle unless a lease says else."""
    about = json.loads(row["description"])
    description = Description(
        device_id=DeviceId(row["device_id"]),
        targets=tuple(about["targets"]),
        labels=about["labels"],
        timing_class=TimingClass(about["timing_class"]),
        provides=tuple(about["provides"]),
    )
    return Device(
        description=description,
        agent_id=AgentId(row["agent_id"]),
        admin=Admin(row["admin"]),
        admin_reason=row["admin_reason"],
        admin_actor=row["admin_actor"],
        admin_until=on_clock(row["admin_until_wall"], now, wall),
        epoch=Epoch(row["epoch"]),
        offline_at=_past(row["offline_wall"], now, wall),
    )


def held(device: Device, lease: Lease) -> Device:
    """Return a loaded device as the lease that holds it says."""
    use = Use.LEASED if lease.state is LeaseState.ACTIVE else Use.RESERVED
    return replace(device, use=use, lease_id=lease.lease_id)


def lease_row(lease: Lease, now: float, wall: float) -> Row:
    """Return the row of a lease that was granted."""
    return {
        "lease_id": lease.lease_id,
        "selector": str(lease.selector),
        "holder": lease.holder,
        "ttl_s": lease.ttl_s,
        "state": lease.state.value,
        "account": lease.account,
        "priority": lease.priority,
        "job_id": lease.job_id or "",
        "queued_wall": on_wall(lease.queued_at, now, wall),
        "granted_wall": on_wall(lease.granted_at, now, wall),
        "device_id": lease.device_id or "",
        "agent_id": lease.agent_id or "",
        "epoch": lease.epoch,
        "expires_wall": wall + lease.expires_at - now,
        "cause": lease.cause,
        "changed_wall": wall,
    }


def lease_of(row: Mapping[str, Any], now: float, wall: float) -> Lease:
    """Return the live lease of a row; a wall clock that was set back never makes it longer."""
    remaining_s = min(row["expires_wall"] - wall, row["ttl_s"])
    return Lease(
        lease_id=LeaseId(row["lease_id"]),
        selector=Selector.parse(row["selector"]),
        holder=row["holder"],
        ttl_s=row["ttl_s"],
        wait_until=now,
        state=LeaseState(row["state"]),
        device_id=DeviceId(row["device_id"]),
        agent_id=AgentId(row["agent_id"]),
        epoch=Epoch(row["epoch"]),
        expires_at=now + remaining_s,
        active_by=now + remaining_s,
        account=row["account"],
        priority=row["priority"],
        job_id=JobId(row["job_id"]) if row["job_id"] else None,
        queued_at=min(now, now + row["queued_wall"] - wall),
        granted_at=min(now, now + row["granted_wall"] - wall),
        story=(f"{now:.3f} {row['state']}({row['epoch']}) loaded from the store",),
    )


def job_row(job: BuildJob, wall: float) -> Row:
    """Return the row of a build request."""
    return {
        "job_id": job.job_id,
        "request_key": job.request_key,
        "target_host": job.target_host,
        "unit_ids": _json(job.unit_ids),
        "keep_going": job.keep_going,
        "state": job.state.value,
        "artifact": str(job.artifact or ""),
        "cause": job.cause,
        "changed_wall": wall,
    }


def attempt_row(attempt: Attempt, unit: BuildUnit, wall: float) -> Row:
    """Return the row of an attempt, with what it was to build."""
    spec = unit.spec
    return {
        "attempt_id": attempt.attempt_id,
        "unit_id": attempt.unit_id,
        "unit": _json([spec.kind, spec.target, spec.symbol, spec.function.sha256]),
        "agent_id": attempt.agent_id,
        "instance_id": attempt.instance_id,
        "state": attempt.state.value,
        "failure": failure_text(attempt.failure),
        "seconds": attempt.seconds,
        "changed_wall": wall,
    }


def cache_row(entry: CacheEntry, wall: float) -> Row:
    """Return the row of an entry of the build cache."""
    spec, module = entry.spec, entry.module
    facts = {
        "object": [module.object.sha256, module.object.size_bytes],
        "format": module.format,
        "format_version": module.format_version,
        "requires": module.requires,
    }
    return {
        "kind": spec.kind.value,
        "target_id": spec.target_id,
        "symbol": spec.symbol,
        "function_sha256": spec.function.sha256,
        "builder_version": entry.builder_version,
        "toolchain": module.toolchain,
        "target": spec.target,
        "module": _json(facts),
        "signature": module.signature,
        "stored_wall": wall,
        "used_wall": wall,
    }


def entry_of(row: Mapping[str, Any], spec: UnitSpec) -> CacheEntry:
    """Return the entry of a row that was found for `spec`."""
    facts = json.loads(row["module"])
    module = Module(
        object=Digest(*facts["object"]),
        format=facts["format"],
        format_version=facts["format_version"],
        requires=tuple(facts["requires"]),
        toolchain=row["toolchain"],
        signature=row["signature"],
    )
    return CacheEntry(spec, row["builder_version"], module)


def account_row(account: Account, now: float, wall: float) -> Row:
    """Return the row of what an account used and may use."""
    limits = account.limits
    return {
        "account": account.name,
        "usage_s": account.usage_s,
        "usage_wall": on_wall(account.usage_at, now, wall),
        "max_held": limits.held,
        "max_queued": limits.queued,
        "budget_s": limits.device_s,
        "window_s": limits.window_s,
        "window_wall": on_wall(account.window_at, now, wall),
        "window_used_s": account.window_used_s,
    }


def account_of(row: Mapping[str, Any], now: float, wall: float) -> Account:
    """Return the account of a row; what it holds and waits for is not stored."""
    at = min(now, now + row["usage_wall"] - wall)
    return Account(
        row["account"],
        usage_s=row["usage_s"],
        usage_at=at,
        limits=_limits_of(row),
        window_at=_past(row["window_wall"], now, wall),
        window_used_s=row["window_used_s"],
    )


def _limits_of(row: Mapping[str, Any]) -> AccountLimits:
    if row["window_s"] is None:  # written before accounts had limits
        return NO_LIMITS
    return AccountLimits(row["max_held"], row["max_queued"], row["budget_s"], row["window_s"])


def note_row(note: Note, now: float, wall: float) -> Row:
    """Return the row of a note."""
    return {
        "number": note.number,
        "at_wall": on_wall(note.at, now, wall),
        "kind": note.kind,
        "subject": note.subject,
        "text": note.text,
        "actor": note.actor,
        "account": note.account,
    }


def note_of(row: Mapping[str, Any], now: float, wall: float) -> Note:
    """Return the note of a row."""
    at = now + row["at_wall"] - wall
    return Note(
        row["number"], at, row["kind"], row["subject"], row["text"], row["actor"], row["account"]
    )


def on_wall(at: float | None, now: float, wall: float) -> float | None:
    """Return a point in time of the tracker's clock on the wall clock."""
    return None if at is None else wall + at - now


def _past(at_wall: float | None, now: float, wall: float) -> float | None:
    """Return what `on_clock` does, at most now: the wall clock may have been set back."""
    at = on_clock(at_wall, now, wall)
    return None if at is None else min(now, at)


def on_clock(at_wall: float | None, now: float, wall: float) -> float | None:
    """Return a point in time of the wall clock on the tracker's clock."""
    return None if at_wall is None else now + at_wall - wall


def failure_text(failure: Failure | None) -> str:
    """Return the column of an error that is data; empty if there is none."""
    if failure is None:
        return ""
    return _json({"code": failure.code, "message": failure.message, "details": failure.details})


def failure_of(text: str) -> Failure | None:
    """Return the error of a column."""
    if not text:
        return None
    facts = json.loads(text)
    details = tuple((key, value) for key, value in facts["details"])
    return Failure(facts["code"], facts["message"], details)


def _json(value: object) -> str:
    return canonical_json(value).decode()
