"""One tracker that serves: its folder, its store, its port.

Owns: putting the parts together, the lock of the data folder, starting and stopping. Does not own: the parts.

Invariant: one tracker a data folder and a database; no call reaches a service but through the guard; other machines are
spoken to with TLS, unless plain text was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ipaddress
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import grpc

from farm.api.v1 import (
    account_pb2_grpc,
    admin_pb2_grpc,
    agent_pb2_grpc,
    build_pb2_grpc,
    device_pb2_grpc,
    identity_pb2_grpc,
    job_pb2_grpc,
    lease_pb2_grpc,
    run_pb2_grpc,
    session_pb2_grpc,
)
from farm.core.clock import SystemClock
from farm.core.ids import random_id
from farm.errors import InfrastructureError, InvalidInput, NotAllowed
from farm.rpc import server_options
from farm_tracker.builds import Builds
from farm_tracker.cas import BlobStore, default_limit
from farm_tracker.housekeeping import Housekeeper, Retention
from farm_tracker.identity.identity import Identity
from farm_tracker.identity.tls import certificate_in
from farm_tracker.jobs import Jobs
from farm_tracker.pins import Pins
from farm_tracker.service.account import AccountService
from farm_tracker.service.admin import AdminService
from farm_tracker.service.agent import AgentService
from farm_tracker.service.blob import BlobService, add_blob_service
from farm_tracker.service.build import BuildService
from farm_tracker.service.device import DeviceService
from farm_tracker.service.identity import IdentityService
from farm_tracker.service.job import JobService
from farm_tracker.service.lease import LeaseService
from farm_tracker.service.run import RunService
from farm_tracker.service.session import SessionService
from farm_tracker.state.model import Limits
from farm_tracker.store import Store
from farm_tracker.tracker import Tracker
from farm_tracker.variants import Variants

if TYPE_CHECKING:
    from farm.core.clock import Clock
    from farm.core.ids import IdSource
    from farm_tracker.identity.tls import Certificate

log = logging.getLogger(__name__)

GRACE_S = 1.0
RESERVE_BYTES = 16 << 20
LOCK = "tracker.lock"


@dataclass(frozen=True, slots=True)
class TrackerServer:
    """A tracker that is serving at `address` (host:port)."""

    address: str
    tracker: Tracker
    blobs: BlobStore
    identity: Identity
    certificate: bytes
    """By which clients know it (PEM); empty: plain text."""
    housekeeper: Housekeeper
    _server: grpc.aio.Server
    _store: Store
    _lock: IO[str]

    async def stop(self) -> None:
        """Stop serving; what was acknowledged is on disk. Calls under way end with an error."""
        self.identity.withdraw(self.address)
        self.tracker.end_streams()
        await self._server.stop(GRACE_S)
        await self.housekeeper.stop()
        await self.tracker.stop()
        await self.identity.close()
        self._store.close()
        self._lock.close()

    @property
    def failed(self) -> asyncio.Future[InfrastructureError]:
        """Done when the store could not be written; stop then, and start again once it can."""
        return self.tracker.failed


async def serve(
    data_dir: str | Path,
    address: str = "127.0.0.1:0",
    *,
    limits: Limits | None = None,
    clock: Clock | None = None,
    ids: IdSource = random_id,
    tls: bool = True,
    insecure: bool = False,
    reserve_bytes: int = RESERVE_BYTES,
    database: str = "",
    store_limit_bytes: int = 0,
    retention: Retention | None = None,
) -> TrackerServer:
    """Start a tracker and return once it serves.

    Parameters
    ----------
    data_dir
        Where its store and blobs are; made if absent.
    address
        ``host:port``; port 0 takes a free one. This user's own clients on this machine find their credentials by it.
    tls
        False: plain text, which only programs on this machine may use.
    reserve_bytes
        Room on the disk that is kept so that results commit when it is full; 0: none.
    database
        URL of the database; empty: a SQLite file in `data_dir`.
    store_limit_bytes
        What all blobs together may take; 0: half of the disk, at most 64 GiB.
    retention
        How long ended things are kept; None: jobs for a day (or as `limits` say), records for 30 days.
    insecure
        Plain text with other machines too: whoever can listen on the network can take the tokens.

    Raises
    ------
    NotAllowed
        Plain text on an address that other machines can reach.
    InvalidInput
        The address is malformed.
    InfrastructureError
        Another tracker uses the folder, the port is taken, the store is unreadable, or no certificate can be made.
    """
    host = check_listen(address, tls=tls, insecure=insecure)
    clock = clock or SystemClock()
    folder = Path(data_dir)
    _make_folder(folder)
    async with contextlib.AsyncExitStack() as undo:
        lock = undo.enter_context(_lock_folder(folder))
        store = await asyncio.to_thread(Store, database or folder / "tracker.db", reserve_bytes)
        undo.callback(store.close)
        blobs = await asyncio.to_thread(
            BlobStore,
            folder / "cas",
            keep_free_bytes=reserve_bytes // 4,
            limit_bytes=store_limit_bytes or default_limit(folder),
            clock=clock,
        )
        certificate = certificate_in(folder, clock.wall()) if tls else None
        ca = certificate.certificate if certificate else b""
        identity = await Identity.open(folder, clock, ca=ca)
        undo.push_async_callback(identity.close)
        limits = limits or Limits()
        if retention is not None:
            limits = replace(
                limits, job_retain_s=retention.jobs_s, device_retain_s=retention.devices_s
            )
        tracker = Tracker(store, limits, clock, ids)
        undo.push_async_callback(tracker.stop)
        await tracker.start()
        builds = Builds(tracker, blobs)
        blobs.pinned = Pins(tracker, builds)
        records_s = (retention or Retention()).records_s
        housekeeper = Housekeeper(lambda: asyncio.ensure_future(tracker.prune(records_s)))
        undo.push_async_callback(housekeeper.stop)
        server = _server(tracker, blobs, identity, builds)
        port = _bind(server, address, certificate)
        identity.publish(f"{host}:{port}")
        undo.callback(identity.withdraw, f"{host}:{port}")
        await server.start()
        housekeeper.start()
        undo.pop_all()
    return TrackerServer(
        f"{host}:{port}", tracker, blobs, identity, ca, housekeeper, server, store, lock
    )


def check_listen(address: str, *, tls: bool, insecure: bool) -> str:
    """Return the host of an address to listen at.

    Raises
    ------
    InvalidInput
        It is not host:port.
    NotAllowed
        Other machines could reach it in plain text, and nobody asked for that.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise InvalidInput(f"listen address: malformed ({address[:80]!r}); use 127.0.0.1:PORT")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        raise InvalidInput(
            f"listen address: host is no IP address ({host[:80]!r}); use 127.0.0.1:PORT"
        ) from None
    if not tls:
        if not loopback and not insecure:
            raise NotAllowed(
                f"listen address: {host} can be reached by other machines, and plain text would show them "
                "every token; leave --plaintext out, use 127.0.0.1, or ask for it with --insecure"
            )
        whom = "this machine only" if loopback else "OTHER MACHINES TOO: TOKENS CAN BE STOLEN"
        log.warning("connections are in plain text, with %s (%s)", whom, address)
    return host


def _server(
    tracker: Tracker, blobs: BlobStore, identity: Identity, builds: Builds
) -> grpc.aio.Server:
    server = grpc.aio.server(interceptors=[identity.guard], options=server_options())
    account_pb2_grpc.add_AccountServiceServicer_to_server(AccountService(tracker), server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(tracker), server)
    variants = Variants(blobs)
    jobs = Jobs(tracker, blobs, variants)
    job_pb2_grpc.add_JobServiceServicer_to_server(JobService(jobs), server)
    agent_pb2_grpc.add_AgentServiceServicer_to_server(
        AgentService(tracker, blobs, builds.functions), server
    )
    add_blob_service(BlobService(blobs), server)
    build_pb2_grpc.add_BuildServiceServicer_to_server(BuildService(builds), server)
    device_pb2_grpc.add_DeviceServiceServicer_to_server(DeviceService(tracker.state), server)
    lease_pb2_grpc.add_LeaseServiceServicer_to_server(
        LeaseService(tracker, identity.leases), server
    )
    identity_pb2_grpc.add_IdentityServiceServicer_to_server(IdentityService(identity), server)
    run_pb2_grpc.add_RunServiceServicer_to_server(RunService(tracker, blobs, variants), server)
    session_pb2_grpc.add_SessionServiceServicer_to_server(
        SessionService(tracker.sessions, identity.leases), server
    )
    return server


def _bind(server: grpc.aio.Server, address: str, certificate: Certificate | None) -> int:
    try:
        if certificate is None:
            port = server.add_insecure_port(address)
        else:
            pair = (certificate.key, certificate.certificate)
            port = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    except RuntimeError as error:
        raise InfrastructureError(
            f"listen address: cannot bind {address} ({error}); choose another port"
        ) from error
    if port == 0:
        raise InfrastructureError(f"listen address: cannot bind {address}; choose another port")
    return port


def _make_folder(folder: Path) -> None:
    """Make the data folder, for its owner alone if it is new, and try to write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / LOCK).touch()
    except OSError as error:
        raise InfrastructureError(
            f"data folder {folder}: cannot be used ({error.strerror}); correct its rights, or choose another"
        ) from error


def _lock_folder(folder: Path) -> IO[str]:
    lock = (folder / LOCK).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise InfrastructureError(
            f"data folder {folder}: another tracker uses it; stop that one or choose another folder"
        ) from None
    return lock
