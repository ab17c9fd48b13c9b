"""Errors as data: between exceptions, the core's `Failed`, and the wire's Error.

Owns: these conversions, on both sides of a worker's channel. Does not own: gRPC status (`farm.rpc`).

Invariant: code, message and details survive each conversion; a message is cut at 64 KiB.
"""

from __future__ import annotations

from farm.api.v1 import error_pb2
from farm.errors import FarmError
from farm_agents.state.model import Failed

MAX_MESSAGE_BYTES = 64 << 10


def failed_from(error: FarmError) -> Failed:
    """Return an error as data."""
    return Failed(error.code, error.message, tuple(sorted(error.details.items())))


def failed_from_proto(message: error_pb2.Error) -> Failed:
    """Return the data of a message."""
    return Failed(message.code, message.message, tuple(sorted(message.details.items())))


def failed_to_proto(failed: Failed) -> error_pb2.Error:
    """Return the message of an error; a text that is too long is cut."""
    text = failed.message.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
    return error_pb2.Error(code=failed.code, message=text, details=dict(failed.details))


def error_to_proto(error: FarmError) -> error_pb2.Error:
    """Return the message of an exception."""
    return failed_to_proto(failed_from(error))
