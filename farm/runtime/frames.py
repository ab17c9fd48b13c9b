"""The runner's protocol, as bytes: what `runner.c` says at its top, from this side.

Owns: encoding requests and decoding replies.
Does not own: pipes and processes (`farm.runtime.qemu`).

Invariant: a reply is taken only at the size that the request implies, so a runner gone astray
cannot make this side allocate.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from farm.artifact.abi import DTYPES
from farm.errors import InfrastructureError
from farm.runtime.interface import Array, aligned_empty

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from farm.artifact.signature import ParamSpec, Signature

MAX_FRAME_BYTES = 1 << 34
MAX_NAMES_BYTES = 1 << 24
LENGTH = struct.Struct("<Q")
FIRST = struct.Struct("<iI")
LAST = struct.Struct("<q")

_ROLES = {"input": 1, "output": 2, "inout": 3}
_LIST = struct.pack("<QI", 4, 1)


def list_request() -> bytes:
    """Return the request for the table of functions."""
    return _LIST


def names_of(reply: bytes) -> tuple[str, ...]:
    """Decode the reply to `list_request`, without its length."""
    names: list[str] = []
    try:
        (count,) = struct.unpack_from("<I", reply)
        at = 4
        for _ in range(count):
            (length,) = struct.unpack_from("<I", reply, at)
            names.append(reply[at + 4 : at + 4 + length].decode())
            at += 4 + length
    except (struct.error, UnicodeDecodeError) as error:
        raise astray(f"its table of functions is malformed ({error})") from error
    if at != len(reply):
        raise astray("its table of functions has another length")
    return tuple(names)


def call_request(
    function: int, signature: Signature, inputs: Sequence[Array], repeat: int
) -> Iterator[bytes | memoryview]:
    """Yield the pieces of a call; `inputs` were checked by `check_inputs`."""
    head = struct.pack("<IIII", 2, function, len(signature.params), repeat)
    given = iter(inputs)
    pieces: list[bytes | memoryview] = [head]
    for spec in signature.params:
        pieces.append(_argument(spec))
        if spec.is_input:
            array = np.ascontiguousarray(next(given))
            pieces.append(array.reshape(-1).view(np.uint8).data)
    yield LENGTH.pack(sum(len(piece) for piece in pieces))
    yield from pieces


def request_bytes(signature: Signature) -> int:
    """Return an upper bound of a call's size and of the memory that it takes."""
    return sum(spec.size_bytes + 8192 for spec in signature.params)


def reply_bytes(signature: Signature, repeat: int, code: int) -> int:
    """Return the length of the whole reply to a call whose first return code was `code`."""
    if code != 0:
        return FIRST.size
    outputs = sum(spec.size_bytes for spec in signature.outputs)
    return FIRST.size + outputs + 8 * repeat + LAST.size


def empty_outputs(signature: Signature) -> tuple[Array, ...]:
    """Return arrays to receive outputs into."""
    return tuple(aligned_empty(spec) for spec in signature.outputs)


def astray(what: str) -> InfrastructureError:
    """Return the error for a runner that does not follow the protocol."""
    return InfrastructureError(f"runner: {what}; load the artifact again")


def _argument(spec: ParamSpec) -> bytes:
    code, bits = DTYPES[spec.dtype]
    ndim = len(spec.shape)
    return struct.pack(
        f"<BBBBIQ{ndim}q",
        code,
        bits,
        _ROLES[spec.role],
        ndim,
        spec.alignment_bytes,
        spec.size_bytes,
        *spec.shape,
    )
