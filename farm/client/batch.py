"""Many calls in few messages.

Owns: how calls are cut into messages that keep the limits of the wire, and what their replies mean. Does not own:
sending them (`Session`).

Invariant: every message has at least one call, and order is kept.

Notes
-----
Calls with small arrays are packed: their arrays are pieces of one string of bytes, which costs a tenth of a message for
each. The others name blobs. Messages are far below the limits, so that one can be on its way while another is
carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from farm.api.v1 import session_pb2
from farm.client.layout import Layout
from farm.core.limits import MAX_INLINE_BYTES, MAX_LIMIT_S, MIN_LIMIT_S
from farm.errors import FarmError, InfrastructureError, InvalidInput
from farm.rpc import error_from_proto

if TYPE_CHECKING:
    from farm.artifact.signature import ParamSpec
    from farm.client.module import RemoteFunction
    from farm.client.transfer import Store

MESSAGE_CALLS = 2_000
MESSAGE_BYTES = 2 << 20
"""Inputs, or outputs, of the packed calls of one message; a single call may have more."""
LONG_CALLS = 64
LONG_BYTES = 16 << 20
"""Calls with large arrays of one message, and what of them travels inside it or its reply."""

Reply = session_pb2.SessionReply


class Message(Protocol):
    """Some calls."""

    def add(self, function: RemoteFunction, arrays: Sequence[Any]) -> bool:
        """Add a call unless it has to go into another message; raises InvalidArguments."""

    def request(self, follows: int, limit_s: float) -> session_pb2.SessionRequest:
        """Return the request; `follows` as in PackedRequest."""

    def results(self, reply: Reply) -> tuple[list[Any], FarmError | None]:
        """Return what the calls gave up to one that failed, and why it did."""


class Packed:
    """Calls with small arrays."""

    def __init__(self) -> None:
        self._functions: dict[RemoteFunction, int] = {}
        self._layouts: list[Layout] = []
        self._order: list[int] = []
        self._parts: list[bytes] = []
        self._sent = self._received = 0

    def add(self, function: RemoteFunction, arrays: Sequence[Any]) -> bool:
        """Add a call; see `Message`."""
        layout = function.layout
        if layout is None:
            return False
        sent, received, order = (
            self._sent + layout.input_bytes,
            self._received + layout.output_bytes,
            self._order,
        )
        if order and (
            sent > MESSAGE_BYTES or received > MESSAGE_BYTES or len(order) == MESSAGE_CALLS
        ):
            return False
        self._parts += layout.pack(arrays)
        index = self._functions.get(function)
        if index is None:
            index = self._functions[function] = len(self._layouts)
            self._layouts.append(layout)
        order.append(index)
        self._sent, self._received = sent, received
        return True

    def request(self, follows: int, limit_s: float) -> session_pb2.SessionRequest:
        """Return the request; see `Message`."""
        return session_pb2.SessionRequest(packed=self.packed(follows, limit_s))

    def packed(self, follows: int, limit_s: float) -> session_pb2.PackedRequest:
        """Return the calls as a message; `follows` as in PackedRequest."""
        return session_pb2.PackedRequest(
            functions=[
                session_pb2.PackedFunction(
                    module_id=function.module_id,
                    symbol=function.symbol,
                    input_bytes=layout.input_bytes,
                    output_bytes=layout.output_bytes,
                )
                for function, layout in zip(self._functions, self._layouts, strict=True)
            ],
            order=self._order,
            inputs=b"".join(self._parts),
            limit_s=limit_s,
            follows=follows,
        )

    def results(self, reply: Reply) -> tuple[list[Any], FarmError | None]:
        """Return what the calls gave; see `Message`."""
        if reply.WhichOneof("reply") != "packed":
            return [], _unexpected(reply)
        return self.results_of(reply.packed)

    def results_of(self, packed: session_pb2.PackedReply) -> tuple[list[Any], FarmError | None]:
        """Return what the calls gave up to one that failed, and why it did."""
        done, outputs = self._order[: packed.done], packed.outputs
        error = error_from_proto(packed.error) if packed.HasField("error") else None
        if len(done) < len(self._order) and error is None:
            error = InfrastructureError("the device left out calls; acquire it again")
        sizes = [layout.output_bytes for layout in self._layouts]
        if len(outputs) != sum(map(sizes.__getitem__, done)):
            return [], InfrastructureError("the device sent broken outputs; acquire it again")
        if len(self._layouts) == 1:
            return self._layouts[0].unpack_all(outputs, len(done)), error
        results, start = [], 0
        for index in done:
            layout = self._layouts[index]
            results.append(layout.unpack(outputs, start))
            start += layout.output_bytes
        return results, error


class Long:
    """Calls whose arrays are blobs of the store."""

    def __init__(self, store: Store, limit_s: float) -> None:
        self._store = store
        self._most = min(LONG_CALLS, int(limit_s / MIN_LIMIT_S))
        self._calls: list[session_pb2.CallRequest] = []
        self._sent = self._received = 0

    def add(self, function: RemoteFunction, arrays: Sequence[Any]) -> bool:
        """Add a call, whose large arrays are stored now; see `Message`."""
        if function.layout is not None or len(self._calls) >= max(1, self._most):
            return False
        sent = self._sent + _inside(function.signature.inputs)
        received = self._received + _inside(function.signature.outputs)
        if self._calls and max(sent, received) > LONG_BYTES:
            return False
        self._calls.append(function.request(arrays))
        self._sent, self._received = sent, received
        return True

    def request(self, follows: int, limit_s: float) -> session_pb2.SessionRequest:
        """Return the request; see `Message`."""
        for call in self._calls:
            call.limit_s = max(MIN_LIMIT_S, limit_s / len(self._calls))
        batch = session_pb2.BatchRequest(calls=self._calls, follows=follows)
        return session_pb2.SessionRequest(batch=batch)

    def results(self, reply: Reply) -> tuple[list[Any], FarmError | None]:
        """Return what the calls gave; see `Message`."""
        if reply.WhichOneof("reply") != "batch":
            return [], _unexpected(reply)
        batch = reply.batch
        error = error_from_proto(batch.error) if batch.HasField("error") else None
        if len(batch.replies) != len(self._calls) and error is None:
            error = InfrastructureError("the device left out calls; acquire it again")
        arrays = [self._store.arrays(one.outputs) for one in batch.replies]
        return [one[0] if len(one) == 1 else one for one in arrays], error


def messages(
    calls: Iterable[tuple[RemoteFunction, Sequence[Any]]], store: Store, limit_s: float
) -> Iterator[Message]:
    """Yield the messages for some calls, `limit_s` for each; raises what `Message.add` raises."""
    message: Message | None = None
    for function, arrays in calls:
        if message is not None:
            if message.add(function, arrays):
                continue
            yield message
        message = Long(store, limit_s) if function.layout is None else Packed()
        message.add(function, arrays)
    if message is not None:
        yield message


def check_limit(limit_s: float) -> None:
    """Raise InvalidInput if the limit of a message is out of range."""
    if not MIN_LIMIT_S <= limit_s <= MAX_LIMIT_S:
        raise InvalidInput(f"batch: limit_s is {limit_s:g}; use {MIN_LIMIT_S:g} to {MAX_LIMIT_S:g}")


def failed_at(index: int, error: FarmError) -> FarmError:
    """Return the error of call `index` of a batch, which says so."""
    error.message = f"batch: call {index}: {error.message}"
    error.args = (error.message,)
    error.details["call"] = str(index)
    return error


def _inside(specs: Sequence[ParamSpec]) -> int:
    """Return how many bytes of arrays travel inside a message."""
    return sum(spec.size_bytes for spec in specs if spec.size_bytes <= MAX_INLINE_BYTES)


def _unexpected(reply: Reply) -> FarmError:
    if reply.WhichOneof("reply") == "error":
        return error_from_proto(reply.error)
    return InfrastructureError("the device answered something else; acquire it again")
