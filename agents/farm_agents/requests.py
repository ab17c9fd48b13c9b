"""Loads, calls and batches of a session: their limits, and the blobs that they name.

Owns: these checks of what clients send and of what workers answer. Does not own: carrying anything out
(`farm_agents.session`).

Invariant: a request that passes is within the limits of the wire.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from farm.api.v1 import session_pb2, tensor_pb2
from farm.core.digest import Digest, digest_of
from farm.core.limits import (
    DEFAULT_LIMIT_S,
    MAX_CALLS,
    MAX_FIRST_OUTPUT_BYTES,
    MAX_FOLLOWS,
    MAX_FUNCTIONS,
    MAX_INLINE_ARTIFACT_BYTES,
    MAX_LIMIT_S,
    MAX_PACKED_BYTES,
    MAX_REPEAT,
    MIN_LIMIT_S,
)
from farm.core.wire import digest_from_proto
from farm.errors import InvalidInput, KernelCrashed

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


def check_load(load: session_pb2.LoadRequest) -> list[Digest]:
    """Return the blobs that loading needs; raises InvalidInput unless what came inline is what it is said to be."""
    digest = digest_from_proto(load.artifact)
    if not load.inline:
        return [digest]
    if len(load.inline) > MAX_INLINE_ARTIFACT_BYTES or digest_of(load.inline) != digest:
        raise InvalidInput(
            f"load: inline artifact of {len(load.inline)} bytes is not {digest} of at most "
            f"{MAX_INLINE_ARTIFACT_BYTES} bytes; store it and send its digest alone"
        )
    return []


def check_first_calls(calls: session_pb2.PackedRequest) -> float:
    """Return the limit in seconds of calls that are made as soon as their module is loaded; raises InvalidInput."""
    limit_s = check_packed(calls)
    size_bytes = output_bytes(calls, len(calls.order))
    if size_bytes > MAX_FIRST_OUTPUT_BYTES:
        raise InvalidInput(
            f"load: its calls give {size_bytes} bytes; make calls of more than {MAX_FIRST_OUTPUT_BYTES} when it is "
            "loaded"
        )
    if calls.follows or any(function.module_id for function in calls.functions):
        raise InvalidInput("load: its calls follow another request or name a module; leave both 0")
    return limit_s


def check_call(call: session_pb2.CallRequest) -> float:
    """Return the limit of a call in seconds; raises InvalidInput if its numbers are out of range."""
    limit_s = _limit(call.limit_s, f"call {call.symbol[:80]}")
    if not 0 <= call.repeat <= MAX_REPEAT:
        raise InvalidInput(
            f"call {call.symbol[:80]}: impossible repeat ({call.repeat}); use 0 to {MAX_REPEAT}"
        )
    return limit_s


def check_packed(packed: session_pb2.PackedRequest) -> float:
    """Return the limit of packed calls in seconds; raises InvalidInput if numbers or bytes do not fit."""
    functions, calls = len(packed.functions), len(packed.order)
    if not 1 <= functions <= MAX_FUNCTIONS or not 1 <= calls <= MAX_CALLS:
        raise InvalidInput(
            f"packed: {calls} calls of {functions} functions; send 1 to {MAX_CALLS} of 1 to {MAX_FUNCTIONS}"
        )
    if max(packed.order) >= functions:
        raise InvalidInput(f"packed: a call of function {max(packed.order)} of {functions}")
    takes = [function.input_bytes for function in packed.functions]
    given, needed = len(packed.inputs), sum(map(takes.__getitem__, packed.order))
    if given != needed:
        raise InvalidInput(
            f"packed: {given} bytes for inputs of {needed}; send exactly what the calls take"
        )
    if max(given, output_bytes(packed, calls)) > MAX_PACKED_BYTES:
        raise InvalidInput(
            f"packed: too large (inputs of {given} and outputs of {output_bytes(packed, calls)} bytes); "
            f"send at most {MAX_PACKED_BYTES} of either"
        )
    return _limit(packed.limit_s, "packed")


def output_bytes(packed: session_pb2.PackedRequest, calls: int) -> int:
    """Return how many bytes the first calls give."""
    gives = [function.output_bytes for function in packed.functions]
    return sum(map(gives.__getitem__, packed.order[:calls]))


def check_follows(follows: int) -> None:
    """Raise InvalidInput if a request goes on from one that is too far back."""
    if follows > MAX_FOLLOWS:
        raise InvalidInput(f"request: follows one {follows} before it; use at most {MAX_FOLLOWS}")


def _limit(limit_s: float, what: str) -> float:
    limit_s = limit_s or DEFAULT_LIMIT_S
    if not MIN_LIMIT_S <= limit_s <= MAX_LIMIT_S:
        raise InvalidInput(
            f"{what}: impossible limit ({limit_s:g} s); use {MIN_LIMIT_S:g} to {MAX_LIMIT_S:g}"
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
