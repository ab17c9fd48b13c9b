"""Leases: who gets which device, and how that right ends.

Owns: queueing, granting, ending. Does not own: what agents report (`agents`), who is next (`scheduling`), the jobs
that some leases serve (`jobs`).

Invariant: at most one live lease a device; an epoch is used once; nothing that waits may have a device that is free
(so a new request needs to be compared with free devices only, and a freed device with the queue only).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from farm.core.ids import Epoch
from farm.core.values import replace
from farm.errors import (
    Cancelled,
    DeviceBusy,
    DeviceLost,
    Fenced,
    InvalidInput,
    NobodyCanServe,
    NoVariant,
)
from farm_tracker.state import scheduling
from farm_tracker.state.commands import EndSession, GrantLease, RefuseLease
from farm_tracker.state.demand import demand_of, families_of
from farm_tracker.state.model import Admin, Device, Lease, LeaseState, Use
from farm_tracker.state.table import LEASE, USE, Trigger, follow, told

if TYPE_CHECKING:
    from farm.core.ids import LeaseId
    from farm.errors import FarmError
    from farm.target import Selector
    from farm_tracker.state.demand import Demand
    from farm_tracker.state.events import (
        LeaseReleased,
        LeaseRenewed,
        LeaseRequested,
        LeaseRevoked,
    )
    from farm_tracker.state.state import Draft

NEAREST = 3


def request(draft: Draft, event: LeaseRequested) -> None:
    """Queue a request, to be granted at the end of the step if a device is free, or refuse it at once."""
    if draft.leases.get(event.lease_id) is not None:
        raise InvalidInput(f"lease {event.lease_id}: exists already; use a fresh id")
    check_can_serve(draft, demand_of(event.selector, event.variants))
    lease = Lease(
        lease_id=event.lease_id,
        selector=event.selector,
        holder=event.holder,
        ttl_s=event.ttl_s,
        wait_until=draft.now + event.wait_s,
        story=(f"{draft.now:.3f} QUEUED",),
        account=event.account,
        priority=event.priority,
        queued_at=draft.now,
        variants=event.variants,
    )
    if scheduling.free_device(draft, lease) is None:
        if event.wait_s <= 0:
            raise _busy(draft, lease)
        scheduling.check_may_wait(draft, event.account)
    draft.leases[lease.lease_id] = lease
    scheduling.join(draft, lease)


def check_can_serve(draft: Draft, demand: Demand) -> None:
    """Raise NobodyCanServe if no device that people have not retired matches, NoVariant if none of these runs it."""
    for device_id in draft.base.matching.of(demand):
        device = draft.devices.get(device_id)  # it may be forgotten in this step
        if device is not None and device.admin is not Admin.RETIRED and draft.fits(demand, device):
            return
    known = [it for it in draft.devices.values() if it.admin is not Admin.RETIRED]
    if not any(draft.fits(demand, it) for it in known):
        raise nobody(demand, known)


def renew(draft: Draft, event: LeaseRenewed) -> None:
    """Move the end of a live lease."""
    lease = live_lease(draft, event.lease_id, event.epoch)
    _check_interactive(lease)
    until = draft.now + event.ttl_s
    draft.leases[lease.lease_id] = replace(lease, ttl_s=event.ttl_s, expires_at=until)
    if lease.agent_id is not None:
        draft.push[lease.agent_id] = None


def release(draft: Draft, event: LeaseReleased) -> None:
    """End a lease for its holder; one that ended already, or is forgotten, is fine."""
    lease = draft.leases.get(event.lease_id)
    if lease is None:
        return
    if event.epoch is not None and event.epoch != lease.epoch:
        raise _fenced(str(event.lease_id), event.epoch, f"its epoch is {lease.epoch}")
    _check_interactive(lease)
    if lease.state is LeaseState.QUEUED or lease.is_live:
        end(draft, lease, Trigger.RELEASE, "released by its holder")


def revoke(draft: Draft, event: LeaseRevoked) -> None:
    """Take a lease away; one that ended already is fine."""
    lease = draft.leases.get(event.lease_id)
    if lease is not None and (lease.state is LeaseState.QUEUED or lease.is_live):
        end(draft, lease, Trigger.REVOKE, event.cause)


def live_lease(draft: Draft, lease_id: LeaseId, epoch: int) -> Lease:
    """Return the live lease of this id and epoch.

    Raises
    ------
    Fenced
        It ended, never was, or has another epoch.
    """
    lease = draft.leases.get(lease_id)
    if lease is None:
        raise _fenced(lease_id, epoch, "it ended or never was")
    if lease.epoch != epoch:
        raise _fenced(lease_id, epoch, f"its epoch is {lease.epoch}")
    if not lease.is_live:
        raise _fenced(lease_id, epoch, f"it is {lease.state}, {lease.cause or 'not yet granted'}")
    return lease


def grant(draft: Draft, lease: Lease, device: Device) -> Lease:
    """Give a free device to a queued lease, under a new epoch; return the lease as it is then."""
    epoch = Epoch(device.epoch + 1)
    until = draft.now + lease.ttl_s
    line = f"{draft.now:.3f} GRANTED({epoch}) {device.device_id}"
    granted = replace(
        lease,
        state=follow(LEASE, lease.state, Trigger.GRANT, f"lease {lease.lease_id}", lease.story),
        device_id=device.device_id,
        agent_id=device.agent_id,
        epoch=epoch,
        expires_at=until,
        active_by=draft.now + draft.limits.prepare_s,
        granted_at=draft.now,
        story=told(lease.story, line),
    )
    held = move(draft, device, Trigger.GRANT, epoch=epoch)
    held = replace(held, epoch=epoch, lease_id=lease.lease_id)
    draft.leases[lease.lease_id] = granted
    draft.devices[device.device_id] = held
    scheduling.leave(draft, lease)
    scheduling.take(draft, lease.account)
    draft.commands.append(GrantLease(granted, held))
    draft.push[device.agent_id] = None
    text = f"{lease.lease_id}, epoch {epoch}, to {lease.holder}"
    draft.note("lease.granted", device.device_id, text, account=lease.account)
    return granted


def end(draft: Draft, lease: Lease, trigger: Trigger, cause: str) -> None:
    """End a lease, take its device back (it has to be cleaned first), tell its holder."""
    state = follow(LEASE, lease.state, trigger, f"lease {lease.lease_id}", lease.story)
    draft.leases[lease.lease_id] = replace(
        lease,
        state=state,
        cause=cause,
        forget_at=draft.now + draft.limits.retain_s,
        story=told(lease.story, f"{draft.now:.3f} {state}: {cause}"),
    )
    if lease.state is LeaseState.QUEUED:
        scheduling.leave(draft, lease)
        draft.commands.append(RefuseLease(lease.lease_id, _refusal(draft, lease, state, cause)))
        return
    scheduling.give_back(draft, lease)
    draft.ended_leases.append((lease, trigger, cause))
    text = f"{lease.lease_id}: {state}, {cause}"
    draft.note("lease.ended", lease.device_id or "", text, account=lease.account)
    draft.commands.append(EndSession(lease.lease_id, _ended(lease, state, cause)))
    device = draft.devices.get(lease.device_id) if lease.device_id is not None else None
    if device is None or device.lease_id != lease.lease_id:
        return
    draft.devices[device.device_id] = replace(
        move(draft, device, Trigger.END, epoch=lease.epoch),
        lease_id=None,
        use_until=draft.now + draft.limits.clean_s,
    )
    draft.push[device.agent_id] = None


def activate(draft: Draft, lease: Lease) -> None:
    """Note that the agent has prepared the device."""
    state = follow(LEASE, lease.state, Trigger.ACTIVATE, f"lease {lease.lease_id}", lease.story)
    line = f"{draft.now:.3f} {state}({lease.epoch})"
    draft.leases[lease.lease_id] = replace(lease, state=state, story=told(lease.story, line))


def move(draft: Draft, device: Device, trigger: Trigger, *, epoch: int) -> Device:
    """Return the device with the use that follows, and one more line in its story."""
    use = follow(USE, device.use, trigger, f"device {device.device_id}", device.story)
    story = told(device.story, f"{draft.now:.3f} {use}({epoch})")
    return replace(device, use=use, use_until=None, story=story)


def _refusal(draft: Draft, lease: Lease, state: LeaseState, cause: str) -> FarmError:
    if state is LeaseState.EXPIRED:
        return _busy(draft, lease)
    return Cancelled(f"lease {lease.lease_id}: {state} while it waited, {cause}; ask again")


def _ended(lease: Lease, state: LeaseState, cause: str) -> FarmError:
    message = f"lease {lease.lease_id} (epoch {lease.epoch}): {state}, {cause}; acquire again"
    if state is LeaseState.LOST:
        return DeviceLost(message, device_id=str(lease.device_id))
    return Fenced(message, device_id=str(lease.device_id))


def _fenced(lease_id: str, epoch: int, reason: str) -> Fenced:
    return Fenced(f"lease {lease_id[:80]} (epoch {epoch}): {reason}; acquire again")


def _check_interactive(lease: Lease) -> None:
    if lease.job_id is not None:
        raise InvalidInput(
            f"lease {lease.lease_id}: it serves job {lease.job_id} for a fixed term; cancel the job"
        )


def _busy(draft: Draft, lease: Lease) -> DeviceBusy:
    selector = lease.selector
    limit = scheduling.limit_reached(draft, lease.account)
    if limit:
        return DeviceBusy(f"{limit}; wait, release one or ask for more (`farm account`)")
    fitting = [it for it in draft.devices.values() if draft.fits(lease.demand, it)]
    shown = ", ".join(f"{d.device_id} ({d.situation})" for d in fitting[:NEAREST])
    more = f" and {len(fitting) - NEAREST} more" if len(fitting) > NEAREST else ""
    return DeviceBusy(
        f"selector {str(selector) or '(any device)'!r}: no device became free in time "
        f"({shown or 'those that fit are gone'}{more}); wait longer or release one"
    )


def nobody(demand: Demand, known: list[Device]) -> NobodyCanServe | NoVariant:
    """Return the error that names the devices nearest to a demand that none meets."""
    selector = demand.selector
    fitting = [it for it in known if selector.matches(it.labels)]
    if fitting:
        return _no_variant(demand, sorted(fitting, key=lambda it: it.device_id))
    if not known:
        return NobodyCanServe(
            f"selector {str(selector) or '(any device)'!r}: this farm has no device; start an agent"
        )
    nearest = sorted(known, key=lambda d: (len(selector.unmatched(d.labels)), d.device_id))
    shown = "; ".join(_misses(selector, device) for device in nearest[:NEAREST])
    return NobodyCanServe(
        f"selector {str(selector)!r}: no device of this farm fits; nearest: {shown}; "
        "change the selector or add a device",
        selector=str(selector),
    )


def _no_variant(demand: Demand, fitting: list[Device]) -> NoVariant:
    has = ", ".join(dict.fromkeys(it.target for it in demand.variants))
    needs = sorted(set().union(*(families_of(it.description.targets) for it in fitting)))
    shown = "; ".join(_lacks(demand, it) for it in fitting[:NEAREST])
    more = f"; and {len(fitting) - NEAREST} more" if len(fitting) > NEAREST else ""
    where = f"selector {str(demand.selector)!r}: none" if demand.selector.terms else "none"
    return NoVariant(
        f"{where} of the {len(fitting)} devices that match runs what was built ({has}): {shown}{more}; build "
        f"for a target of {', '.join(needs) or 'these devices'}, or choose other devices",
        has=has,
        needs=", ".join(needs),
    )


def _lacks(demand: Demand, device: Device) -> str:
    """Return why a device runs none of the variants: what the nearest of its own family lacks, else what it runs."""
    families = families_of(device.description.targets)
    own = [it for it in demand.variants if it.family in families]
    if not own:
        return f"{device.device_id} runs {', '.join(sorted(families)) or 'nothing known here'}"
    fewest = min((it.lacks(device.description) for it in own), key=len)
    return f"{device.device_id} lacks {', '.join(fewest)}"


def _misses(selector: Selector, device: Device) -> str:
    labels = device.labels
    failed = ", ".join(
        f"{term} (it has {term.key}={labels[term.key]})"
        if term.key in labels
        else f"{term} (unset)"
        for term in selector.unmatched(labels)
    )
    return f"{device.device_id} fails {failed}"


def proceed(draft: Draft, device: Device, use: Use, epoch: int) -> None:
    """Bring a held device and its lease in line with what the agent reports of it."""
    lease = draft.leases[device.lease_id] if device.lease_id is not None else None
    if lease is None:
        return
    if epoch != device.epoch:
        # An idle agent has not seen the grant yet; one that had begun has dropped it.
        if device.use is not Use.RESERVED:
            _drop(draft, lease, use, epoch)
        return
    match use:
        case Use.PREPARING:
            if device.use is Use.RESERVED:
                draft.devices[device.device_id] = move(draft, device, Trigger.PREPARE, epoch=epoch)
        case Use.LEASED:
            if device.use is not Use.LEASED:
                draft.devices[device.device_id] = move(draft, device, Trigger.ACTIVATE, epoch=epoch)
                activate(draft, lease)
        case Use.CLEANING | Use.IDLE:
            _drop(draft, lease, use, epoch)
        case Use.RESERVED:
            pass
        case _:
            assert_never(use)


def _drop(draft: Draft, lease: Lease, use: Use, epoch: int) -> None:
    end(draft, lease, Trigger.LOSE, f"its agent reports the device {use} ({epoch})")
