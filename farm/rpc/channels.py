"""Channels and servers: addresses and gRPC options, the same for everybody.

Owns: limits, keepalive and reconnection of every connection of the farm.
Does not own: credentials or which services a server has.

Invariant: both ends of a connection have the same limits, and pings that one end sends the other
end allows.
"""

from __future__ import annotations

import re

import grpc

from farm.errors import InvalidInput

MAX_MESSAGE_BYTES = 64 << 20
"""Largest message either way; anything larger travels as a blob."""
MAX_METADATA_BYTES = 256 << 10
"""Room for one `farm-error-bin` of full length."""
KEEPALIVE_S = 10.0
KEEPALIVE_TIMEOUT_S = 5.0
RECONNECT_MIN_S = 0.2
RECONNECT_MAX_S = 2.0

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9]([A-Za-z0-9.-]{0,252})):([0-9]{1,5})")

_COMMON: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", 2 * MAX_METADATA_BYTES),
    ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
)


def channel_options() -> list[tuple[str, int]]:
    """Return the options of every channel.

    Proxies named in the environment are not used: a farm's addresses are its own network's.
    """
    return [
        *_COMMON,
        ("grpc.enable_http_proxy", 0),
        ("grpc.initial_reconnect_backoff_ms", int(RECONNECT_MIN_S * 1000)),
        ("grpc.min_reconnect_backoff_ms", int(RECONNECT_MIN_S * 1000)),
        ("grpc.max_reconnect_backoff_ms", int(RECONNECT_MAX_S * 1000)),
    ]


def server_options() -> list[tuple[str, int]]:
    """Return the options of every server; a port that is taken is an error, never shared."""
    return [
        *_COMMON,
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", int(KEEPALIVE_S * 500)),
    ]


def channel(address: str) -> grpc.Channel:
    """Open a channel for synchronous calls; it connects with the first call.

    Parameters
    ----------
    address
        ``host:port``, with an IPv6 address in brackets.

    Raises
    ------
    InvalidInput
        The address is malformed.
    """
    return grpc.insecure_channel(check_address(address), options=channel_options())


def aio_channel(address: str) -> grpc.aio.Channel:
    """Open a channel for asyncio; otherwise as `channel`."""
    return grpc.aio.insecure_channel(check_address(address), options=channel_options())


def check_address(address: str) -> str:
    """Return `address`, or raise InvalidInput if it is not ``host:port``."""
    match = _ADDRESS.fullmatch(address)
    if not match or not 0 < int(match[3]) < 1 << 16:
        raise InvalidInput(f"address: malformed ({address[:300]!r}); use host:port")
    return address
