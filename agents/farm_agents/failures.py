"""Errors as data: between exceptions, the core's `Failed`, and the wire's Error.

Owns: these conversions of `Failed`. Does not own: the wire's form and limits (`farm.core.wire`), or gRPC status.

Invariant: code, message and details survive each conversion unless they are over the wire's limits.
"""

from __future__ import annotations

from farm.api.v1 import error_pb2
from farm.core.wire import error_message, error_parts
from farm.errors import FarmError
from farm_agents.state.model import Failed


def failed_from(error: FarmError) -> Failed:
    """Return an error as data."""
    return Failed(error.code, error.message, tuple(sorted(error.details.items())))


def failed_from_proto(message: error_pb2.Error) -> Failed:
    """Return the data of a message."""
    return Failed(*error_parts(message))


def failed_to_proto(failed: Failed) -> error_pb2.Error:
    """Return the message of an error."""
    return error_message(failed.code, failed.message, failed.details)
