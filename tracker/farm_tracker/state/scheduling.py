"""Who is next: priority, then fair share, then age.

Owns: joining and leaving the queue, accounts' bookkeeping, the choice for a free device, account limits.
Does not own: granting (`leases`, `jobs`).

Invariant: among what may be served by a device the highest priority goes first; within it the account that has had
the least device-seconds (faded by half every half-life, what it holds now included); within it who waited longest.
A job goes last for a device that failed it before, and for a while is given none such if another one may come free.
An account that holds as many devices as it may, or has used its
budget of device-seconds, is passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm.core.values import replace
from farm.errors import QuotaExceeded
from farm_tracker.state.account import Account
from farm_tracker.state.model import Admin, Health, Observed
from farm_tracker.state.queue import same_to_demands
from farm_tracker.state.run import RunJob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farm_tracker.state.events import AccountLimited
    from farm_tracker.state.model import Device, Lease
    from farm_tracker.state.queue import Entry
    from farm_tracker.state.state import Draft

    Rank = tuple[int, bool, float, int, float, str]


def account(draft: Draft, name: str) -> Account:
    """Return an account; one that is unknown has used nothing."""
    return draft.accounts.get(name) or Account(name, usage_at=draft.now)


def check_may_wait(draft: Draft, name: str) -> None:
    """Raise QuotaExceeded if an account has as much waiting as it may."""
    known = account(draft, name)
    if known.queued >= known.max_queued(draft.limits):
        raise QuotaExceeded(
            f"account {name}: {known.queued} requests wait already, its limit; wait until some end"
        )


def join(draft: Draft, entity: Lease | RunJob) -> None:
    """Note that something began to wait; the end of the step looks for a device."""
    known = account(draft, entity.account)
    draft.accounts[entity.account] = replace(known, queued=known.queued + 1)
    draft.joined[entity.key] = None


def leave(draft: Draft, entity: Lease | RunJob) -> None:
    """Note that something waits no more."""
    known = account(draft, entity.account)
    draft.accounts[entity.account] = replace(known, queued=known.queued - 1)


def take(draft: Draft, name: str) -> None:
    """Note that an account got a device."""
    draft.accounts[name] = account(draft, name).granted(draft.now)


def give_back(draft: Draft, lease: Lease) -> None:
    """Charge an account for a lease that ended; what it waits for may come into question again."""
    known = account(draft, lease.account)
    if known.held >= known.max_held(draft.limits):
        draft.unblocked[lease.account] = None
    draft.accounts[lease.account] = known.gave_back(
        lease.granted_at, draft.now, draft.limits.half_life_s
    )


def limit_reached(draft: Draft, name: str) -> str:
    """Return which limit keeps an account from getting one more device now; empty: none."""
    return account(draft, name).limit_reached(draft.now, draft.limits)


def limit(draft: Draft, event: AccountLimited) -> None:
    """Change what people let an account have; what it holds stays."""
    limits = event.limits
    known = account(draft, event.account)
    if limits != known.limits:
        draft.accounts[event.account] = known.limited(limits, draft.now)
        draft.unblocked[event.account] = None
        draft.note("account.limited", event.account, str(limits), event.actor, event.account)


def reopen(draft: Draft, known: Account) -> None:
    """End an account's window; what it waits for may come into question again."""
    draft.accounts[known.name] = known.without_window(draft.now)
    draft.unblocked[known.name] = None


def rank(draft: Draft, entity: Lease | RunJob, device: Device | None = None) -> Rank:
    """Return what the queue is sorted by: lower goes first."""
    known = account(draft, entity.account)
    shunned = isinstance(entity, RunJob) and device is not None
    return (
        -entity.priority,
        shunned and device.device_id in entity.shunned,  # type: ignore[union-attr]
        known.share_s(draft.now, draft.limits.half_life_s),
        known.held,
        entity.queued_at,
        entity.key,
    )


def choose(draft: Draft, device: Device) -> Lease | RunJob | None:
    """Return who is to get a free device; None if nobody who waits may."""
    best: Lease | RunJob | None = None
    best_rank: Rank | None = None
    for entity in _heads(draft, device):
        if limit_reached(draft, entity.account):
            continue
        its_rank = rank(draft, entity, device)
        if best_rank is None or its_rank < best_rank:
            best, best_rank = entity, its_rank
    return best


def has_another(draft: Draft, job: RunJob) -> bool:
    """Tell whether a device that did not fail a job may come free for it, as far as is known."""
    if not job.shunned:
        return False
    found = (draft.devices.get(it) for it in draft.base.matching.of(job.demand))
    return any(
        it is not None
        and it.device_id not in job.shunned
        and it.admin is Admin.ENABLED
        and it.observed is not Observed.OFFLINE
        and it.health is not Health.BAD
        for it in found
    )


def free_device(draft: Draft, entity: Lease | RunJob) -> Device | None:
    """Return a free device that something may have at once, rather one that did not fail it."""
    if limit_reached(draft, entity.account):
        return None
    shunned = entity.shunned if isinstance(entity, RunJob) else ()
    second: Device | None = None
    for device in _free(draft, entity):
        if draft.fits(entity.demand, device):
            if device.device_id not in shunned:
                return device
            if not _avoids(entity, device):
                second = second or device
    return second


def _avoids(entity: Lease | RunJob, device: Device) -> bool:
    return isinstance(entity, RunJob) and entity.avoids(device.device_id)


def _free(draft: Draft, entity: Lease | RunJob) -> Iterator[Device]:
    """Yield free devices that may fit, from the shorter list of the two."""
    matching = draft.base.matching.of(entity.demand)
    if len(draft.base.free_devices) <= len(matching):
        yield from draft.free_devices()
        return
    for device_id in [*matching, *(it for it in draft.changes.devices if it not in matching)]:
        device = draft.devices.get(device_id)
        if device is not None and device.is_free:
            yield device


def _heads(draft: Draft, device: Device) -> Iterator[Lease | RunJob]:
    """Yield the first of each group that the device fits, then everything that joined in this step."""
    queue, matching = draft.base.queue, draft.base.matching
    known = draft.base.devices.get(device.device_id)
    is_known = known is device or (known is not None and same_to_demands(known, device))
    for text, groups in queue.lines.items():
        demand = queue.demands[text]
        if is_known and device.device_id not in matching.of(demand):
            continue
        if not is_known and not demand.matches(device):
            continue
        for line in groups.values():
            yield from _first(draft, line, device)
    for key in draft.joined:
        joined = draft.waiting(key)
        if joined is None or _avoids(joined, device):
            continue
        if draft.fits(joined.demand, device, known):
            yield joined


def _first(draft: Draft, line: list[Entry], device: Device) -> Iterator[Lease | RunJob]:
    """Yield the first of a group that still waits, and, if the device failed it before, the first that it did not.

    Those that left in this step are few, and so are those that the device failed.
    """
    found = False
    for _, key in line:
        entity = draft.waiting(key)
        if entity is None or _avoids(entity, device):
            continue
        is_shunned = isinstance(entity, RunJob) and device.device_id in entity.shunned
        if not (found and is_shunned):
            yield entity
        if not is_shunned:
            return
        found = True
