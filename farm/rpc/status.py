"""Errors over the wire: a `FarmError` becomes a gRPC status and the same error again.

Owns: the trailing metadata `farm-error-bin`, and what a status without it means.
Does not own: the errors (`farm.errors`), their message (`farm.core.wire`), or when to retry.

Invariant: code, message and details of an error survive the way unless they are over the limits;
whatever a peer sends, the result is a `FarmError`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from farm.api.v1 import error_pb2
from farm.core.wire import cut, error_from_proto, error_to_proto
from farm.errors import (
    Cancelled,
    FarmError,
    InfrastructureError,
    InvalidInput,
    NotAllowed,
    NotFound,
    TimeLimit,
    TrackerUnreachable,
    Unauthenticated,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ERROR_KEY = "farm-error-bin"
STATUS_TEXT_BYTES = 1024
"""Length of the plain status text, which is there for tools that know only gRPC."""


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], error: FarmError) -> NoReturn:
    """End a call of an asyncio server with `error`; never returns."""
    await context.abort(
        status_code(error), cut(error.message, STATUS_TEXT_BYTES), error_metadata(error)
    )
    raise AssertionError("abort returned")


def status_code(error: FarmError) -> grpc.StatusCode:
    """Return the gRPC status of an error."""
    return grpc.StatusCode[error.status]


def error_metadata(error: FarmError) -> tuple[tuple[str, bytes], ...]:
    """Return the trailing metadata that carries an error."""
    return ((ERROR_KEY, error_to_proto(error).SerializeToString(deterministic=True)),)


def error_from_rpc(error: grpc.RpcError, address: str = "") -> FarmError:
    """Return the `FarmError` behind a failed call, synchronous or asyncio.

    Parameters
    ----------
    address
        Whom the call went to, for the message if nobody answered.
    """
    sent = _sent_error(error)
    if sent is not None:
        return sent
    code = error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else None
    text = error.details() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else str(error)
    return _error_of_status(code, cut(text or "", STATUS_TEXT_BYTES), address)


@contextlib.contextmanager
def rpc_errors(address: str = "") -> Iterator[None]:
    """Turn a `grpc.RpcError` raised inside into its `FarmError`; await may stand inside."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_rpc(error, address) from error


def _sent_error(error: grpc.RpcError) -> FarmError | None:
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return None
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_KEY and isinstance(value, bytes):
            try:
                return error_from_proto(error_pb2.Error.FromString(value))
            except DecodeError:
                return None
    return None


_OF_STATUS: Mapping[grpc.StatusCode, tuple[type[FarmError], str]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: (TimeLimit, "raise the time limit of the call"),
    grpc.StatusCode.CANCELLED: (Cancelled, "call again if that was not wanted"),
    grpc.StatusCode.INVALID_ARGUMENT: (InvalidInput, "correct the request"),
    grpc.StatusCode.NOT_FOUND: (NotFound, "check the name"),
    grpc.StatusCode.PERMISSION_DENIED: (NotAllowed, "ask for the right"),
    grpc.StatusCode.UNAUTHENTICATED: (Unauthenticated, "show a token of this farm"),
    grpc.StatusCode.DATA_LOSS: (InfrastructureError, "call again"),
    grpc.StatusCode.ABORTED: (InfrastructureError, "call again"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (
        InfrastructureError,
        "call again later, or send less in one message",
    ),
    grpc.StatusCode.UNIMPLEMENTED: (
        FarmError,
        "run the same version of kernel-farm at both ends",
    ),
}


def _error_of_status(code: grpc.StatusCode | None, text: str, address: str) -> FarmError:
    if code is grpc.StatusCode.UNAVAILABLE:
        where = address or "its address"
        return TrackerUnreachable(
            f"tracker: nobody answers at {where} ({text}); start one with `farm up` or correct the "
            "address",
            address=address,
        )
    name = code.name if code else "no status"
    cls, hint = (
        _OF_STATUS.get(code, (FarmError, "look at the tracker's log"))
        if code
        else (
            FarmError,
            "look at the tracker's log",
        )
    )
    return cls(f"call{f' to {address}' if address else ''}: {name} ({text}); {hint}", grpc=name)
