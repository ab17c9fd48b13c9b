"""Digests, arrays and errors on the wire.

Owns: the messages `Digest`, `Tensor` and `Error` and the Python values behind them. Loads no gRPC, so that workers can
use it. Does not own: moving blobs (`farm.rpc.blobs`), gRPC status (`farm.rpc.status`), or what a function expects
(`farm.artifact.signature`).

Invariant: `digest_from_proto(digest_to_proto(d)) == d`; an array has exactly its message's dtype and shape, and content
above `MAX_INLINE_BYTES` is a blob; code, message and details of an error survive unless they are over the limits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from farm.api.v1 import digest_pb2, error_pb2, tensor_pb2
from farm.core.digest import Digest
from farm.core.elements import NAMES, numpy_dtype
from farm.core.limits import (
    MAX_CODE_BYTES,
    MAX_DETAIL_BYTES,
    MAX_DETAILS,
    MAX_ERROR_BYTES,
    MAX_INLINE_BYTES,
    MAX_RANK,
    MAX_TENSOR_BYTES,
)
from farm.errors import FarmError, InvalidArguments, error_class

Array = npt.NDArray[Any]

_NAMES = {np.dtype(name): name for name in NAMES if name != "bfloat16"}
"""numpy works out a name anew each time it is asked."""


def digest_to_proto(digest: Digest) -> digest_pb2.Digest:
    """Return the message for a digest."""
    return digest_pb2.Digest(sha256=digest.sha256, size_bytes=digest.size_bytes)


def digest_from_proto(message: digest_pb2.Digest) -> Digest:
    """Return the digest that a message holds; raises InvalidInput if it is malformed or unset."""
    return Digest(message.sha256, message.size_bytes)


def tensor_to_proto(array: Array, keep_blob: Callable[[memoryview], Digest]) -> tensor_pb2.Tensor:
    """Return the message for an array.

    Parameters
    ----------
    keep_blob
        Stores content that is too large to travel inline, and returns its digest. It is given a view of the array.

    Raises
    ------
    InvalidArguments
        Arrays of this dtype do not travel.
    """
    name = _NAMES.get(array.dtype) or array.dtype.name
    if name not in NAMES:
        raise InvalidArguments(
            f"array: dtype {array.dtype} cannot be sent; convert it to one of {', '.join(NAMES)}"
        )
    dense = np.ascontiguousarray(array, dtype=_on_wire(name))
    tensor = tensor_pb2.Tensor(dtype=name, shape=array.shape)
    if dense.nbytes > MAX_INLINE_BYTES:
        tensor.blob.CopyFrom(digest_to_proto(keep_blob(dense.reshape(-1).view(np.uint8).data)))
    else:
        tensor.inline = dense.tobytes()
    return tensor


def tensor_from_proto(
    tensor: tensor_pb2.Tensor, read_blob: Callable[[Digest], bytes | memoryview], what: str
) -> Array:
    """Return the array of a message; it shares the bytes of the message or blob, and is writeable if they are.

    Parameters
    ----------
    read_blob
        Fetches content that did not travel inline.
    what
        What the array is, for messages, such as ``input 0``.

    Raises
    ------
    InvalidArguments
        The dtype is unknown, or shape and content do not fit each other.
    """
    if tensor.dtype not in NAMES:
        raise InvalidArguments(
            f"{what}: unknown dtype ({tensor.dtype[:40]!r}); use one of {', '.join(NAMES)}"
        )
    dtype, shape = _on_wire(tensor.dtype), tuple(tensor.shape)
    if len(shape) > MAX_RANK or any(extent < 0 for extent in shape):
        raise InvalidArguments(
            f"{what}: impossible shape ({shape[:MAX_RANK]}); use at most {MAX_RANK} extents, each >= 0"
        )
    size_bytes = math.prod(shape) * dtype.itemsize
    in_store = tensor.WhichOneof("content") == "blob"
    given = tensor.blob.size_bytes if in_store else len(tensor.inline)
    if given != size_bytes or size_bytes > MAX_TENSOR_BYTES:
        raise InvalidArguments(
            f"{what}: content does not fit ({given} bytes for {tensor.dtype}{list(shape)}, which needs "
            f"{size_bytes}); send exactly that, at most {MAX_TENSOR_BYTES}"
        )
    data = read_blob(digest_from_proto(tensor.blob)) if in_store else tensor.inline
    return np.frombuffer(data, dtype).reshape(shape)


@functools.cache
def _on_wire(name: str) -> np.dtype[Any]:
    return numpy_dtype(name).newbyteorder("<")


_CUT = "..."


def error_message(code: str, message: str, details: Iterable[tuple[str, str]]) -> error_pb2.Error:
    """Return the message for an error given by its parts, cut to the limits of the wire."""
    return error_pb2.Error(
        code=cut(code, MAX_CODE_BYTES),
        message=cut(message, MAX_ERROR_BYTES),
        details={
            cut(key, MAX_CODE_BYTES): cut(value, MAX_DETAIL_BYTES)
            for key, value in list(details)[:MAX_DETAILS]
        },
    )


def error_parts(message: error_pb2.Error) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Return code, message and sorted details of an error, cut to the limits whatever was sent."""
    details = (
        (cut(key, MAX_CODE_BYTES), cut(value, MAX_DETAIL_BYTES))
        for key, value in sorted(message.details.items())[:MAX_DETAILS]
    )
    code = cut(message.code, MAX_CODE_BYTES)
    return code, cut(message.message, MAX_ERROR_BYTES), tuple(details)


def error_to_proto(error: FarmError) -> error_pb2.Error:
    """Return the message for an error, cut to the limits of the wire."""
    code = error.details.get("code", error.code) if type(error) is FarmError else error.code
    return error_message(code, error.message, error.details.items())


def error_from_proto(message: error_pb2.Error) -> FarmError:
    """Return the error that a message holds.

    A code that is unknown here gives a plain `FarmError` that keeps it in ``details['code']``.
    """
    code, text, details = error_parts(message)
    cls = error_class(code)
    error = cls(text)
    error.details = dict(details)
    if code != cls.code:
        error.details["code"] = code
    return error


def cut(text: str, limit_bytes: int) -> str:
    """Return a text that has at most so many bytes, with a mark at its end if some are gone."""
    data = text.encode(errors="replace")
    if len(data) <= limit_bytes:
        return data.decode()
    return data[: limit_bytes - len(_CUT)].decode(errors="ignore") + _CUT
