"""gRPC as the farm uses it: channels, errors over the wire, blob transfers.

Owns: channel and server options, how a `FarmError` becomes a status and back, moving blobs in
chunks.
Does not own: the services (tracker, agents, client) or the messages (`farm.api.v1`).

Invariant: nothing but `FarmError` leaves a call made through `rpc_errors` or `farm.rpc.blobs`.
"""

from farm.core.wire import (
    digest_from_proto,
    digest_to_proto,
    error_from_proto,
    error_to_proto,
)
from farm.rpc.authorised import TokenSource
from farm.rpc.channels import aio_channel, channel, server_options
from farm.rpc.credentials import Credentials
from farm.rpc.status import (
    abort_with,
    error_from_rpc,
    rpc_errors,
)

__all__ = [
    "Credentials",
    "TokenSource",
    "abort_with",
    "aio_channel",
    "channel",
    "digest_from_proto",
    "digest_to_proto",
    "error_from_proto",
    "error_from_rpc",
    "error_to_proto",
    "rpc_errors",
    "server_options",
]
