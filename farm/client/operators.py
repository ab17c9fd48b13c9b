"""What operators do: take devices out of service, hold them, look at who holds what and at what happened.

Owns: those calls, and going on after a broken connection. Does not own: sessions (`farm.client.session`), jobs
(`farm.client.jobs`).

Invariant: events that are followed across broken connections come once each, in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from farm.api.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    blob_pb2,
    blob_pb2_grpc,
    device_pb2,
    lease_pb2,
    lease_pb2_grpc,
)
from farm.client.calls import Calls
from farm.client.info import DeviceInfo
from farm.client.patience import CALL_S, Stream
from farm.errors import InfrastructureError, InvalidInput, NotFound
from farm.rpc import rpc_errors
from farm.target import Selector


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A live lease.

    Attributes
    ----------
    job_id
        The job that it serves; empty for an interactive lease.
    remaining_s
        When the tracker was asked.
    """

    lease_id: str
    device_id: str
    epoch: int
    holder: str
    account: str
    job_id: str
    remaining_s: float

    @staticmethod
    def from_proto(lease: admin_pb2.HeldLease) -> LeaseInfo:
        """Return what a message says."""
        return LeaseInfo(
            lease_id=lease.lease_id,
            device_id=lease.device_id,
            epoch=lease.epoch,
            holder=lease.holder,
            account=lease.account,
            job_id=lease.job_id,
            remaining_s=lease.remaining_s,
        )


@dataclass(frozen=True, slots=True)
class Hold:
    """A device that was taken without a session; it is free again when the time is over, or by `release`.

    Attributes
    ----------
    lease_token
        Secret of the lease: whoever extends or releases it shows it.
    """

    lease_id: str
    epoch: int
    device: DeviceInfo
    remaining_s: float
    lease_token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class EventInfo:
    """Something that happened on the farm.

    Attributes
    ----------
    number
        Strictly increasing.
    at
        Seconds since the Unix epoch.
    kind
        Such as ``lease.granted`` or ``device.drained``.
    subject
        What it is about, such as the id of a device or job.
    actor
        Who asked for it; empty: the farm itself.
    """

    number: int
    at: float
    kind: str
    subject: str
    text: str
    actor: str

    @staticmethod
    def from_proto(event: admin_pb2.FarmEvent) -> EventInfo:
        """Return what a message says."""
        return EventInfo(event.number, event.at, event.kind, event.subject, event.text, event.actor)


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """How full a store is; `pinned_bytes` is what builds, jobs, kept results and sessions need now."""

    blobs: int
    used_bytes: int
    claimed_bytes: int
    limit_bytes: int
    pinned_bytes: int
    evicted_blobs: int
    evicted_bytes: int

    @staticmethod
    def from_proto(usage: blob_pb2.UsageResponse) -> StoreInfo:
        """Return what a message says."""
        return StoreInfo(
            blobs=usage.blobs,
            used_bytes=usage.used_bytes,
            claimed_bytes=usage.claimed_bytes,
            limit_bytes=usage.limit_bytes,
            pinned_bytes=usage.pinned_bytes,
            evicted_blobs=usage.evicted_blobs,
            evicted_bytes=usage.evicted_bytes,
        )


class OperatorCalls(Calls):
    """The part of a client that operators use."""

    @cached_property
    def _admin_stub(self) -> admin_pb2_grpc.AdminServiceStub:
        return admin_pb2_grpc.AdminServiceStub(self._channel)

    @cached_property
    def _blob_stub(self) -> blob_pb2_grpc.BlobServiceStub:
        return blob_pb2_grpc.BlobServiceStub(self._channel)

    @cached_property
    def _lease_stub(self) -> lease_pb2_grpc.LeaseServiceStub:
        return lease_pb2_grpc.LeaseServiceStub(self._channel)

    def drain(self, selector: str, reason: str, until_s: float = 0.0) -> list[DeviceInfo]:
        """Let devices finish what runs and take nothing new.

        Parameters
        ----------
        selector
            As in `acquire`; not empty.
        reason
            Shown to those who wait.
        until_s
            Enable them again after so many seconds; 0: never by themselves.

        Raises
        ------
        NotFound
            No device matches.
        NotAllowed
            You are no operator.
        """
        return self._set_admin(selector, device_pb2.ADMIN_DRAINING, reason, until_s)

    def maintenance(self, selector: str, reason: str, until_s: float = 0.0) -> list[DeviceInfo]:
        """Take devices out of service for work on them; otherwise as `drain`."""
        return self._set_admin(selector, device_pb2.ADMIN_MAINTENANCE, reason, until_s)

    def retire(self, selector: str, reason: str, until_s: float = 0.0) -> list[DeviceInfo]:
        """Take devices out of service for good; otherwise as `drain`."""
        return self._set_admin(selector, device_pb2.ADMIN_RETIRED, reason, until_s)

    def resume(self, selector: str, reason: str = "", until_s: float = 0.0) -> list[DeviceInfo]:
        """Enable devices again; otherwise as `drain`."""
        return self._set_admin(selector, device_pb2.ADMIN_ENABLED, reason, until_s)

    def _set_admin(
        self, selector: str, admin: device_pb2.Admin.ValueType, reason: str, until_s: float
    ) -> list[DeviceInfo]:
        selector = str(Selector.parse(selector))
        if not selector:
            raise InvalidInput("selector: empty would mean every device; name them")
        request = admin_pb2.SetAdminRequest(
            selector=selector, admin=admin, reason=reason, until_s=until_s
        )
        answer = self._patience().call(
            lambda limit: self._admin_stub.SetAdmin(request, timeout=limit)
        )
        return [DeviceInfo.from_proto(device) for device in answer.devices]

    def leases(self) -> list[LeaseInfo]:
        """Return who holds what."""
        request = admin_pb2.ListLeasesRequest()
        answer = self._patience().call(
            lambda limit: self._admin_stub.ListLeases(request, timeout=limit)
        )
        return [LeaseInfo.from_proto(lease) for lease in answer.leases]

    def store_usage(self) -> StoreInfo:
        """Return how full the tracker's store is."""
        request = blob_pb2.UsageRequest()
        answer = self._patience().call(lambda limit: self._blob_stub.Usage(request, timeout=limit))
        return StoreInfo.from_proto(answer)

    def events(
        self, after: int = 0, follow: bool = False, timeout_s: float | None = None
    ) -> Iterator[EventInfo]:
        """Yield what happened, oldest first.

        Parameters
        ----------
        after
            Only events with a greater number; 0: all that are kept.
        follow
            Go on with what happens, until the iterator is closed; also while the tracker restarts.

        Raises
        ------
        StillRunning
            `timeout_s` is over.
        """
        patience, stub = self._patience(timeout_s, "events"), self._admin_stub

        def opened(limit: float) -> Stream[admin_pb2.FarmEvent]:
            request = admin_pb2.EventsRequest(after=after, follow=follow)
            return stub.Events(request, timeout=limit)

        while True:
            for message in patience.stream(opened):
                if message.number > after:
                    after = message.number
                    yield EventInfo.from_proto(message)
            if not follow:
                return
            patience.bear(InfrastructureError("events: the tracker ended them; ask again"))

    def hold(
        self, selector: str = "", *, wait_s: float = 60.0, ttl_s: float = 60.0, holder: str = ""
    ) -> Hold:
        """Take a device without a session: nobody renews it, and it is free again after `ttl_s`.

        Parameters and errors as for `acquire`.
        """
        request = lease_pb2.AcquireRequest(
            selector=str(Selector.parse(selector)), wait_s=wait_s, ttl_s=ttl_s, holder=holder
        )
        with rpc_errors(self.address):  # never repeated: a second try could take a second device
            lease = self._lease_stub.Acquire(request, timeout=wait_s + CALL_S).lease
        device = DeviceInfo.from_proto(lease.device)
        return Hold(lease.lease_id, lease.epoch, device, lease.remaining_s, lease.lease_token)

    def extend(
        self,
        lease_id: str,
        ttl_s: float = 60.0,
        epoch: int | None = None,
        lease_token: str = "",
    ) -> float:
        """Let a lease last `ttl_s` from now; returns how long it lasts.

        Parameters
        ----------
        epoch
            None: what the tracker says is the lease's.
        lease_token
            As in `Hold`; operators need none.

        Raises
        ------
        Fenced
            The lease has ended.
        NotAllowed
            It is not the lease's token.
        NotFound
            No live lease has this id.
        """
        request = lease_pb2.RenewRequest(
            lease_id=lease_id,
            epoch=self._epoch(lease_id, epoch),
            ttl_s=ttl_s,
            lease_token=lease_token,
        )
        answer = self._patience().call(lambda limit: self._lease_stub.Renew(request, timeout=limit))
        return answer.remaining_s

    def release(self, lease_id: str, epoch: int | None = None, lease_token: str = "") -> None:
        """Give a lease's device back; parameters and errors as for `extend`."""
        request = lease_pb2.ReleaseRequest(
            lease_id=lease_id, epoch=self._epoch(lease_id, epoch), lease_token=lease_token
        )
        self._patience().call(lambda limit: self._lease_stub.Release(request, timeout=limit))

    def _epoch(self, lease_id: str, epoch: int | None) -> int:
        return self._held(lease_id).epoch if epoch is None else epoch

    def _held(self, lease_id: str) -> LeaseInfo:
        found = next((lease for lease in self.leases() if lease.lease_id == lease_id), None)
        if found is None:
            raise NotFound(f"lease {lease_id[:128]}: no live lease has this id; see `farm who`")
        return found
