"""The server itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc

from farm.api.v1 import (
    admin_pb2_grpc,
    blob_pb2_grpc,
    device_pb2,
    device_pb2_grpc,
    job_pb2_grpc,
    lease_pb2_grpc,
    session_pb2_grpc,
)
from farm.rpc import server_options
from small_tracker.blobs import Blobs
from small_tracker.devices import Admin, Devices, Leases
from small_tracker.jobs import TARGET, Jobs
from small_tracker.sessions import Sessions


@dataclass
class SmallTracker:
    """The services, and whether they can be reached."""

    blobs: Blobs = field(default_factory=Blobs)
    port: int = 0

    def __post_init__(self):
        device = device_pb2.Device(
            description=device_pb2.DeviceDescription(
                device_id="cpu-1",
                targets=[TARGET],
                labels={"kind": "cpu"},
                timing_class=device_pb2.TIMING_CLASS_NATIVE,
            ),
            agent_id="agent-1",
            admin=device_pb2.ADMIN_ENABLED,
            observed=device_pb2.OBSERVED_ONLINE,
            health=device_pb2.HEALTH_GOOD,
            use=device_pb2.USE_IDLE,
        )
        self.jobs = Jobs(self.blobs)
        self.admin = Admin([device])
        self.leases = Leases(self.admin)
        self.sessions = Sessions(self.blobs)
        self.start()

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def start(self):
        """Serve, at the same address as before."""
        self.pool = ThreadPoolExecutor(16)
        self.server = grpc.server(self.pool, options=server_options())
        device_pb2_grpc.add_DeviceServiceServicer_to_server(
            Devices(self.admin.devices), self.server
        )
        blob_pb2_grpc.add_BlobServiceServicer_to_server(self.blobs, self.server)
        job_pb2_grpc.add_JobServiceServicer_to_server(self.jobs, self.server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self.admin, self.server)
        lease_pb2_grpc.add_LeaseServiceServicer_to_server(self.leases, self.server)
        session_pb2_grpc.add_SessionServiceServicer_to_server(self.sessions, self.server)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        self.server.start()

    def stop(self):
        """Be away: streams break."""
        self.server.stop(0).wait(10)
        self.pool.shutdown(cancel_futures=True)
