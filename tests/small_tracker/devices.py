"""Its one device: who sees it, takes it, and takes it out of service."""

from __future__ import annotations

import threading

import grpc

from farm.api.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    device_pb2,
    device_pb2_grpc,
    lease_pb2,
    lease_pb2_grpc,
)
from farm.errors import Fenced, NotAllowed, NotFound
from small_tracker.blobs import fail


class Admin(admin_pb2_grpc.AdminServiceServicer):
    """One operator's view."""

    def __init__(self, devices):
        self.devices = devices
        self.requests = []
        self.leases = {}
        self.events = []
        self.changed = threading.Condition()
        self.break_after = None
        self.streams = 0

    def happen(self, kind, subject, text, actor=""):
        with self.changed:
            number = len(self.events) + 1
            self.events.append(
                admin_pb2.FarmEvent(
                    number=number, at=1e9, kind=kind, subject=subject, text=text, actor=actor
                )
            )
            self.changed.notify_all()

    def SetAdmin(self, request, context):
        self.requests.append(request)
        wanted = request.selector.removeprefix("device_id=")
        found = [d for d in self.devices if d.description.device_id == wanted]
        if not found:
            fail(context, NotFound(f"selector {request.selector}: no device matches; see devices"))
        for device in found:
            device.admin = request.admin
        return admin_pb2.SetAdminResponse(devices=found)

    def ListLeases(self, request, context):
        return admin_pb2.ListLeasesResponse(leases=self.leases.values())

    def Events(self, request, context):
        self.streams += 1
        at, sent = request.after, 0
        while context.is_active():
            with self.changed:
                if at >= len(self.events):
                    if not request.follow:
                        return
                    self.changed.wait(0.05)
                    continue
                event = self.events[at]
            at += 1
            yield event
            sent += 1
            if sent == self.break_after:
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")


class Leases(lease_pb2_grpc.LeaseServiceServicer):
    """One device to take."""

    def __init__(self, admin):
        self.admin = admin
        self.released = []
        self.strict = False

    def Acquire(self, request, context):
        device = self.admin.devices[0]
        device.epoch += 1
        lease = admin_pb2.HeldLease(
            lease_id=f"lease-{device.epoch}",
            device_id=device.description.device_id,
            epoch=device.epoch,
            holder=request.holder,
            account="own",
            remaining_s=request.ttl_s,
        )
        self.admin.leases[lease.lease_id] = lease
        return lease_pb2.AcquireResponse(
            lease=lease_pb2.Lease(
                lease_id=lease.lease_id,
                epoch=lease.epoch,
                device=device,
                remaining_s=request.ttl_s,
                lease_token=f"secret-{lease.epoch}",
            )
        )

    def Renew(self, request, context):
        lease = self.admin.leases.get(request.lease_id)
        if lease is None or lease.epoch != request.epoch:
            fail(context, Fenced(f"lease {request.lease_id}: it ended; acquire again"))
        self._check(request, context)
        lease.remaining_s = request.ttl_s
        return lease_pb2.RenewResponse(remaining_s=request.ttl_s)

    def _check(self, request, context):
        if self.strict and request.lease_token != f"secret-{request.epoch}":
            fail(context, NotAllowed(f"lease {request.lease_id}: its token is wrong; show it"))

    def Release(self, request, context):
        self._check(request, context)
        self.admin.leases.pop(request.lease_id, None)
        self.released.append((request.lease_id, request.epoch))
        return lease_pb2.ReleaseResponse()


class Devices(device_pb2_grpc.DeviceServiceServicer):
    def __init__(self, devices):
        self.devices = devices

    def ListDevices(self, request, context):
        return device_pb2.ListDevicesResponse(devices=self.devices)

    def ListAgents(self, request, context):
        return device_pb2.ListAgentsResponse()
