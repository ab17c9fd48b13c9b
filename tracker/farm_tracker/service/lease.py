"""LeaseService on the wire. Owns: its messages' checks. Invariant: an answer was stored before it was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farm.api.v1 import lease_pb2, lease_pb2_grpc
from farm.core.ids import Epoch, LeaseId
from farm.core.limits import MAX_HOLDER_BYTES, MAX_TTL_S, MAX_WAIT_S, MIN_TTL_S
from farm.target import Selector
from farm_tracker.identity.caller import caller, may
from farm_tracker.identity.model import Verb
from farm_tracker.service.convert import check_range, check_text, lease_to_proto
from farm_tracker.service.streams import errors_to_status
from farm_tracker.state.events import LeaseReleased, LeaseRenewed
from farm_tracker.state.model import DEFAULT_ACCOUNT

if TYPE_CHECKING:
    import grpc

    from farm_tracker.identity.leases import LeaseTokens
    from farm_tracker.tracker import Tracker

DEFAULT_TTL_S = 60.0
MAX_ID_BYTES = 128


class LeaseService(lease_pb2_grpc.LeaseServiceServicer):
    """Leases of one tracker."""

    def __init__(self, tracker: Tracker, tokens: LeaseTokens) -> None:
        self._tracker = tracker
        self._tokens = tokens

    async def Acquire(
        self, request: lease_pb2.AcquireRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> lease_pb2.AcquireResponse:
        """Wait for a device and take it."""
        async with errors_to_status(context):
            granted = await self._tracker.acquire(
                Selector.parse(request.selector),
                ttl_s=ttl_of(request.ttl_s),
                wait_s=check_range(request.wait_s, 0.0, MAX_WAIT_S, "wait_s"),
                holder=check_text(request.holder, "holder", MAX_HOLDER_BYTES),
                account=caller().account or DEFAULT_ACCOUNT,
            )
            now = self._tracker.clock.now()
            lease = lease_to_proto(granted.lease, granted.device, now)
            lease.lease_token = self._tokens.token(lease.lease_id, lease.epoch)
            return lease_pb2.AcquireResponse(lease=lease)
        raise AssertionError("unreachable")

    async def Renew(
        self, request: lease_pb2.RenewRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> lease_pb2.RenewResponse:
        """Extend a lease."""
        async with errors_to_status(context):
            ttl_s = ttl_of(request.ttl_s)
            lease_id = LeaseId(check_text(request.lease_id, "lease_id", MAX_ID_BYTES))
            self._check(request)
            await self._tracker.post(LeaseRenewed(lease_id, Epoch(request.epoch), ttl_s))
            return lease_pb2.RenewResponse(remaining_s=ttl_s)
        raise AssertionError("unreachable")

    async def Release(
        self, request: lease_pb2.ReleaseRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> lease_pb2.ReleaseResponse:
        """Give a lease back."""
        async with errors_to_status(context):
            lease_id = LeaseId(check_text(request.lease_id, "lease_id", MAX_ID_BYTES))
            self._check(request)
            await self._tracker.post(LeaseReleased(lease_id, Epoch(request.epoch)))
            return lease_pb2.ReleaseResponse()
        raise AssertionError("unreachable")

    def _check(self, request: lease_pb2.RenewRequest | lease_pb2.ReleaseRequest) -> None:
        """Check that the caller holds the lease, or may end other people's."""
        if not may(Verb.OPERATE):
            self._tokens.check(request.lease_id, request.epoch, request.lease_token)


def ttl_of(ttl_s: float) -> float:
    """Return how long a lease lasts; 0 stands for the default."""
    return check_range(ttl_s or DEFAULT_TTL_S, MIN_TTL_S, MAX_TTL_S, "ttl_s")
