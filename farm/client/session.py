"""Sessions: a client's use of one lease."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from farm.api.v1 import (
    lease_pb2,
    lease_pb2_grpc,
    measure_pb2,
    session_pb2,
    session_pb2_grpc,
    tensor_pb2,
)
from farm.artifact import Artifact, Signature
from farm.client import batch as batches
from farm.client.info import DeviceInfo
from farm.client.layout import layout_of
from farm.client.module import RemoteFunction, RemoteModule
from farm.client.patience import is_away
from farm.client.transfer import Store, artifact_bytes
from farm.core.digest import digest_of
from farm.core.limits import DEFAULT_LIMIT_S, MAX_FIRST_OUTPUT_BYTES, MAX_INLINE_ARTIFACT_BYTES
from farm.core.wire import Array
from farm.errors import FarmError, InfrastructureError, InvalidInput, NotFound
from farm.measuring import Measurement
from farm.measuring.wire import measurement_from_proto
from farm.rpc import digest_to_proto, error_from_proto, rpc_errors

AHEAD = 3
"""Messages of a batch on their way at a time."""
CONTROL_TIMEOUT_S = 10.0
RELEASE_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Lease:
    """The right that a session rests on.

    Attributes
    ----------
    owned
        The session renews the lease and gives the device back; else it was taken apart from it and outlives it.
    """

    lease_id: str
    epoch: int
    ttl_s: float
    lease_token: str = field(default="", repr=False)
    owned: bool = True


class Session:
    """A device that is yours until you close the session or its lease ends.

    The lease is renewed in the background. Use it as a context manager. One call runs at a time; several threads may
    share a session. A call that is interrupted (Ctrl-C) runs on to its end or limit, and the session has to be
    closed then.
    """

    def __init__(
        self,
        sessions: session_pb2_grpc.SessionServiceStub,
        leases: lease_pb2_grpc.LeaseServiceStub,
        store: Store,
        lease: Lease,
        device: DeviceInfo,
    ) -> None:
        self.device = device
        self._store = store
        self._lease = lease
        self._leases = leases
        self._requests: queue.SimpleQueue[session_pb2.SessionRequest | None] = queue.SimpleQueue()
        self._seq = 0
        self._awaited: dict[
            int, session_pb2.SessionReply | None
        ] = {}  # by number of their requests
        self._sending, self._reading = threading.Lock(), threading.Lock()
        self._interrupted = False
        self._closing = threading.Event()
        self._replies = sessions.Attach(iter(self._requests.get, None))
        self._renewer = threading.Thread(target=self._renew, name="farm-renew", daemon=True)
        if lease.owned:
            self._renewer.start()

    def attach(self, *, wait: bool) -> None:
        """Say which lease this is, before anything else.

        Parameters
        ----------
        wait
            Until the tracker has agreed; else what it objects to is raised by what is asked first.
        """
        attach = session_pb2.AttachRequest(
            lease_id=self._lease.lease_id,
            epoch=self._lease.epoch,
            lease_token=self._lease.lease_token,
        )
        request = session_pb2.SessionRequest(attach=attach)
        if wait:
            self._ask(request)
        else:
            self._abandon(self._send(lambda _: request, 0))

    def load(self, artifact: Artifact | Path | str) -> RemoteModule:
        """Load the slices of an artifact that this device runs.

        Parameters
        ----------
        artifact
            The artifact or its file; a small one travels with the request, another is uploaded unless the farm has it.

        Raises
        ------
        ArtifactError
            The artifact is damaged, or `NoVariant`: it has no slice for this device.
        """
        return self._module_of(self._load(artifact_bytes(artifact), None))

    def load_and_call(
        self,
        artifact: Artifact | Path | str,
        symbol: str,
        *arrays: Any,
        limit_s: float = DEFAULT_LIMIT_S,
    ) -> tuple[RemoteModule, Any]:
        """Load an artifact and call a function of it, in one message if its arrays are small: a tuner's way.

        Returns
        -------
        tuple
            The module, and what the function itself would return.

        Raises
        ------
        FarmError
            As `load`, and as a call of the function. If the kernel ended its process, nothing is loaded.
        """
        loaded = artifact if isinstance(artifact, Artifact) else Artifact.load(Path(artifact))
        signature = loaded.symbols.get(symbol)
        if signature is None:
            has = ", ".join(loaded.symbols)
            raise NotFound(f"function {symbol}: not in this artifact; there is {has}")
        layout, calls = layout_of(symbol, signature), None
        if layout is not None and layout.output_bytes <= MAX_FIRST_OUTPUT_BYTES:
            calls = batches.Packed()
            calls.add(RemoteFunction(self, 0, symbol, "", signature, layout), arrays)
        reply = self._load(loaded.to_bytes(), None if calls is None else calls.packed(0, limit_s))
        module = self._module_of(reply)
        if calls is None or not reply.HasField("called"):  # of an agent that does not know of it
            return module, module[symbol](*arrays, limit_s=limit_s)
        results, error = calls.results_of(reply.called)
        if error is not None:
            raise error
        return module, results[0]

    def _load(self, data: bytes, calls: session_pb2.PackedRequest | None) -> session_pb2.LoadReply:
        def ask() -> session_pb2.SessionReply:
            if len(data) <= MAX_INLINE_ARTIFACT_BYTES:
                digest = digest_to_proto(digest_of(data))
                load = session_pb2.LoadRequest(artifact=digest, inline=data, calls=calls)
            else:
                digest = digest_to_proto(self._store.put(data))
                load = session_pb2.LoadRequest(artifact=digest, calls=calls)
            return self._ask(session_pb2.SessionRequest(load=load))

        return self._store.sending(ask).loaded

    def _module_of(self, reply: session_pb2.LoadReply) -> RemoteModule:
        functions = {}
        for loaded in reply.functions:
            signature = Signature.from_json(loaded.signature)
            functions[loaded.symbol] = RemoteFunction(
                self,
                reply.module_id,
                loaded.symbol,
                loaded.target,
                signature,
                layout_of(loaded.symbol, signature),
            )
        return RemoteModule(self, functions)

    def call(
        self, function: RemoteFunction, arrays: Sequence[Any], repeat: int, limit_s: float
    ) -> tuple[tuple[Array, ...], tuple[int, ...]]:
        """Call a loaded function; returns its outputs and the times of the repeats in ns."""

        def ask() -> session_pb2.SessionReply:
            call = function.request(arrays)
            call.repeat, call.limit_s = repeat, limit_s
            return self._ask(session_pb2.SessionRequest(call=call))

        reply = self._store.sending(ask).called
        return self._store.arrays(reply.outputs), tuple(reply.samples_ns)

    def call_many(
        self, calls: Iterable[tuple[RemoteFunction, Sequence[Any]]], limit_s: float
    ) -> list[Any]:
        """Return what calls gave that travel in few messages; raises why the first failed that did."""
        batches.check_limit(limit_s)
        results: list[Any] = []
        waiting: deque[tuple[batches.Message, int]] = deque()
        before = 0

        def take() -> None:
            message, seq = waiting.popleft()
            some, error = message.results(self._receive(seq))
            results.extend(some)
            if error is not None:
                if isinstance(error, NotFound):
                    self._store.forget()
                raise batches.failed_at(len(results), error)

        try:
            for message in batches.messages(calls, self._store, limit_s):
                if len(waiting) == AHEAD:
                    take()
                before = self._send(partial(message.request, limit_s=limit_s), before)
                waiting.append((message, before))
            while waiting:
                take()
        finally:
            for _, seq in waiting:
                self._abandon(seq)
        return results

    def call_one(self, function: RemoteFunction, arrays: Sequence[Any], limit_s: float) -> Any:  # noqa: ANN401
        """Call a function whose arrays are small; returns its array, or a tuple if there are several."""
        message = batches.Packed()
        message.add(function, arrays)
        reply = self._receive(self._send(partial(message.request, limit_s=limit_s), 0))
        results, error = message.results(reply)
        if error is not None:
            raise error
        return results[0]

    def send_measure(self, request: measure_pb2.MeasureRequest) -> int:
        """Send a candidate to be measured after those that were sent before; return the number of the request."""
        message = session_pb2.SessionRequest(measure=request)
        return self._send(lambda _: message, 0)

    def receive_measured(self, seq: int) -> Measurement:
        """Wait for the result of `send_measure`; what the farm did wrong is raised."""
        return measurement_from_proto(self._answer(seq).measured)

    def tensors(self, arrays: Sequence[Any]) -> list[tensor_pb2.Tensor]:
        """Return messages for arrays; large ones are stored."""
        return self._store.tensors(arrays)

    def close(self) -> None:
        """Give the device back, unless it was taken by `Client.hold`; does nothing the second time.

        If the tracker is away, that is raised, and tried again in the background as long as the lease lasts.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._requests.put(None)
        if not self._lease.owned:
            self._replies.cancel()
            return
        self._renewer.join()
        release = lease_pb2.ReleaseRequest(
            lease_id=self._lease.lease_id,
            epoch=self._lease.epoch,
            lease_token=self._lease.lease_token,
        )
        try:
            self._release(release)
        except FarmError as error:
            if is_away(error):
                later = threading.Thread(target=self._release_later, args=(release,), daemon=True)
                later.start()
            raise
        finally:
            self._replies.cancel()

    def _release(self, request: lease_pb2.ReleaseRequest) -> None:
        with rpc_errors():
            self._leases.Release(request, timeout=CONTROL_TIMEOUT_S)

    def _release_later(self, request: lease_pb2.ReleaseRequest) -> None:
        """Give the device back once the tracker is there again, or nobody could have it until its lease has run out."""
        until = time.monotonic() + self._lease.ttl_s
        while time.monotonic() < until:
            time.sleep(RELEASE_PAUSE_S)
            try:
                return self._release(request)
            except FarmError as error:
                if not is_away(error):
                    return None
            except ValueError:  # the connection was closed
                return None
        return None

    def __enter__(self) -> Session:
        """Return this session."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; a failure to give back never hides the error that ended the block."""
        if error is None:
            self.close()
        else:
            with contextlib.suppress(FarmError):
                self.close()

    def _ask(self, request: session_pb2.SessionRequest) -> session_pb2.SessionReply:
        return self._answer(self._send(lambda _: request, 0))

    def _answer(self, seq: int) -> session_pb2.SessionReply:
        reply = self._receive(seq)
        if reply.HasField("error"):
            raise error_from_proto(reply.error)
        return reply

    def _send(self, make: Callable[[int], session_pb2.SessionRequest], before: int) -> int:
        """Send a request and return its number.

        Parameters
        ----------
        make
            Makes it, given by how much its number is higher than `before`; 0 if that is 0.
        """
        with self._sending:
            if self._closing.is_set():
                raise InvalidInput("session: it is closed; acquire the device again")
            seq = self._seq + 1
            request = make(seq - before if before else 0)
            request.seq = self._seq = seq
            self._awaited[seq] = None
            self._requests.put(request)
        return seq

    def _receive(self, seq: int) -> session_pb2.SessionReply:
        """Return the reply to a request; replies to others are kept for those who wait for them."""
        with self._reading:
            while (reply := self._awaited.get(seq)) is None:
                came = self._read()
                if came.seq in self._awaited:
                    self._awaited[came.seq] = came
            del self._awaited[seq]
        return reply

    def _abandon(self, seq: int) -> None:
        """Drop the reply to a request when it comes."""
        self._awaited.pop(seq, None)

    def _read(self) -> session_pb2.SessionReply:
        if self._interrupted:
            raise InvalidInput("session: a call of it was interrupted; acquire the device again")
        try:
            with rpc_errors():
                reply = next(self._replies, None)
        except FarmError:
            raise
        except BaseException:  # gRPC cannot read a stream again that was left while it was read
            self._interrupted = True
            raise
        if reply is None:
            raise InfrastructureError("session: the tracker ended it; acquire the device again")
        return reply

    def _renew(self) -> None:
        lease = self._lease
        request = lease_pb2.RenewRequest(
            lease_id=lease.lease_id,
            epoch=lease.epoch,
            ttl_s=lease.ttl_s,
            lease_token=lease.lease_token,
        )
        while not self._closing.wait(lease.ttl_s / 3):
            try:
                self._leases.Renew(request, timeout=lease.ttl_s / 3)
            except grpc.RpcError as error:
                if isinstance(error, grpc.Call) and error.code() is not grpc.StatusCode.ABORTED:
                    continue  # the tracker may be back before the lease ends
                return  # fenced: the next call says so
