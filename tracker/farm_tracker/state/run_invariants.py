"""What must hold of run jobs, accounts, the queue and operators' wishes after every step.

Owns: the checks. Does not own: keeping them true (`jobs`, `scheduling`, `admin`).

Invariant: as of `invariants`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from farm_tracker.state.account import Account
from farm_tracker.state.model import POISON_DEVICES, Admin, Observed, Use
from farm_tracker.state.run import (
    Outcome,
    RunAttemptState,
    RunJob,
    RunState,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farm_tracker.state.model import Lease, Limits
    from farm_tracker.state.run import RunAttempt
    from farm_tracker.state.state import State

USED_S = 1e-3
"""How far sums of points in time may drift by rounding."""


def run_jobs(state: State) -> Iterator[str]:
    """Check each job against its attempts."""
    for job_id, job in state.run_jobs.items():
        tries = [state.run_attempts.get(it) for it in job.attempt_ids]
        if None in tries:
            yield f"job {job_id}: an attempt of {job.attempt_ids} is unknown"
            continue
        known = [it for it in tries if it is not None]
        live = [it.attempt_id for it in known if it.state is RunAttemptState.RUNNING]
        expected = [job.attempt_id] if job.state is RunState.RUNNING else []
        if live != expected or (job.attempt_id is None) == (job.state is RunState.RUNNING):
            yield f"job {job_id}: {job.state} with live attempts {live}"
        budget = state.limits.infra_budget + state.limits.lost_budget
        if min(job.infra_left, job.lost_left) < 0 or len(known) > 1 + budget:
            yield f"job {job_id}: a retry budget is overdrawn ({len(known)} attempts)"
        done = sum(it.state is RunAttemptState.DONE for it in known)
        yield from (f"job {job_id}: {it}" for it in _ending(job, done))
    known_jobs = {it for job in state.run_jobs.values() for it in job.attempt_ids}
    if known_jobs != set(state.run_attempts):
        yield f"run attempts: {sorted(known_jobs ^ set(state.run_attempts))} fit no job"


def _ending(job: RunJob, done: int) -> Iterator[str]:
    if (job.outcome is not None) != (job.state is RunState.TERMINAL):
        yield f"{job.state} with outcome {job.outcome}"
    if (job.verdict is not None) != (job.outcome is Outcome.COMPLETED):
        yield f"{job.outcome} with verdict {job.verdict}"
    if done != (job.outcome is Outcome.COMPLETED):
        yield f"{job.outcome} with {done} attempts that are DONE"
    if (job.result is not None) != (job.verdict is Verdict.PASS):
        yield f"{job.verdict} with result {job.result!r}"
    if (job.failure is not None) != (job.outcome is not None and job.verdict is not Verdict.PASS):
        yield f"{job.outcome}, {job.verdict} with failure {job.failure}"
    if job.outcome is Outcome.POISONED and len(job.lost_devices) < POISON_DEVICES:
        yield f"POISONED, but lost only {job.lost_devices}"
    if job.is_open and len(job.lost_devices) >= POISON_DEVICES:
        yield f"{job.state}, but lost {job.lost_devices}"


def run_leases(state: State) -> Iterator[str]:
    """Check attempts against their leases."""
    running = {
        it.lease_id: it for it in state.run_attempts.values() if it.state is RunAttemptState.RUNNING
    }
    for lease_id, lease in state.leases.items():
        if lease.job_id is not None and lease.is_live != (lease_id in running):
            yield f"lease {lease_id}: {lease.state}, but its attempt is {running.get(lease_id)}"
    for lease_id, attempt in running.items():
        if not _fits(attempt, state.leases.get(lease_id)):
            yield f"attempt {attempt.attempt_id}: lease {lease_id} is not its own"


def _fits(attempt: RunAttempt, lease: Lease | None) -> bool:
    return lease is not None and (
        (lease.device_id, lease.agent_id, lease.epoch, lease.job_id)
        == (attempt.device_id, attempt.agent_id, attempt.epoch, attempt.job_id)
    )


def queue(state: State) -> Iterator[str]:
    """Check that the queue holds what waits, in order."""
    entries = {key: (it.queued_at, key) for key, it in _waiting(state).items()}
    if entries != state.queue.entries():
        yield f"queue: has {sorted(state.queue.entries())}, is {sorted(entries)}"
    for groups in state.queue.lines.values():
        for line in groups.values():
            if line != sorted(line):
                yield f"queue: {line} is out of order"


def offers(state: State) -> Iterator[str]:
    """Check that nobody waits beside a device that it may have, and the index of what matches."""
    for key, entity in _waiting(state).items():
        known = state.accounts.get(entity.account)
        if known is not None and _may_be_passed_over(known, state.limits):
            continue
        for device_id in state.free_devices:
            if isinstance(entity, RunJob) and entity.avoids(device_id):
                continue
            if entity.demand.matches(state.devices[device_id]):
                yield f"{key}: QUEUED while {device_id} is free"
    for demand, found in state.matching.known().values():
        matching = {k for k, it in state.devices.items() if demand.matches(it)}
        if matching != set(found):
            yield f"{demand}: matches {sorted(matching)}, index has {sorted(found)}"


def _may_be_passed_over(account: Account, limits: Limits) -> bool:
    """Tell whether a limit may keep an account waiting; what it holds uses its budget up as time passes."""
    budget_s = account.limits.device_s
    is_short = budget_s is not None and account.window_at is not None
    is_short = is_short and (account.held > 0 or account.window_used_s >= (budget_s or 0.0))
    return account.held >= account.max_held(limits) or is_short


def _waiting(state: State) -> dict[str, Lease | RunJob]:
    leases: dict[str, Lease | RunJob] = {k: it for k, it in state.leases.items() if it.is_queued}
    return leases | {k: it for k, it in state.run_jobs.items() if it.is_queued}


def accounts(state: State) -> Iterator[str]:
    """Check that accounts count what they hold and wait for."""
    expected: dict[str, Account] = {}
    for lease in state.leases.values():
        if lease.is_live:
            known = expected.get(lease.account, Account(lease.account))
            expected[lease.account] = known.granted(lease.granted_at)
    queued: dict[str, int] = {}
    for entity in _waiting(state).values():
        queued[entity.account] = queued.get(entity.account, 0) + 1
    for name in {*expected, *queued, *state.accounts}:
        has = state.accounts.get(name, Account(name))
        want = expected.get(name, Account(name))
        sums_agree = math.isclose(has.held_since_s, want.held_since_s, abs_tol=USED_S)
        if has.held != want.held or has.queued != queued.get(name, 0) or not sums_agree:
            yield f"account {name}: {has}, but holds {want.held} and waits for {queued.get(name, 0)}"
        if has.limits.device_s is None and has.window_at is not None:
            yield f"account {name}: a window without a budget ({has})"
        if has.limits.device_s is not None and has.held and has.window_at is None:
            yield f"account {name}: holds devices outside a window ({has})"
        if has.usage_s < 0:
            yield f"account {name}: used {has.usage_s} s"


def wishes(state: State) -> Iterator[str]:
    """Check that a device that drains is at rest as soon as it is idle, and that wishes have their end.

    Whether it is idle is not known before its agent has told a restarted tracker.
    """
    for device_id, device in state.devices.items():
        is_idle = device.use is Use.IDLE and device.observed is not Observed.UNKNOWN
        if device.admin is Admin.DRAINING and is_idle:
            yield f"device {device_id}: DRAINING though it is idle"
        if device.admin is Admin.ENABLED and device.admin_until is not None:
            yield f"device {device_id}: ENABLED until {device.admin_until}"


def clients(state: State) -> Iterator[str]:
    """Check that one client key has one job."""
    keys = [(it.account, it.client_key) for it in state.run_jobs.values() if it.client_key]
    if len(set(keys)) != len(keys) or set(keys) != set(state.client_jobs):
        yield f"client keys: {sorted(keys)}, index has {sorted(state.client_jobs)}"


CHECKS = (
    (run_jobs, ("run_jobs", "run_attempts")),
    (run_leases, ("leases", "run_attempts")),
    (queue, ("leases", "run_jobs")),
    (offers, ("leases", "run_jobs", "devices", "accounts")),
    (accounts, ("leases", "run_jobs", "accounts")),
    (wishes, ("devices",)),
    (clients, ("run_jobs",)),
)
"""Each check with the tables that it reads, indices over them included."""
