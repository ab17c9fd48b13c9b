"""Operators' wishes: devices out of service and back.

Owns: what people want of a device, until when, and when a drained one is at rest.
Does not own: who may ask (`service`).

Invariant: no wish ends what runs; a device that is not ENABLED is given to nobody; one that drains is DRAINED as soon
as it is idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm.core.values import replace
from farm.errors import InvalidInput, NotFound
from farm_tracker.state.demand import demand_of
from farm_tracker.state.model import Admin, Device, Use
from farm_tracker.state.table import ADMIN, WISHES, Trigger, follow, told

if TYPE_CHECKING:
    from farm_tracker.state.events import AdminSet
    from farm_tracker.state.state import Draft

KINDS = {
    Admin.ENABLED: "device.enabled",
    Admin.DRAINING: "device.draining",
    Admin.DRAINED: "device.drained",
    Admin.MAINTENANCE: "device.maintenance",
    Admin.RETIRED: "device.retired",
}


def wish(draft: Draft, event: AdminSet) -> None:
    """Change what people want of every device that matches."""
    if event.admin not in WISHES:
        raise InvalidInput(f"admin: {event.admin} cannot be asked for; ask for DRAINING")
    demand = demand_of(event.selector)
    found = [it for it in draft.devices.values() if draft.fits(demand, it)]
    if not found:
        raise NotFound(f"selector {str(event.selector)!r}: no device matches; see `farm devices`")
    for device in found:
        _set(draft, device, event)


def rest(draft: Draft) -> None:
    """Let devices that drain and have nothing left to do be DRAINED."""
    for device in [it for it in draft.changes.devices.values() if it is not None]:
        if device.admin is Admin.DRAINING and device.use is Use.IDLE:
            drained = _moved(draft, device, Trigger.REST)
            draft.devices[device.device_id] = drained
            draft.note(KINDS[drained.admin], device.device_id, device.admin_reason or "idle")


def expire(draft: Draft, device: Device) -> None:
    """Enable a device whose time out of service is over."""
    _enable(draft, device, "its time out of service is over", "")


def _set(draft: Draft, device: Device, event: AdminSet) -> None:
    if event.admin is Admin.ENABLED:
        _enable(draft, device, event.reason or "enabled", event.actor)
        return
    already = event.admin is Admin.DRAINING and device.admin is Admin.DRAINED
    moved = device if already else _moved(draft, device, WISHES[event.admin])
    draft.devices[device.device_id] = replace(
        moved,
        admin_reason=event.reason,
        admin_actor=event.actor,
        admin_until=draft.now + event.until_s if event.until_s > 0 else None,
    )
    until = f", for {event.until_s:g} s" if event.until_s > 0 else ""
    text = f"{event.reason or 'no reason given'}{until}"
    draft.note(KINDS[event.admin], device.device_id, text, event.actor)


def _enable(draft: Draft, device: Device, reason: str, actor: str) -> None:
    moved = _moved(draft, device, Trigger.ENABLE)
    enabled = replace(moved, admin_reason="", admin_actor="", admin_until=None)
    draft.devices[device.device_id] = enabled
    if enabled.is_free:
        draft.freed[device.device_id] = None
    draft.note(KINDS[Admin.ENABLED], device.device_id, reason, actor)


def _moved(draft: Draft, device: Device, trigger: Trigger) -> Device:
    admin = follow(ADMIN, device.admin, trigger, f"device {device.device_id}", device.story)
    return replace(device, admin=admin, story=told(device.story, f"{draft.now:.3f} {admin}"))
