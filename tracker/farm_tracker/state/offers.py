"""Offers: bringing what is free and who waits together.

Owns: when to look. Does not own: who is next (`scheduling`) or what granting means (`leases`, `jobs`).

Invariant: after it, no device is free that somebody who waits may have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm_tracker.state import jobs, leases, scheduling
from farm_tracker.state.run import RunJob

if TYPE_CHECKING:
    from farm_tracker.state.model import Device, Lease
    from farm_tracker.state.state import Draft


def offer(draft: Draft) -> None:
    """Give out each device that became free, then look for one for each who came."""
    for key in list(draft.joined):
        _give_elsewhere(draft, draft.waiting(key))
    freed = list(draft.freed)
    if draft.unblocked:
        freed += [it.device_id for it in draft.free_devices()]
    draft.freed.clear()
    draft.unblocked.clear()
    for device_id in freed:
        device = draft.devices.get(device_id)
        if device is not None and device.is_free:
            entity = scheduling.choose(draft, device)
            if entity is not None:
                _give(draft, entity, device)
    for key in list(draft.joined):
        waiting = draft.waiting(key)
        device = scheduling.free_device(draft, waiting) if waiting is not None else None
        if waiting is not None and device is not None:
            _give(draft, waiting, device)


def _give_elsewhere(draft: Draft, entity: Lease | RunJob | None) -> None:
    """Give a job that a device failed another one that nobody else waits for, before that one is offered again."""
    if isinstance(entity, RunJob) and entity.shunned:
        device = scheduling.free_device(draft, entity)
        if device is not None and device.device_id not in (*entity.shunned, *draft.freed):
            _give(draft, entity, device)


def _give(draft: Draft, entity: Lease | RunJob, device: Device) -> None:
    if isinstance(entity, RunJob):
        jobs.start(draft, entity, device)
    else:
        leases.grant(draft, entity, device)
