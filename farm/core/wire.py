"""Digests and arrays on the wire.

Owns: the messages `Digest` and `Tensor` and the Python values behind them. Loads no gRPC, so that workers can use it.
Does not own: moving blobs (`farm.rpc.blobs`) or what a function expects (`farm.artifact.signature`).

Invariant: `digest_from_proto(digest_to_proto(d)) == d`; an array has exactly its message's dtype and shape, and content
above `MAX_INLINE_BYTES` is a blob.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from farm.api.v1 import digest_pb2, tensor_pb2
from farm.core.digest import Digest
from farm.core.limits import MAX_INLINE_BYTES, MAX_RANK, MAX_TENSOR_BYTES
from farm.errors import InvalidArguments

Array = npt.NDArray[Any]

DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float32", "float64"),
    )
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
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
    if name not in DTYPES:
        raise InvalidArguments(
            f"array: dtype {array.dtype} cannot be sent; convert it to one of {', '.join(DTYPES)}"
        )
    dense = np.ascontiguousarray(array, dtype=DTYPES[name])
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
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise InvalidArguments(
            f"{what}: unknown dtype ({tensor.dtype[:40]!r}); use one of {', '.join(DTYPES)}"
        )
    shape = tuple(tensor.shape)
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
