"""What must hold after every step.

Owns: the checks. Does not own: keeping them true (`step`).

Invariant: a state of which nothing is reported can be explained to a user, field by field.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from farm_tracker.state.deadlines import deadline_of, is_between, is_forgettable
from farm_tracker.state.model import HELD, LeaseState, Observed, Use
from farm_tracker.state.run_invariants import CHECKS as RUN_CHECKS
from farm_tracker.state.work import AttemptState, UnitState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from farm.core.ids import DeviceId, Epoch
    from farm_tracker.state.state import State


def violations(state: State, touched: AbstractSet[str] | None = None) -> list[str]:
    """Return what is wrong with a state; empty if nothing is.

    Parameters
    ----------
    touched
        The tables that changed since nothing was wrong: what reads others only is not looked at again; None: all.
    """
    return [
        wrong
        for check, tables in CHECKS
        if touched is None or not touched.isdisjoint(tables)
        for wrong in check(state)
    ]


def _devices(state: State) -> Iterator[str]:
    for device_id, device in state.devices.items():
        held = device.use in HELD
        is_offline = device.observed is Observed.OFFLINE
        is_told = device.observed is not Observed.UNKNOWN  # since the tracker started
        if is_told and is_offline != (device.offline_at is not None):
            yield f"device {device_id}: {device.observed} with offline_at {device.offline_at}"
        if is_offline and held:
            yield f"device {device_id}: {device.use} though it is OFFLINE"
        if held != (device.lease_id is not None):
            yield f"device {device_id}: {device.use} with lease {device.lease_id}"
        if device.lease_id is None:
            continue
        lease = state.leases.get(device.lease_id)
        expected = LeaseState.ACTIVE if device.use is Use.LEASED else LeaseState.GRANTED
        if lease is None or lease.state is not expected or lease.epoch != device.epoch:
            yield f"device {device_id}: {device.use}({device.epoch}) for lease {lease}"
        agent = state.agents.get(device.agent_id)
        if agent is None or device_id not in agent.device_ids:
            yield f"device {device_id}: its agent {device.agent_id} does not have it"


def _epochs(state: State) -> Iterator[str]:
    """No epoch that is known of is above what its device, or one that is new, goes on from."""
    used: Iterator[tuple[str, DeviceId | None, Epoch]] = chain(
        ((f"lease {it.lease_id}", it.device_id, it.epoch) for it in state.leases.values()),
        (
            (f"attempt {it.attempt_id}", it.device_id, it.epoch)
            for it in state.run_attempts.values()
        ),
    )
    for subject, device_id, epoch in used:
        device = state.devices.get(device_id) if device_id is not None else None
        last = device.epoch if device is not None else state.epoch_floor
        if epoch > last:
            yield f"{subject}: epoch {epoch} of {device_id}, which goes on from {last}"


def _leases(state: State) -> Iterator[str]:
    for lease_id, lease in state.leases.items():
        if lease.state is LeaseState.QUEUED and (lease.device_id or lease.epoch):
            yield f"lease {lease_id}: QUEUED with a device"
        if not lease.is_live:
            continue
        device = state.devices.get(lease.device_id) if lease.device_id else None
        if device is None or device.lease_id != lease_id:
            yield f"lease {lease_id}: {lease.state} but device {lease.device_id} is not its own"


def _agents(state: State) -> Iterator[str]:
    for agent_id, agent in state.agents.items():
        for device_id in agent.device_ids:
            device = state.devices.get(device_id)
            if device is None or device.agent_id != agent_id:
                yield f"agent {agent_id}: device {device_id} is not its own"
            elif device.observed is Observed.ONLINE and agent.observed is not Observed.ONLINE:
                yield f"device {device_id}: ONLINE while its agent is {agent.observed}"
        live = {
            it.attempt_id
            for it in state.attempts.values()
            if it.agent_id == agent_id and it.state is AttemptState.BUILDING
        }
        if live != set(agent.attempt_ids):
            yield f"agent {agent_id}: attempts {sorted(agent.attempt_ids)}, live are {sorted(live)}"
        if live and agent.observed is Observed.OFFLINE:
            yield f"agent {agent_id}: OFFLINE with live attempts {sorted(live)}"
        if agent.instance_id in agent.former_instances:
            yield f"agent {agent_id}: its process {agent.instance_id} was replaced"


def _units(state: State) -> Iterator[str]:
    for unit_id, unit in state.units.items():
        live = [
            it.attempt_id
            for it in state.attempts.values()
            if it.unit_id == unit_id and it.state is AttemptState.BUILDING
        ]
        if live != ([unit.attempt_id] if unit.state is UnitState.BUILDING else []):
            yield f"unit {unit_id}: {unit.state} with live attempts {live}"
        if unit.is_open and not unit.job_ids:
            yield f"unit {unit_id}: {unit.state} but wanted by no job"
        if min(unit.infra_left, unit.lost_left) < 0:
            yield f"unit {unit_id}: a retry budget is overdrawn"
        if (unit.state is UnitState.DONE) != (unit.module is not None):
            yield f"unit {unit_id}: {unit.state} with module {unit.module}"
        if unit.state is UnitState.FAILED and unit.failure is None:
            yield f"unit {unit_id}: FAILED without a failure"


def _jobs(state: State) -> Iterator[str]:
    for job_id, job in state.jobs.items():
        for unit_id in job.unit_ids:
            unit = state.units.get(unit_id)
            if unit is None:
                if job.is_open:
                    yield f"build {job_id}: unit {unit_id} is unknown"
            elif unit.is_open and (job_id in unit.job_ids) != job.is_open:
                yield f"build {job_id}: {job.state}, but its unit {unit_id} is {unit.state}"


def _waiting(state: State) -> Iterator[str]:
    for family, queue in state.queued_units.items():
        for agent_id, agent in state.agents.items():
            if family in agent.builds and agent.free_slots > 0:
                yield f"units {sorted(queue)}: QUEUED while agent {agent_id} is free"


def _deadlines(state: State) -> Iterator[str]:
    for device in state.devices.values():
        own = deadline_of(device, state.limits) is not None
        must_have = is_between(device) or is_forgettable(device)
        if must_have and not own and device.lease_id is None:
            yield f"device {device.device_id}: {device.situation} without a deadline"
    for job in state.run_jobs.values():
        if job.attempt_id is None and deadline_of(job, state.limits) is None:
            yield f"job {job.job_id}: {job.state} without a deadline"
    for unit in state.units.values():
        bound = unit.attempt_id is not None
        if not bound and deadline_of(unit, state.limits) is None:
            yield f"unit {unit.unit_id}: {unit.state} without a deadline"


def _indices(state: State) -> Iterator[str]:
    free = {key for key, device in state.devices.items() if device.is_free}
    if free != set(state.free_devices):
        yield f"index of free devices: has {sorted(state.free_devices)}, is {sorted(free)}"
    waiting = {key for key, unit in state.units.items() if unit.state is UnitState.QUEUED}
    if waiting != set(chain.from_iterable(state.queued_units.values())):
        yield f"index of queued units: has {state.queued_units}, is {sorted(waiting)}"
    unfinished = {unit.spec: key for key, unit in state.units.items() if unit.is_open}
    if unfinished != state.open_units:
        yield f"index of open units: has {state.open_units}, is {unfinished}"


CHECKS = (
    (_devices, ("devices", "leases", "agents")),
    (_epochs, ("leases", "run_attempts", "devices")),
    (_leases, ("leases", "devices")),
    (_agents, ("agents", "devices", "attempts")),
    (_units, ("units", "attempts")),
    (_jobs, ("jobs", "units")),
    (_waiting, ("units", "agents")),
    (_deadlines, ("devices", "run_jobs", "units")),
    (_indices, ("devices", "units")),
    *RUN_CHECKS,
)
"""Each check with the tables that it reads, indices over them included."""
