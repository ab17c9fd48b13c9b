"""Taking over what a former run of the tracker left.

Owns: checking that what was stored fits together, and what does not survive a restart (who watched a job).
Does not own: the rows (`store`).

Invariant: a live lease goes on, with the attempt that it serves: nothing that runs is run again.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from farm.core.values import replace
from farm.errors import InfrastructureError
from farm_tracker import rows
from farm_tracker.state.account import Account
from farm_tracker.state.run import RunState
from farm_tracker.state.state import Changes

if TYPE_CHECKING:
    from farm_tracker.state.model import Lease, Limits
    from farm_tracker.state.run import RunJob
    from farm_tracker.store import Loaded


def changes_of(loaded: Loaded, now: float, limits: Limits) -> Changes:
    """Return the changes that make an empty state what was stored.

    Raises
    ------
    InfrastructureError
        What was stored does not fit together.
    """
    changes = Changes(notes=list(loaded.notes), epoch_floor=loaded.epoch_floor)
    changes.agents.update((it.agent_id, it) for it in loaded.agents)
    changes.devices.update((it.device_id, it) for it in loaded.devices)
    for lease in loaded.leases:
        device = changes.devices.get(lease.device_id) if lease.device_id else None
        if device is None or device.epoch != lease.epoch:
            raise InfrastructureError(
                f"store: live lease {lease.lease_id} does not fit device {lease.device_id}; "
                "restore the data folder from a copy"
            )
        changes.leases[lease.lease_id] = lease
        changes.devices[device.device_id] = rows.held(device, lease)
    for job in loaded.run_jobs:
        changes.run_jobs[job.job_id] = _unwatched(job, now, limits)
    changes.run_attempts.update((it.attempt_id, it) for it in loaded.run_attempts)
    _check_runs(changes)
    changes.accounts.update(_accounts(loaded, now))
    return changes


def _unwatched(job: RunJob, now: float, limits: Limits) -> RunJob:
    """Give whoever waited for a job the usual time to come back."""
    if not (job.cancel_when_unwatched and job.is_open):
        return job
    return replace(job, unwatched_until=now + limits.unwatched_s)


def _check_runs(changes: Changes) -> None:
    for job in changes.run_jobs.values():
        if job is None or job.state is not RunState.RUNNING:
            continue
        attempt = changes.run_attempts.get(job.attempt_id) if job.attempt_id else None
        if attempt is None or attempt.lease_id not in changes.leases:
            raise InfrastructureError(
                f"store: job {job.job_id} runs without a live lease (attempt {job.attempt_id}); "
                "restore the data folder from a copy"
            )


def _accounts(loaded: Loaded, now: float) -> dict[str, Account]:
    """Return every account with what it holds and waits for."""
    accounts = {it.name: it for it in loaded.accounts}
    for lease in loaded.leases:
        known = accounts.get(lease.account, Account(lease.account, usage_at=now))
        accounts[lease.account] = _with_lease(known, lease)
    queued = Counter(job.account for job in loaded.run_jobs if job.is_queued)
    for name, count in queued.items():
        known = accounts.get(name, Account(name, usage_at=now))
        accounts[name] = replace(known, queued=known.queued + count)
    return accounts


def _with_lease(account: Account, lease: Lease) -> Account:
    return account.granted(lease.granted_at)
