"""Calls and batches of a session: their limits, and the blobs that they name.

Owns: these checks of what clients send and of what workers answer. Does not own: carrying anything out
(`farm_agents.session`).

Invariant: a request that passes is within the limits of the wire.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from farm.api.v1 import session_pb2, tensor_pb2
from farm.core.digest import Digest
from farm.core.wire import digest_from_proto
from farm.errors import InvalidInput, KernelCrashed

DEFAULT_LIMIT_S = 30.0
MIN_LIMIT_S, MAX_LIMIT_S = 0.01, 600.0
MAX_REPEAT = 10_000
MAX_CALLS = 10_000
MAX_BATCH_BYTES = 48 << 20
"""A batch with all arrays in it, below the limit of a message."""


def blobs_of(tensors: Iterable[tensor_pb2.Tensor]) -> list[Digest]:
    """Return the blobs that hold some of these arrays; raises InvalidInput if a digest is malformed."""
    # Most arrays came inside the message, and looking at their content is what costs least.
    return [
        digest_from_proto(tensor.blob)
        for tensor in tensors
        if not tensor.inline and tensor.HasField("blob")
    ]


def check_call(call: session_pb2.CallRequest) -> float:
    """Return the limit of a call in seconds; raises InvalidInput if its numbers are out of range."""
    limit_s = call.limit_s or DEFAULT_LIMIT_S
    if not MIN_LIMIT_S <= limit_s <= MAX_LIMIT_S:
        raise InvalidInput(
            f"call {call.symbol[:80]}: impossible limit ({call.limit_s:g} s); use "
            f"{MIN_LIMIT_S:g} to {MAX_LIMIT_S:g}"
        )
    if not 0 <= call.repeat <= MAX_REPEAT:
        raise InvalidInput(
            f"call {call.symbol[:80]}: impossible repeat ({call.repeat}); use 0 to {MAX_REPEAT}"
        )
    return limit_s


def check_batch(batch: session_pb2.BatchRequest) -> float:
    """Return the limit of a batch in seconds; raises InvalidInput if a number is out of range."""
    if not 1 <= len(batch.calls) <= MAX_CALLS:
        raise InvalidInput(f"batch: {len(batch.calls)} calls; send 1 to {MAX_CALLS}")
    if batch.ByteSize() > MAX_BATCH_BYTES:
        raise InvalidInput(
            f"batch: too large ({batch.ByteSize()} bytes); send at most {MAX_BATCH_BYTES}"
        )
    limit_s = sum(map(check_call, batch.calls))
    if limit_s > MAX_LIMIT_S * (1 + 1e-9):
        raise InvalidInput(
            f"batch: the limits of all calls together are {limit_s:g} s; use at most {MAX_LIMIT_S:g}"
        )
    return limit_s


def batch_reply(data: bytes, most: int) -> session_pb2.BatchReply:
    """Return the replies of a batch, which a worker wrote; raises KernelCrashed if it cannot be them."""
    try:
        batch = session_pb2.BatchReply.FromString(data)
    except DecodeError as error:
        raise KernelCrashed("batch: the kernel broke the worker's replies; fix it") from error
    if len(batch.replies) > most or batch.HasField("error"):
        raise KernelCrashed("batch: the kernel forged the worker's replies; fix it")
    return batch
