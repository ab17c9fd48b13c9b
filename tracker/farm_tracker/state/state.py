"""The state of the farm, and the draft in which a step prepares its changes.

Owns: the entities by id, the indices over them, and how a step's changes are applied.
Does not own: which changes are right (`step`).

Invariant: an index always equals what the entities say (`invariants` computes both).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from farm.core.ids import JobId, LeaseId
from farm_tracker.state.account import Account
from farm_tracker.state.deadlines import deadline_of
from farm_tracker.state.model import NO_EPOCH, Agent, Device, Lease, Limits
from farm_tracker.state.notes import Note
from farm_tracker.state.queue import Matching, Queue, same_to_demands
from farm_tracker.state.run import RunAttempt, RunJob
from farm_tracker.state.work import Attempt, BuildJob, BuildUnit, UnitState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from farm.core.ids import AgentId, AttemptId, DeviceId
    from farm_tracker.state.commands import Command
    from farm_tracker.state.deadlines import Entity
    from farm_tracker.state.demand import Demand
    from farm_tracker.state.table import Trigger
    from farm_tracker.state.work import CacheEntry, UnitId, UnitSpec

K = TypeVar("K", bound=str)
V = TypeVar("V")


@dataclass(slots=True)
class Changes:
    """New values of entities by id; None where one is forgotten."""

    agents: dict[AgentId, Agent | None] = field(default_factory=dict)
    devices: dict[DeviceId, Device | None] = field(default_factory=dict)
    leases: dict[LeaseId, Lease | None] = field(default_factory=dict)
    jobs: dict[JobId, BuildJob | None] = field(default_factory=dict)
    units: dict[UnitId, BuildUnit | None] = field(default_factory=dict)
    attempts: dict[AttemptId, Attempt | None] = field(default_factory=dict)
    cached: list[CacheEntry] = field(default_factory=list)
    run_jobs: dict[JobId, RunJob | None] = field(default_factory=dict)
    run_attempts: dict[AttemptId, RunAttempt | None] = field(default_factory=dict)
    accounts: dict[str, Account | None] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    epoch_floor: int = NO_EPOCH
    """The highest epoch of all devices that were forgotten; what is below the known floor changes nothing."""

    def merge(self, later: Changes) -> None:
        """Take over what `later` changed; its values win."""
        self.agents.update(later.agents)
        self.devices.update(later.devices)
        self.leases.update(later.leases)
        self.jobs.update(later.jobs)
        self.units.update(later.units)
        self.attempts.update(later.attempts)
        self.cached.extend(later.cached)
        self.run_jobs.update(later.run_jobs)
        self.run_attempts.update(later.run_attempts)
        self.accounts.update(later.accounts)
        self.notes.extend(later.notes)
        self.epoch_floor = max(self.epoch_floor, later.epoch_floor)


@dataclass(frozen=True, slots=True)
class Step:
    """What one event leads to: new values, then commands to carry out once those are stored."""

    changes: Changes
    commands: tuple[Command, ...]


class State:
    """Everything the tracker knows. Read it freely; only `apply` changes it."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.agents: dict[AgentId, Agent] = {}
        self.devices: dict[DeviceId, Device] = {}
        self.leases: dict[LeaseId, Lease] = {}
        self.jobs: dict[JobId, BuildJob] = {}
        self.units: dict[UnitId, BuildUnit] = {}
        self.attempts: dict[AttemptId, Attempt] = {}
        self.run_jobs: dict[JobId, RunJob] = {}
        self.run_attempts: dict[AttemptId, RunAttempt] = {}
        self.accounts: dict[str, Account] = {}
        self.notes: deque[Note] = deque(maxlen=self.limits.notes_kept)
        self.note_number = 0
        self.epoch_floor = NO_EPOCH
        # Indices. Dictionaries without values are sets that keep their order.
        self.free_devices: dict[DeviceId, None] = {}
        self.queue = Queue()
        self.matching = Matching(self.devices)
        self.client_jobs: dict[tuple[str, str], JobId] = {}
        self.queued_units: dict[str, dict[UnitId, None]] = {}
        self.open_units: dict[UnitSpec, UnitId] = {}
        # Each entity with a deadline has one entry in the heap that counts, at its deadline or before: most deadlines
        # only ever move later, and then nothing has to be done until the entry comes up.
        self._due: list[tuple[float, str, str]] = []
        self._counts: dict[tuple[str, str], float] = {}

    @property
    def queued_leases(self) -> dict[LeaseId, None]:
        """The interactive leases that wait, oldest first; for tests and people, not for each step."""
        waiting = [it for it in self.leases.values() if it.is_queued]
        return {it.lease_id: None for it in sorted(waiting, key=lambda it: it.queued_at)}

    def apply(self, changes: Changes) -> None:
        """Make the changes true."""
        self.epoch_floor = max(self.epoch_floor, changes.epoch_floor)
        before = {key: self.devices.get(key) for key in changes.devices}
        for device_id in _put(self.devices, changes.devices):
            device = self.devices.get(device_id)
            former = before[device_id]
            if former is None or device is None or not same_to_demands(former, device):
                self.matching.update(device_id, device)
            _keep(self.free_devices, device_id, device is not None and device.is_free)
            self._arm("devices", device_id, device)
        for lease_id in _put(self.leases, changes.leases):
            lease = self.leases.get(lease_id)
            self._index_waiting(lease_id, lease)
            self._arm("leases", lease_id, lease)
        for unit_id, unit in changes.units.items():
            self._index_unit(unit_id, unit or self.units[unit_id], unit is not None)
        for unit_id in _put(self.units, changes.units):
            self._arm("units", unit_id, self.units.get(unit_id))
        for agent_id in _put(self.agents, changes.agents):
            self._arm("agents", agent_id, self.agents.get(agent_id))
        for job_id in _put(self.jobs, changes.jobs):
            self._arm("jobs", job_id, self.jobs.get(job_id))
        for attempt_id in _put(self.attempts, changes.attempts):
            self._arm("attempts", attempt_id, self.attempts.get(attempt_id))
        self._apply_runs(changes)

    def _apply_runs(self, changes: Changes) -> None:
        for job_id, changed in changes.run_jobs.items():
            job = changed or self.run_jobs[job_id]
            if job.client_key:
                key = (job.account, job.client_key)
                if changed is not None:
                    self.client_jobs[key] = job_id
                elif self.client_jobs.get(key) == job_id:
                    del self.client_jobs[key]
        for job_id in _put(self.run_jobs, changes.run_jobs):
            self._index_waiting(job_id, self.run_jobs.get(job_id))
            self._arm("run_jobs", job_id, self.run_jobs.get(job_id))
        _put(self.run_attempts, changes.run_attempts)
        for name in _put(self.accounts, changes.accounts):
            self._arm("accounts", name, self.accounts.get(name))
        self.notes.extend(changes.notes)
        if changes.notes:
            self.note_number = changes.notes[-1].number

    def due(self, now: float, most: int) -> Iterator[tuple[str, str]]:
        """Yield (table, id) of what has a deadline that is not after `now`, at most so many; changes nothing."""
        # A heap's children never come before their parent: go down from the root, what is due first first.
        pending = [(self._due[0], 0)] if self._due else []
        found: dict[tuple[str, str], float] = {}
        while pending and pending[0][0][0] <= now and len(found) < most:
            (_, table, key), index = heapq.heappop(pending)
            at = self._armed(table, key)
            if at is not None and at <= now:
                found[table, key] = at
            for below in (2 * index + 1, 2 * index + 2):
                if below < len(self._due):
                    heapq.heappush(pending, (self._due[below], below))
        yield from sorted(found, key=lambda it: (found[it], it))

    def next_deadline(self) -> float | None:
        """Return when something is due next; brings what is outdated up to date."""
        while self._due:
            entry = self._due[0]
            at, table, key = entry
            if self._counts.get((table, key)) != at:
                heapq.heappop(self._due)
                continue
            armed = self._armed(table, key)
            if armed == at:
                return at
            if armed is None:
                heapq.heappop(self._due)
                del self._counts[table, key]
            else:
                heapq.heapreplace(self._due, (armed, table, key))
                self._counts[table, key] = armed
        return None

    def _armed(self, table: str, key: str) -> float | None:
        entity = getattr(self, table).get(key)
        deadline = deadline_of(entity, self.limits) if entity is not None else None
        return deadline.at if deadline else None

    def _arm(self, table: str, key: str, entity: Entity | None) -> None:
        deadline = deadline_of(entity, self.limits) if entity is not None else None
        if deadline and deadline.at < self._counts.get((table, key), math.inf):
            heapq.heappush(self._due, (deadline.at, table, key))
            self._counts[table, key] = deadline.at

    def _index_waiting(self, key: str, entity: Lease | RunJob | None) -> None:
        if entity is not None and entity.is_queued:
            self.queue.put(entity)
        else:
            self.queue.drop(key)

    def _index_unit(self, unit_id: UnitId, unit: BuildUnit, exists: bool) -> None:
        queue = self.queued_units.setdefault(unit.spec.family, {})
        _keep(queue, unit_id, exists and unit.state is UnitState.QUEUED)
        if not queue:
            del self.queued_units[unit.spec.family]
        if exists and unit.is_open:
            self.open_units[unit.spec] = unit_id
        elif self.open_units.get(unit.spec) == unit_id:
            del self.open_units[unit.spec]


class Draft:
    """A view of a state with changes on top; nothing below is touched until they are applied."""

    def __init__(self, state: State, now: float) -> None:
        self.base = state
        self.limits = state.limits
        self.now = now
        self.changes = Changes()
        self.agents = Overlay(state.agents, self.changes.agents)
        self.devices = Overlay(state.devices, self.changes.devices)
        self.leases = Overlay(state.leases, self.changes.leases)
        self.jobs = Overlay(state.jobs, self.changes.jobs)
        self.units = Overlay(state.units, self.changes.units)
        self.attempts = Overlay(state.attempts, self.changes.attempts)
        self.run_jobs = Overlay(state.run_jobs, self.changes.run_jobs)
        self.run_attempts = Overlay(state.run_attempts, self.changes.run_attempts)
        self.accounts = Overlay(state.accounts, self.changes.accounts)
        self.commands: list[Command] = []
        # What the end of the step has to look at again.
        self.freed: dict[DeviceId, None] = {}
        self.push: dict[AgentId, None] = {}
        self.families: dict[str, None] = {}
        self.joined: dict[str, None] = {}
        self.unblocked: dict[str, None] = {}
        self.ended_leases: list[tuple[Lease, Trigger, str]] = []

    def note(self, kind: str, subject: str, text: str, actor: str = "", account: str = "") -> None:
        """Add a line to the farm's diary; `account` is whose job or lease it is about."""
        number = self.base.note_number + len(self.changes.notes) + 1
        self.changes.notes.append(Note(number, self.now, kind, subject, text, actor, account))

    @property
    def epoch_floor(self) -> int:
        """The epoch below which no device that joins may begin."""
        return max(self.base.epoch_floor, self.changes.epoch_floor)

    def waiting(self, key: str) -> Lease | RunJob | None:
        """Return what waits in the queue under `key`, if it still does."""
        job = self.run_jobs.get(JobId(key))
        if job is not None:
            return job if job.is_queued else None
        lease = self.leases.get(LeaseId(key))
        return lease if lease is not None and lease.is_queued else None

    def fits(self, demand: Demand, device: Device, known: Device | None = None) -> bool:
        """Tell whether a device matches, without looking at it unless it is another than before the step.

        `known` is the device as it was before the step, if the caller has looked it up.
        """
        known = known or self.base.devices.get(device.device_id)
        if known is None or not (known is device or same_to_demands(known, device)):
            return demand.matches(device)
        return device.device_id in self.base.matching.of(demand)

    def job_of_client(self, account: str, client_key: str) -> RunJob | None:
        """Return the job that a client submitted under this key."""
        job_id = self.base.client_jobs.get((account, client_key)) if client_key else None
        return self.run_jobs.get(job_id) if job_id is not None else None

    def free_devices(self) -> Iterator[Device]:
        """Yield devices that can be granted, the one that was free longest first."""
        for device_id in _newest(self.base.free_devices, self.changes.devices):
            device = self.devices.get(device_id)
            if device is not None and device.is_free:
                yield device

    def queued_units(self, family: str) -> Iterator[BuildUnit]:
        """Yield units of a family in the queue, oldest first."""
        for unit_id in _newest(self.base.queued_units.get(family, {}), self.changes.units):
            unit = self.units.get(unit_id)
            if unit is not None and unit.state is UnitState.QUEUED and unit.spec.family == family:
                yield unit

    def open_unit(self, spec: UnitSpec) -> BuildUnit | None:
        """Return the unit in flight that is equal to `spec`."""
        unit_id = self.base.open_units.get(spec)
        unit = self.units.get(unit_id) if unit_id is not None else None
        return unit if unit is not None and unit.is_open else None


class Overlay(Generic[K, V]):
    """A mapping with changes on top."""

    __slots__ = ("_base", "_changed")

    def __init__(self, base: Mapping[K, V], changed: dict[K, V | None]) -> None:
        self._base = base
        self._changed = changed

    def get(self, key: K) -> V | None:
        """Return the newest value, or None if there is none."""
        return self._changed[key] if key in self._changed else self._base.get(key)

    def __getitem__(self, key: K) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._changed[key] = value

    def forget(self, key: K) -> None:
        """Drop it."""
        self._changed[key] = None

    def values(self) -> Iterator[V]:
        """Yield every newest value."""
        for key in _newest(self._base, self._changed):
            value = self.get(key)
            if value is not None:
                yield value


def _newest(index: Mapping[K, object], changed: Mapping[K, object]) -> Iterator[K]:
    """Yield the keys of an index, then those changed that it lacks; the latter may grow meanwhile."""
    yield from index
    yield from [key for key in changed if key not in index]


def _put(table: dict[K, V], changed: Mapping[K, V | None]) -> list[K]:
    for key, value in changed.items():
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return list(changed)


def _keep(index: dict[K, None], key: K, wanted: bool) -> None:
    if wanted:
        index.setdefault(key, None)
    else:
        index.pop(key, None)
