"""Channels and servers: addresses and gRPC options, the same for everybody.

Owns: limits, keepalive and reconnection of every connection of the farm, and TLS of clients.
Does not own: credentials (`farm.rpc.credentials`) or which services a server has.

Invariant: both ends of a connection have the same limits, and pings that one end sends the other
end allows.
"""

from __future__ import annotations

import re

import grpc

from farm.core.limits import MAX_MESSAGE_BYTES
from farm.errors import InvalidInput
from farm.rpc import credentials as keys
from farm.rpc.authorised import AuthorisedAioChannel, AuthorisedChannel, TokenSource
from farm.rpc.credentials import Credentials

MAX_METADATA_BYTES = 256 << 10
"""Room for one `farm-error-bin` of full length."""
MAX_REQUEST_METADATA_BYTES = 16 << 10
"""What a server reads of a call before it knows who calls: room for a token and gRPC's own."""
HANDSHAKE_S = 5.0
"""How long TLS and HTTP/2 may take to begin."""
MAX_STREAMS = 1024
"""Calls at a time on one connection."""
MAX_CONNECTIONS = 4096
"""Connections of a server at a time."""
MAX_IDLE_S = 600.0
"""A connection without a call for so long is closed; a client dials again by itself."""
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
        *(option for option in _COMMON if "metadata" not in option[0]),
        ("grpc.max_metadata_size", MAX_REQUEST_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", 2 * MAX_REQUEST_METADATA_BYTES),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
        ("grpc.max_connection_idle_ms", int(MAX_IDLE_S * 1000)),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", int(KEEPALIVE_S * 500)),
    ]


def channel(
    address: str, *, credentials: Credentials | None = None, token: TokenSource | None = None
) -> grpc.Channel:
    """Open a channel for synchronous calls; it connects with the first call.

    Parameters
    ----------
    address
        ``host:port``, with an IPv6 address in brackets.
    credentials
        None: this user's own for the address (`farm.rpc.credentials.find`).
    token
        Gives the token for each call, instead of the one in `credentials`.

    Raises
    ------
    InvalidInput
        The address, or what is kept of credentials, is malformed.
    NotAllowed
        It would cross a network in plain text.
    """
    ca, source = _parts(check_address(address), credentials, token)
    if ca:
        opened = grpc.secure_channel(address, _tls(ca), options=[*channel_options(), _NAME])
    else:
        opened = grpc.insecure_channel(address, options=channel_options())
    return AuthorisedChannel(opened, source)


def aio_channel(
    address: str, *, credentials: Credentials | None = None, token: TokenSource | None = None
) -> grpc.aio.Channel:
    """Open a channel for asyncio; otherwise as `channel`."""
    ca, source = _parts(check_address(address), credentials, token)
    if ca:
        opened = grpc.aio.secure_channel(address, _tls(ca), options=[*channel_options(), _NAME])
    else:
        opened = grpc.aio.insecure_channel(address, options=channel_options())
    return AuthorisedAioChannel(opened, source)


_NAME = ("grpc.ssl_target_name_override", keys.CERTIFICATE_NAME)


def _parts(
    address: str, credentials: Credentials | None, token: TokenSource | None
) -> tuple[bytes, TokenSource]:
    ca = (keys.find(address) if credentials is None else credentials).ca
    keys.check_may_send(address, ca)
    if token is not None:
        return ca, token
    if credentials is None:
        return ca, keys.token_source(address)
    text = credentials.token
    return ca, lambda: text


def _tls(ca: bytes) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(root_certificates=ca)


def check_address(address: str) -> str:
    """Return `address`, or raise InvalidInput if it is not ``host:port``."""
    match = _ADDRESS.fullmatch(address)
    if not match or not 0 < int(match[3]) < 1 << 16:
        raise InvalidInput(f"address: malformed ({address[:300]!r}); use host:port")
    return address
