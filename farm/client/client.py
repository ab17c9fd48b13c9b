"""The connection to a tracker."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from farm.api.v1 import (
    build_pb2_grpc,
    device_pb2,
    device_pb2_grpc,
    lease_pb2,
    lease_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
    session_pb2_grpc,
)
from farm.artifact import Artifact
from farm.building import Progress, Request, Tuned, plan
from farm.client import build as building
from farm.client import run as running
from farm.client.accounts import AccountCalls
from farm.client.info import AgentInfo, DeviceInfo
from farm.client.measure_calls import MeasureCalls
from farm.client.operators import OperatorCalls
from farm.client.run import RunOutcome
from farm.client.session import Lease, Session
from farm.client.tokens import TokenCalls
from farm.client.transfer import Store
from farm.core.ids import random_id
from farm.core.limits import DEFAULT_LIMIT_S
from farm.errors import NotAllowed, TimeLimit, TrackerUnreachable, Unauthenticated
from farm.rpc import channel, digest_to_proto, rpc_errors
from farm.rpc.blobs import BlobStub
from farm.target import Selector, Target

DEFAULT_ADDRESS = "127.0.0.1:7460"
ADDRESS_VARIABLE = "FARM_TRACKER"
CONNECT_TIMEOUT_S = 5.0
DEFAULT_TTL_S = 60.0


def tracker_address(address: str | None = None) -> str:
    """Return `address`, else what FARM_TRACKER says, else ``127.0.0.1:7460``."""
    return address or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS


def connect(address: str | None = None) -> Client:
    """Connect to a tracker.

    Parameters
    ----------
    address
        ``host:port``; None: what the variable FARM_TRACKER says, else ``127.0.0.1:7460``.

    Raises
    ------
    TrackerUnreachable
        Nobody answers there within 5 s; start a farm with ``farm up``.
    Unauthenticated
        The tracker does not know you: set FARM_TOKEN, or use ``farm connect``.
    """
    client = Client(tracker_address(address))
    try:
        client.agents()
    except BaseException as error:
        if isinstance(error, NotAllowed) and not isinstance(error, Unauthenticated):
            return client  # it answers: this token is for other things than looking
        client.close()
        if isinstance(error, TimeLimit):  # somebody listens there, but does not speak
            raise TrackerUnreachable(
                f"tracker: no answer from {client.address} within {CONNECT_TIMEOUT_S:g} s; start one with `farm up` "
                "or correct the address"
            ) from error
        raise
    return client


class Client(MeasureCalls, OperatorCalls, TokenCalls, AccountCalls):
    """A connection to a tracker; use it as a context manager. Threads may share it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = channel(address)
        self._devices = device_pb2_grpc.DeviceServiceStub(self._channel)
        self._builds = build_pb2_grpc.BuildServiceStub(self._channel)
        self._leases = lease_pb2_grpc.LeaseServiceStub(self._channel)
        self._runs = run_pb2_grpc.RunServiceStub(self._channel)
        self._sessions = session_pb2_grpc.SessionServiceStub(self._channel)
        self._store = Store(BlobStub(self._channel))

    def devices(self, selector: str = "") -> list[DeviceInfo]:
        """Return the devices that match a selector, sorted by id."""
        request = device_pb2.ListDevicesRequest(selector=str(Selector.parse(selector)))
        with rpc_errors(self.address):
            response = self._devices.ListDevices(request, timeout=CONNECT_TIMEOUT_S)
        return [DeviceInfo.from_proto(device) for device in response.devices]

    def agents(self) -> list[AgentInfo]:
        """Return the agents that the tracker knows, sorted by id."""
        request = device_pb2.ListAgentsRequest()
        with rpc_errors(self.address):
            response = self._devices.ListAgents(request, timeout=CONNECT_TIMEOUT_S)
        return [AgentInfo.from_proto(agent) for agent in response.agents]

    def build(
        self,
        request: Request,
        target_host: str | Target | None = None,
        *,
        variants: bool = False,
        keep_going: bool = False,
        tuned: Tuned | None = None,
        progress: Progress | None = None,
    ) -> Artifact:
        """Build on the farm: as `farm.build`, with the same bytes as result.

        Raises
        ------
        FarmError
            As `farm.build`; and `NobodyCanServe`: no agent builds for one of the targets.
        """
        work = plan(request, target_host, variants=variants, tuned=tuned)
        key = random_id("build")

        def send() -> Artifact:
            message = building.build_request(work, self._store, key, keep_going=keep_going)
            with rpc_errors(self.address):
                return building.follow(work, self._builds.Build(message), self._store, progress)

        return self._store.sending(send)

    def acquire(
        self,
        selector: str = "",
        *,
        wait_s: float = 60.0,
        ttl_s: float = DEFAULT_TTL_S,
        holder: str = "",
    ) -> Session:
        """Take a device.

        Parameters
        ----------
        selector
            ``key=value,key!=value,key`` over labels; ``device_id=…`` names one; empty: any.
        wait_s
            How long to wait while all that match are busy.
        ttl_s
            How soon the device is free again if this process dies; the lease is renewed while it lives.
        holder
            Shown to others who wait.

        Raises
        ------
        NobodyCanServe
            No device of the farm could ever match.
        DeviceBusy
            None became free in time.
        """
        request = lease_pb2.AcquireRequest(
            selector=str(Selector.parse(selector)), wait_s=wait_s, ttl_s=ttl_s, holder=holder
        )
        with rpc_errors(self.address):
            granted = self._leases.Acquire(request, timeout=wait_s + CONNECT_TIMEOUT_S).lease
        lease = Lease(granted.lease_id, granted.epoch, ttl_s, granted.lease_token)
        return self._session(lease, DeviceInfo.from_proto(granted.device))

    def use(self, lease_id: str, *, epoch: int | None = None, lease_token: str = "") -> Session:
        """Use a device that `hold` or ``farm acquire`` took; closing the session leaves the lease as it is.

        Parameters
        ----------
        epoch
            None: what the tracker says is the lease's.
        lease_token
            As in `Hold`.

        Raises
        ------
        NotFound
            No live lease has this id.
        NotAllowed
            It is not the lease's token.
        Fenced
            The lease has ended.
        """
        held = self._held(lease_id)
        device = self.devices(f"device_id={held.device_id}")[0]
        epoch = held.epoch if epoch is None else epoch
        return self._session(Lease(lease_id, epoch, 0.0, lease_token, owned=False), device)

    def _session(self, lease: Lease, device: DeviceInfo) -> Session:
        session = Session(self._sessions, self._leases, self._store, lease, device)
        try:
            # Who was just given a lease may use it; whether somebody else's can be used is asked now.
            session.attach(wait=not lease.owned)
        except BaseException:
            session.close()
            raise
        return session

    def run(
        self,
        artifact: Artifact | Path | str,
        symbol: str,
        arrays: Sequence[Any],
        *,
        selector: str = "",
        repeat: int = 0,
        limit_s: float = DEFAULT_LIMIT_S,
        wait_s: float = 60.0,
        leased: Callable[[DeviceInfo], None] | None = None,
    ) -> RunOutcome:
        """Take a device, load, call once (and `repeat` times on the clock), give it back.

        Parameters
        ----------
        leased
            Called when a device was found.

        Raises
        ------
        FarmError
            As `acquire` and `Session.load`, and what the kernel did wrong.
        """

        def send() -> RunOutcome:
            request = run_pb2.RunRequest(
                selector=str(Selector.parse(selector)),
                artifact=digest_to_proto(self._store.put_artifact(artifact)),
                symbol=symbol,
                inputs=self._store.tensors(arrays),
                repeat=repeat,
                limit_s=limit_s,
                wait_s=wait_s,
            )
            with rpc_errors(self.address):
                return running.follow(self._runs.Run(request), self._store, leased)

        return self._store.sending(send)

    @property
    def store(self) -> Store:
        """The farm's store of blobs."""
        return self._store

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Client:
        """Return this client."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self.close()
