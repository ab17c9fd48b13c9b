"""What the agent and a zygote tell each other: one JSON object a packet of a SOCK_SEQPACKET socket.

Owns: the messages and their checks. Does not own: what a child does on its own channel.

Invariant: a packet that is not exactly one of these messages is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from farm.core.digest import canonical_json
from farm.errors import InfrastructureError

MAX_PACKET_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Fork:
    """To the zygote: fork child number `child`; its channel comes as the first descriptor with this packet.

    An empty `config` makes a plain child. For one in a sandbox it has ``limits`` (of `resource`) and the whole
    ``environment``, and these descriptors follow: where it prints, a pidfd of the sandbox's first process, and
    ``cgroup.procs`` files to join. What the child is to do comes on its channel: a JSON frame.
    """

    child: int
    config: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Kill:
    """To the zygote: kill the child and all its descendants; Exited answers when they are gone."""

    child: int


@dataclass(frozen=True, slots=True)
class Ready:
    """From the zygote: everything is imported and was used once; forks are cheap from now on."""

    pid: int


@dataclass(frozen=True, slots=True)
class Forked:
    """From the zygote: the child runs."""

    child: int
    pid: int


@dataclass(frozen=True, slots=True)
class Exited:
    """From the zygote: the child and all its descendants are gone; `status` is as from waitpid."""

    child: int
    status: int


Message = Fork | Kill | Ready | Forked | Exited

_TYPES: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Fork, Kill, Ready, Forked, Exited)
}


def encode(message: Message) -> bytes:
    """Return the packet of a message; InfrastructureError if it is over the limit."""
    packet = canonical_json({"type": type(message).__name__, **asdict(message)})
    if len(packet) > MAX_PACKET_BYTES:
        raise InfrastructureError(
            f"worker control: packet too large ({len(packet)} bytes); keep it below {MAX_PACKET_BYTES}"
        )
    return packet


def decode(packet: bytes) -> Message:
    """Return the message of a packet; InfrastructureError if it is none."""
    try:
        value = json.loads(packet)
        kind = _TYPES[value.pop("type")]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _malformed(packet) from error
    expected = {field.name: field.type for field in fields(kind)}
    if not isinstance(value, dict) or value.keys() != expected.keys():
        raise _malformed(packet)
    for name, item in value.items():
        wanted = int if expected[name] == "int" else dict
        if type(item) is not wanted:
            raise _malformed(packet)
    return kind(**value)


def _malformed(packet: bytes) -> InfrastructureError:
    return InfrastructureError(
        f"worker control: malformed packet ({packet[:120]!r}); start the worker again"
    )
