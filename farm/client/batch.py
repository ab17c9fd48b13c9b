"""Many calls in few messages.

Owns: how calls are cut into messages that keep the limits of the wire. Does not own: sending them (`Session`).

Invariant: every message has at least one call, and order is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from farm.api.v1 import session_pb2
from farm.core.wire import MAX_INLINE_BYTES
from farm.errors import InvalidInput

if TYPE_CHECKING:
    from farm.artifact import Signature

MAX_CALLS = 10_000
MIN_CALL_S = 0.01
MAX_BATCH_S = 600.0
MAX_BATCH_BYTES = 16 << 20
"""Arrays that travel inside one message, or inside its reply."""

PlannedCall = tuple[session_pb2.CallRequest, int]
"""A call without its limit, and how many bytes its reply will hold."""


def reply_bytes(signature: Signature) -> int:
    """Return how many bytes of outputs travel inside the reply to one call."""
    sizes = (spec.size_bytes for spec in signature.params if spec.is_output)
    return sum(size for size in sizes if size <= MAX_INLINE_BYTES)


def requests(calls: Iterable[PlannedCall], limit_s: float) -> Iterator[session_pb2.BatchRequest]:
    """Yield the messages for some calls.

    Parameters
    ----------
    limit_s
        For the calls of one message together, shared out evenly; 0.01 to 600 s.

    Raises
    ------
    InvalidInput
        The limit is out of range.
    """
    if not MIN_CALL_S <= limit_s <= MAX_BATCH_S:
        raise InvalidInput(f"batch: limit_s is {limit_s:g}; use {MIN_CALL_S:g} to {MAX_BATCH_S:g}")
    most = min(MAX_CALLS, int(limit_s / MIN_CALL_S))
    part: list[session_pb2.CallRequest] = []
    sent = received = 0
    for call, reply in calls:
        size = call.ByteSize()
        full = max(sent + size, received + reply) > MAX_BATCH_BYTES or len(part) == most
        if part and full:
            yield _request(part, limit_s)
            part, sent, received = [], 0, 0
        part.append(call)
        sent += size
        received += reply
    if part:
        yield _request(part, limit_s)


def _request(calls: list[session_pb2.CallRequest], limit_s: float) -> session_pb2.BatchRequest:
    for call in calls:
        call.limit_s = max(MIN_CALL_S, limit_s / len(calls))
    return session_pb2.BatchRequest(calls=calls)
