"""Channels that show a token with every call.

Owns: putting the token into a call's metadata. Does not own: where it comes from (`farm.rpc.credentials`).

Invariant: the token is asked for anew with each call, so that a changed one is used at once.

Notes
-----
gRPC's own interceptors would do the same; on asyncio streams they put a queue between the caller and the
call, and its call credentials work on encrypted channels only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

TokenSource = Callable[[], str]
TOKEN_KEY = "authorization"
SCHEME = "Bearer "


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata that shows a token; none for an empty one."""
    return ((TOKEN_KEY, SCHEME + token),) if token else ()


class _Call:
    """One method of a channel."""

    __slots__ = ("_inner", "_token")

    def __init__(self, inner: Any, token: TokenSource) -> None:  # noqa: ANN401 - of either kind of channel
        self._inner = inner
        self._token = token

    def __call__(self, *args: Any, metadata: Any = None, **options: Any) -> Any:  # noqa: ANN401
        return self._inner(*args, metadata=self._with(metadata), **options)

    def with_call(self, *args: Any, metadata: Any = None, **options: Any) -> Any:  # noqa: ANN401
        return self._inner.with_call(*args, metadata=self._with(metadata), **options)

    def future(self, *args: Any, metadata: Any = None, **options: Any) -> Any:  # noqa: ANN401
        return self._inner.future(*args, metadata=self._with(metadata), **options)

    def _with(self, metadata: Any) -> tuple[Any, ...]:  # noqa: ANN401
        return (*bearer(self._token()), *(metadata or ()))


class AuthorisedChannel(grpc.Channel):
    """A synchronous channel whose calls show a token."""

    def __init__(self, inner: grpc.Channel, token: TokenSource) -> None:
        self._inner = inner
        self._token = token

    def unary_unary(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """As of any channel."""
        return _Call(self._inner.unary_unary(*args, **options), self._token)

    def unary_stream(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """As of any channel."""
        return _Call(self._inner.unary_stream(*args, **options), self._token)

    def stream_unary(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """As of any channel."""
        return _Call(self._inner.stream_unary(*args, **options), self._token)

    def stream_stream(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """As of any channel."""
        return _Call(self._inner.stream_stream(*args, **options), self._token)

    def subscribe(self, callback: Any, try_to_connect: Any = False) -> None:  # noqa: ANN401
        """As of any channel."""
        self._inner.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Any) -> None:  # noqa: ANN401
        """As of any channel."""
        self._inner.unsubscribe(callback)

    def close(self) -> None:
        """Close it."""
        self._inner.close()

    def __enter__(self) -> AuthorisedChannel:
        """Return this channel."""
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:  # noqa: ANN401
        """Close it."""
        self._inner.close()


class AuthorisedAioChannel(grpc.aio.Channel):
    """An asyncio channel whose calls show a token."""

    def __init__(self, inner: grpc.aio.Channel, token: TokenSource) -> None:
        self._inner = inner
        self._token = token

    def unary_unary(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """As of any channel."""
        return _Call(self._inner.unary_unary(*args, **options), self._token)

    def unary_stream(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """As of any channel."""
        return _Call(self._inner.unary_stream(*args, **options), self._token)

    def stream_unary(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """As of any channel."""
        return _Call(self._inner.stream_unary(*args, **options), self._token)

    def stream_stream(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """As of any channel."""
        return _Call(self._inner.stream_stream(*args, **options), self._token)

    async def close(self, grace: float | None = None) -> None:
        """Close it."""
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """As of any channel."""
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """As of any channel."""
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """As of any channel."""
        await self._inner.channel_ready()

    async def __aenter__(self) -> AuthorisedAioChannel:
        """Return this channel."""
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:  # noqa: ANN401
        """Close it."""
        await self._inner.close()
