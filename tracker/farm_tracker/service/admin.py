"""AdminService on the wire.

Owns: its messages' checks. Does not own: what a wish means. Invariant: nothing is shown before it is stored.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from farm.api.v1 import admin_pb2, admin_pb2_grpc, device_pb2
from farm.core.limits import MAX_REASON_BYTES
from farm.errors import InvalidInput
from farm.target import Selector
from farm_tracker.service.convert import check_range, check_text, device_to_proto
from farm_tracker.service.job import MAX_ACCOUNT_BYTES, actor
from farm_tracker.service.sight import Sight
from farm_tracker.service.streams import errors_to_status
from farm_tracker.state.events import AdminSet
from farm_tracker.state.model import Admin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc

    from farm_tracker.state.model import Lease
    from farm_tracker.state.notes import Note
    from farm_tracker.tracker import Tracker

    Context = grpc.aio.ServicerContext[Any, Any]

MAX_UNTIL_S = 366 * 86_400.0

_WISHES = {
    device_pb2.ADMIN_ENABLED: Admin.ENABLED,
    device_pb2.ADMIN_DRAINING: Admin.DRAINING,
    device_pb2.ADMIN_MAINTENANCE: Admin.MAINTENANCE,
    device_pb2.ADMIN_RETIRED: Admin.RETIRED,
}


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Serves the operators of one tracker."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    async def SetAdmin(
        self, request: admin_pb2.SetAdminRequest, context: Context
    ) -> admin_pb2.SetAdminResponse:
        """Change what people want of devices."""
        async with errors_to_status(context):
            wish = _wish(request)
            await self._tracker.post(wish)
            devices = sorted(self._tracker.state.devices.items())
            return admin_pb2.SetAdminResponse(
                devices=[
                    device_to_proto(it) for _, it in devices if wish.selector.matches(it.labels)
                ]
            )
        raise AssertionError("unreachable")

    async def ListLeases(
        self, request: admin_pb2.ListLeasesRequest, context: Context
    ) -> admin_pb2.ListLeasesResponse:
        """Return who holds what."""
        async with errors_to_status(context):
            now = self._tracker.clock.now()
            sight = _sight(self._tracker, request.selector, request.account)
            leases = self._tracker.state.leases.values()
            live = [it for it in leases if it.is_live and sight.shows_lease(it)]
            await self._tracker.settled()
            live.sort(key=lambda it: str(it.device_id))
            return admin_pb2.ListLeasesResponse(leases=[_held(it, now) for it in live])
        raise AssertionError("unreachable")

    async def Events(
        self, request: admin_pb2.EventsRequest, context: Context
    ) -> AsyncIterator[admin_pb2.FarmEvent]:
        """Give what happened, and what happens."""
        async with errors_to_status(context):
            sight = _sight(self._tracker, request.selector, request.account)
            changed = self._tracker.follow_notes()
            after = request.after
            try:
                while True:
                    changed.clear()
                    found = [it for it in self._tracker.state.notes if it.number > after]
                    await self._tracker.settled()
                    for note in found:
                        if sight.shows_note(note):
                            yield self._event(note)
                        after = note.number
                    if not request.follow:
                        return
                    await self._next(changed)
            finally:
                self._tracker.unfollow_notes(changed)

    def _event(self, note: Note) -> admin_pb2.FarmEvent:
        return admin_pb2.FarmEvent(
            number=note.number,
            at=self._tracker.epoch_s + note.at,
            kind=note.kind,
            subject=note.subject,
            text=note.text,
            actor=note.actor,
        )

    async def _next(self, changed: asyncio.Event) -> None:
        """Wait for a note, or for the tracker's own end."""
        waiting = asyncio.ensure_future(changed.wait())
        try:
            ends: set[asyncio.Future[Any]] = {waiting, self._tracker.ending}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise self._tracker.ending.result()
        finally:
            waiting.cancel()


def _sight(tracker: Tracker, selector: str, account: str) -> Sight:
    return Sight(
        tracker.state, Selector.parse(selector), check_text(account, "account", MAX_ACCOUNT_BYTES)
    )


def _wish(request: admin_pb2.SetAdminRequest) -> AdminSet:
    selector = Selector.parse(request.selector)
    if not selector.terms:
        raise InvalidInput("admin: an empty selector would be every device; name which")
    admin = _WISHES.get(request.admin)
    if admin is None:
        raise InvalidInput(
            f"admin: unknown wish ({request.admin}); send ENABLED, DRAINING, MAINTENANCE or RETIRED"
        )
    reason = check_text(request.reason, "reason", MAX_REASON_BYTES)
    if not reason and admin is not Admin.ENABLED:
        raise InvalidInput("admin: no reason; say why, for those who find the device missing")
    until_s = check_range(request.until_s, 0.0, MAX_UNTIL_S, "until_s")
    return AdminSet(selector, admin, reason, until_s, actor())


def _held(lease: Lease, now: float) -> admin_pb2.HeldLease:
    return admin_pb2.HeldLease(
        lease_id=lease.lease_id,
        device_id=lease.device_id or "",
        epoch=lease.epoch,
        holder=lease.holder,
        account=lease.account,
        job_id=lease.job_id or "",
        remaining_s=max(0.0, lease.expires_at - now),
    )
