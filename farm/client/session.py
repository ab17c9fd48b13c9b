"""Sessions: a client's use of one lease."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import grpc

from farm.api.v1 import lease_pb2, lease_pb2_grpc, session_pb2, session_pb2_grpc
from farm.artifact import Artifact, Signature
from farm.artifact.signature import check_inputs
from farm.client import batch as batches
from farm.client.info import DeviceInfo, Timing
from farm.client.transfer import Store
from farm.core.wire import Array
from farm.errors import FarmError, InfrastructureError, InvalidInput, NotFound
from farm.rpc import digest_to_proto, error_from_proto, rpc_errors

DEFAULT_LIMIT_S = 30.0
CONTROL_TIMEOUT_S = 10.0


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
    share a session.
    """

    def __init__(
        self, channel: grpc.Channel, store: Store, lease: Lease, device: DeviceInfo
    ) -> None:
        self.device = device
        self._store = store
        self._lease = lease
        self._leases = lease_pb2_grpc.LeaseServiceStub(channel)
        self._requests: queue.SimpleQueue[session_pb2.SessionRequest | None] = queue.SimpleQueue()
        self._seq = 0
        self._turn = threading.Lock()
        self._closing = threading.Event()
        stub = session_pb2_grpc.SessionServiceStub(channel)
        self._replies = stub.Attach(iter(self._requests.get, None))
        self._renewer = threading.Thread(target=self._renew, name="farm-renew", daemon=True)
        if lease.owned:
            self._renewer.start()

    def attach(self) -> None:
        """Say which lease this is, and wait until the device is ready."""
        attach = session_pb2.AttachRequest(
            lease_id=self._lease.lease_id,
            epoch=self._lease.epoch,
            lease_token=self._lease.lease_token,
        )
        self._ask(session_pb2.SessionRequest(attach=attach))

    def load(self, artifact: Artifact | Path | str) -> RemoteModule:
        """Load the slices of an artifact that this device runs.

        Parameters
        ----------
        artifact
            The artifact or its file; uploaded unless the farm has it.

        Raises
        ------
        ArtifactError
            The artifact is damaged, or `NoVariant`: it has no slice for this device.
        """

        def ask() -> session_pb2.SessionReply:
            digest = digest_to_proto(self._store.put_artifact(artifact))
            load = session_pb2.LoadRequest(artifact=digest)
            return self._ask(session_pb2.SessionRequest(load=load))

        reply = self._store.sending(ask).loaded
        functions = {
            loaded.symbol: RemoteFunction(
                self,
                reply.module_id,
                loaded.symbol,
                loaded.target,
                Signature.from_json(loaded.signature),
            )
            for loaded in reply.functions
        }
        return RemoteModule(self, functions)

    def call(
        self, module_id: int, symbol: str, arrays: tuple[Any, ...], repeat: int, limit_s: float
    ) -> tuple[tuple[Array, ...], tuple[int, ...]]:
        """Call a loaded function; returns its outputs and the times of the repeats in ns."""

        def ask() -> session_pb2.SessionReply:
            call = session_pb2.CallRequest(
                module_id=module_id,
                symbol=symbol,
                inputs=self._store.tensors(arrays),
                repeat=repeat,
                limit_s=limit_s,
            )
            return self._ask(session_pb2.SessionRequest(call=call))

        reply = self._store.sending(ask).called
        return self._store.arrays(reply.outputs), tuple(reply.samples_ns)

    def call_many(
        self, calls: Iterable[batches.PlannedCall], limit_s: float
    ) -> Iterator[session_pb2.CallReply]:
        """Yield the replies to calls that travel in few messages; ends with the error of the first that failed."""
        done = 0
        for batch in batches.requests(calls, limit_s):
            reply = self._ask(session_pb2.SessionRequest(batch=batch)).batch
            yield from reply.replies
            done += len(reply.replies)
            if reply.HasField("error") or len(reply.replies) != len(batch.calls):
                error = _batch_error(reply, done)
                if isinstance(error, NotFound):
                    self._store.forget()
                raise error

    def close(self) -> None:
        """Give the device back, unless it was taken by `Client.hold`; does nothing the second time."""
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
            with rpc_errors():
                self._leases.Release(release, timeout=CONTROL_TIMEOUT_S)
        finally:
            self._replies.cancel()

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
        with self._turn:
            if self._closing.is_set():
                raise InvalidInput("session: it is closed; acquire the device again")
            self._seq += 1
            request.seq = self._seq
            self._requests.put(request)
            with rpc_errors():
                reply = next(self._replies, None)
        if reply is None or reply.seq != request.seq:
            raise InfrastructureError("session: the tracker ended it; acquire the device again")
        if reply.HasField("error"):
            raise error_from_proto(reply.error)
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

    def plan_call(
        self, module_id: int, symbol: str, signature: Signature, arrays: tuple[Any, ...]
    ) -> batches.PlannedCall:
        """Return a call for `call_many`; its large arrays are stored now."""
        check_inputs(symbol, signature, arrays)
        call = session_pb2.CallRequest(
            module_id=module_id, symbol=symbol, inputs=self._store.tensors(arrays)
        )
        return call, batches.reply_bytes(signature)

    def outputs(self, reply: session_pb2.CallReply) -> Any:  # noqa: ANN401 - one array or several
        """Return what a reply holds: its array, or a tuple if there are several."""
        outputs = self._store.arrays(reply.outputs)
        return outputs[0] if len(outputs) == 1 else outputs


def _batch_error(reply: session_pb2.BatchReply, index: int) -> FarmError:
    """Return why call `index` of a batch failed."""
    if not reply.HasField("error"):
        return InfrastructureError("batch: the device left out calls; acquire it again")
    error = error_from_proto(reply.error)
    error.message = f"batch: call {index}: {error.message}"
    error.args = (error.message,)
    error.details["call"] = str(index)
    return error


@dataclass(frozen=True, slots=True)
class RemoteFunction:
    """A function on a device; call it with one array for each input or inout parameter.

    Attributes
    ----------
    target
        Whose slice of the artifact serves this device.
    """

    session: Session
    module_id: int
    symbol: str
    target: str
    signature: Signature

    def __call__(self, *arrays: Any, limit_s: float = DEFAULT_LIMIT_S) -> Any:  # noqa: ANN401 - one array or several
        """Call it and return its output, or a tuple of them if it has several.

        Raises
        ------
        InvalidArguments
            An array does not fit the signature; nothing was sent.
        KernelFailed
            The kernel crashed or faulted; the session goes on.
        TimeLimit
            It ran longer than `limit_s`.
        """
        outputs, _ = self._call(arrays, 0, limit_s)
        return outputs[0] if len(outputs) == 1 else outputs

    def time(self, *arrays: Any, repeat: int = 10, limit_s: float = DEFAULT_LIMIT_S) -> Timing:
        """Call it once, then `repeat` times on the clock of the device's host."""
        if repeat < 1:
            raise InvalidInput(f"time: repeat is {repeat}; use at least 1")
        _, samples_ns = self._call(arrays, repeat, limit_s)
        return Timing(samples_ns, self.session.device.timing_class)

    def _call(
        self, arrays: tuple[Any, ...], repeat: int, limit_s: float
    ) -> tuple[tuple[Array, ...], tuple[int, ...]]:
        check_inputs(self.symbol, self.signature, arrays)
        return self.session.call(self.module_id, self.symbol, arrays, repeat, limit_s)


class RemoteModule(Mapping[str, RemoteFunction]):
    """The functions of a loaded artifact, by name."""

    def __init__(self, session: Session, functions: Mapping[str, RemoteFunction]) -> None:
        self.session = session
        self._functions = MappingProxyType(dict(functions))

    def __getitem__(self, symbol: str) -> RemoteFunction:
        """Return a function; raises NotFound if the artifact has none of that name for this device."""
        if symbol not in self._functions:
            known = ", ".join(sorted(self._functions))
            raise NotFound(
                f"function {symbol}: not in this artifact, or no slice of it runs on "
                f"{self.session.device.device_id}; there is {known}"
            )
        return self._functions[symbol]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._functions)

    def __len__(self) -> int:
        """Return the number of functions."""
        return len(self._functions)

    def time(
        self,
        symbol: str,
        *arrays: Any,
        repeat: int = 10,
        limit_s: float = DEFAULT_LIMIT_S,
    ) -> Timing:
        """Time a function: see `RemoteFunction.time`."""
        return self[symbol].time(*arrays, repeat=repeat, limit_s=limit_s)

    def batch(
        self, calls: Iterable[tuple[str, Sequence[Any]]], *, limit_s: float = DEFAULT_LIMIT_S
    ) -> list[Any]:
        """Call functions in order, many in a message: much faster than one by one if they are short.

        Parameters
        ----------
        calls
            For each the name of a function and its arrays.
        limit_s
            For the calls of a message together (at most 10,000 and 16 MiB), shared out evenly; 0.01 to 600 s.

        Returns
        -------
        list
            For each call what the function itself would return.

        Raises
        ------
        FarmError
            As a call of the function; ``details["call"]`` is the index of the call that failed. Calls after it
            were not made.
        """
        planned = (
            self.session.plan_call(f.module_id, f.symbol, f.signature, tuple(arrays))
            for f, arrays in ((self[symbol], arrays) for symbol, arrays in calls)
        )
        return [self.session.outputs(reply) for reply in self.session.call_many(planned, limit_s)]
