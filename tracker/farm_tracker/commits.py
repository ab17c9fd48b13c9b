"""Group commit: changes become durable in order, then their commands are carried out.

Owns: which part of a step must be stored, the one thread that writes, the order of commands.
Does not own: the store's format (`store`) or what commands do (`tracker`).

Invariant: no command of a step is carried out before the step, and all before it, are stored. Steps that come while
a transaction is being written share the next one. If a write fails nothing more is carried out: the truth is on disk.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from farm.errors import InfrastructureError
from farm_tracker.state.account import NO_LIMITS
from farm_tracker.state.run import RunJob
from farm_tracker.state.state import Changes, Step
from farm_tracker.store import StoredChanges

if TYPE_CHECKING:
    from collections.abc import Callable

    from farm_tracker.state.account import Account
    from farm_tracker.state.commands import Command
    from farm_tracker.state.model import Agent, Device
    from farm_tracker.state.state import State
    from farm_tracker.state.work import BuildUnit

log = logging.getLogger(__name__)

T = TypeVar("T")

_PASSING = {"watchers", "unwatched_until", "story"}
_FACTS = attrgetter(*(it.name for it in fields(RunJob) if it.name not in _PASSING))


@dataclass(slots=True)
class _Entry:
    stored: StoredChanges | None
    commands: tuple[Command, ...]
    done: asyncio.Future[None]


class Commits:
    """The way of each step from memory to disk to the world."""

    def __init__(
        self, write: Callable[[StoredChanges], None], carry_out: Callable[[Command], None]
    ) -> None:
        self._write = write
        self._carry_out = carry_out
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._pending: list[_Entry] = []
        self._batch: list[_Entry] = []  # being stored and carried out
        self._drain: asyncio.Task[None] | None = None
        self._closed = False
        self.failed: asyncio.Future[InfrastructureError] = (
            asyncio.get_running_loop().create_future()
        )

    def add(self, stored: StoredChanges | None, step: Step) -> asyncio.Future[None]:
        """Take a step; the future is done when it is stored and carried out.

        Raises
        ------
        InfrastructureError
            An earlier step could not be stored, or the tracker has stopped.
        """
        self.check_open()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if stored is None and self._drain is None:
            try:
                self._perform(_Entry(None, step.commands, done))
            except Exception as error:
                self._fail_aloud(error)
                raise
            return done
        self._pending.append(_Entry(stored, step.commands, done))
        if self._drain is None:
            self._drain = asyncio.get_running_loop().create_task(self._run())
            self._drain.add_done_callback(self._notice)
        return done

    def settled(self) -> asyncio.Future[None]:
        """Return a future that is done when every step so far is stored and carried out."""
        return self.add(None, Step(Changes(), ()))

    def check_open(self) -> None:
        """Raise InfrastructureError if no step can be taken any more."""
        if self.failed.done():
            raise self.failed.result()
        if self._closed:
            raise InfrastructureError("tracker: it has stopped; try again when it is back")

    def fail(self, error: BaseException) -> None:
        """Carry nothing out any more: a defect was found, and the truth is on disk."""
        failure = InfrastructureError(
            f"tracker: stopped ({error}); nothing acknowledged is lost; start it again"
        )
        if not self.failed.done():
            self.failed.set_result(failure)
        for entry in (*self._batch, *self._pending):
            _refuse(entry, failure)
        self._batch, self._pending = [], []

    async def in_thread(self, call: Callable[..., T], *args: Any) -> T:
        """Run a call in the store's thread, after the writes that are under way."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)

    async def close(self) -> None:
        """Store what is pending and end the thread."""
        while self._drain is not None:  # steps that come meanwhile are stored too
            await asyncio.wait({self._drain})
        self._closed = True
        self._thread.shutdown()

    async def _run(self) -> None:
        while self._pending and not self.failed.done():
            self._batch, self._pending = self._pending, []
            stored = [entry.stored for entry in self._batch if entry.stored is not None]
            if stored:
                try:
                    await self.in_thread(self._write, _merged(stored))
                except (SQLAlchemyError, OSError) as error:
                    self.fail(error)
            for entry in self._batch:  # none if it failed meanwhile
                self._perform(entry)
            self._batch = []
        self._drain = None

    def _perform(self, entry: _Entry) -> None:
        for command in entry.commands:
            self._carry_out(command)
        if not entry.done.done():
            entry.done.set_result(None)

    def _notice(self, drain: asyncio.Task[None]) -> None:
        """Fail aloud if storing or carrying out broke on a defect."""
        if self._drain is drain:
            self._drain = None
        error = None if drain.cancelled() else drain.exception()
        if error is not None:
            self._fail_aloud(error)

    def _fail_aloud(self, error: BaseException) -> None:
        log.critical("defect while steps were carried out", exc_info=error)
        self.fail(error)


def _refuse(entry: _Entry, failure: InfrastructureError) -> None:
    if not entry.done.done():
        entry.done.set_exception(failure)
        entry.done.exception()  # most have nobody who waits


def durable_part(state: State, changes: Changes) -> StoredChanges | None:
    """Return what of `changes` must be stored; None if nothing, as for most heartbeats.

    Call it before the changes are applied, since it compares them with what was.
    """
    kept = Changes(cached=changes.cached)
    for agent_id, agent in changes.agents.items():
        if _agent_facts(agent) != _agent_facts(state.agents.get(agent_id)):
            kept.agents[agent_id] = agent
    for device_id, device in changes.devices.items():
        if _device_facts(device) != _device_facts(state.devices.get(device_id)):
            kept.devices[device_id] = device
    if changes.epoch_floor > state.epoch_floor:
        kept.epoch_floor = changes.epoch_floor
    _keep_leases(state, changes, kept)
    for job_id, job in changes.jobs.items():
        if job is not None and job != state.jobs.get(job_id):
            kept.jobs[job_id] = job
    units = _keep_attempts(state, changes, kept)
    _keep_runs(state, changes, kept)
    is_empty = kept == Changes()
    return None if is_empty else StoredChanges(kept, units)


def _keep_leases(state: State, changes: Changes, kept: Changes) -> None:
    """Keep leases that were granted; who waits asks again after a restart."""
    for lease_id, lease in changes.leases.items():
        if lease is None:
            former = state.leases.get(lease_id)
            if former is not None and former.epoch:
                kept.leases[lease_id] = None
        elif lease.epoch and lease != state.leases.get(lease_id):
            kept.leases[lease_id] = lease


def _keep_runs(state: State, changes: Changes, kept: Changes) -> None:
    for job_id, job in changes.run_jobs.items():
        if _job_facts(job) != _job_facts(state.run_jobs.get(job_id)):
            kept.run_jobs[job_id] = job
    for attempt_id, attempt in changes.run_attempts.items():
        if attempt != state.run_attempts.get(attempt_id):
            kept.run_attempts[attempt_id] = attempt
    for name, account in changes.accounts.items():
        if _account_facts(account) != _account_facts(state.accounts.get(name)):
            kept.accounts[name] = account
    kept.notes = changes.notes


def _keep_attempts(state: State, changes: Changes, kept: Changes) -> dict[str, BuildUnit]:
    """Keep attempts that changed; return the units that they are of."""
    units = {}
    for attempt_id, attempt in changes.attempts.items():
        if attempt is not None and attempt != state.attempts.get(attempt_id):
            kept.attempts[attempt_id] = attempt
            changed = changes.units.get(attempt.unit_id)
            units[str(attempt.unit_id)] = changed or state.units[attempt.unit_id]
    return units


def _agent_facts(agent: Agent | None) -> object:
    return agent and (
        agent.instance_id,
        agent.former_instances,
        agent.version,
        agent.builds,
        agent.build_slots,
        agent.hosted_by,
        agent.host,
        agent.device_ids,
    )


def _device_facts(device: Device | None) -> object:
    return device and (
        device.agent_id,
        device.description,
        device.admin,
        device.admin_reason,
        device.admin_actor,
        device.admin_until,
        device.epoch,
        device.offline_at,
    )


def _job_facts(job: RunJob | None) -> object:
    """Return what a restarted tracker has to know of a job: not who watches it."""
    return job and _FACTS(job)


def _account_facts(account: Account | None) -> object:
    """Return what of an account does not follow from its leases and jobs."""
    if account is None or not (account.usage_s or account.limits != NO_LIMITS):
        return None
    window = (account.window_at, account.window_used_s)
    return (account.usage_s, account.usage_at, account.limits, window)


def _merged(stored: list[StoredChanges]) -> StoredChanges:
    merged = StoredChanges(Changes(), {})
    for it in stored:
        merged.changes.merge(it.changes)
        merged.units.update(it.units)
    return merged
