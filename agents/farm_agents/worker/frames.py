"""Frames of a worker's channel: a length of 4 bytes, little-endian, then that many bytes of one protobuf message.

Owns: writing and reading frames on a stream socket, with the size limit.
Does not own: the messages (`farm.api.v1.session_pb2` for sessions, `agent_pb2` for builds).

Invariant: a frame over the limit is refused before any of it is read into memory.
"""

from __future__ import annotations

import asyncio
import socket
import struct

from farm.errors import InfrastructureError

MAX_FRAME_BYTES = 64 << 20
"""Large content travels as blobs, so that this is ample."""

MAX_JOINED_BYTES = 64 << 10
"""Above it, a copy costs more than a second write."""

_LENGTH = struct.Struct("<I")


def write_frame(channel: socket.socket, data: bytes) -> None:
    """Write one frame.

    Raises
    ------
    InfrastructureError
        The message is over the limit.
    OSError
        The peer is gone.
    """
    for part in frame_parts(data):
        channel.sendall(part)


def read_frame(channel: socket.socket) -> bytes | None:
    """Read one frame; None if the peer ended the channel before it began.

    Raises
    ------
    InfrastructureError
        The frame is over the limit, or the channel ended inside it.
    """
    head = _read_exactly(channel, _LENGTH.size)
    if not head:
        return None
    size = decode_length(bytes(head))
    body = _read_exactly(channel, size)
    if len(body) != size:
        raise InfrastructureError(
            f"worker channel: ended inside a frame ({len(body)} of {size} bytes); start the worker again"
        )
    return bytes(body)


async def read_frame_async(reader: asyncio.StreamReader) -> bytes | None:
    """Read one frame as `read_frame` does, from the agent's end."""
    try:
        head = await reader.readexactly(_LENGTH.size)
        return await reader.readexactly(decode_length(head))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def frame_parts(data: bytes) -> tuple[bytes, ...]:
    """Return what to write, one after the other, for one frame; InfrastructureError if it is over the limit.

    A small frame is one part, so that its reader is woken once.
    """
    _check(len(data))
    head = _LENGTH.pack(len(data))
    return (head + data,) if len(data) <= MAX_JOINED_BYTES else (head, data)


def decode_length(head: bytes) -> int:
    """Return the size that the head of a frame tells; InfrastructureError if it is over the limit."""
    size_bytes: int = _LENGTH.unpack(head)[0]
    _check(size_bytes)
    return size_bytes


def _check(size_bytes: int) -> None:
    if size_bytes > MAX_FRAME_BYTES:
        raise InfrastructureError(
            f"worker channel: frame too large ({size_bytes} bytes); send content above "
            f"{MAX_FRAME_BYTES} bytes as blobs"
        )


def _read_exactly(channel: socket.socket, size: int) -> bytearray:
    buffer = bytearray(size)
    view, filled = memoryview(buffer), 0
    while filled < size:
        count = channel.recv_into(view[filled:])
        if count == 0:
            break
        filled += count
    view.release()
    del buffer[filled:]
    return buffer
