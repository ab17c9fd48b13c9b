"""Short calls: small arrays that came inside the message, answered with as little work as can be.

Owns: recognising such a call, and its reply as bytes. Does not own: running (`farm.runtime`), or every other call.

Invariant: `reply` gives exactly the bytes of the CallReply that the long way gives, or None: then the long way decides.
"""

from __future__ import annotations

from farm.api.v1 import session_pb2, tensor_pb2
from farm.core.wire import MAX_INLINE_BYTES
from farm.runtime import LoadedModule
from farm.runtime.interface import ShortCall

Expected = list[tuple[str, list[int], int]]

_LIMIT_TAG = 0x29
_LIMIT_BYTES = 9


class Short:
    """One function of one module. Make one with `short_of`.

    Parameters
    ----------
    heads
        What stands before the content of each output in a CallReply.
    """

    def __init__(self, call: ShortCall, expected: Expected, heads: list[bytes]) -> None:
        self._call = call
        self._expected = expected
        self._heads = heads

    def reply(self, request: session_pb2.CallRequest) -> bytes | None:
        """Call, and return a serialised CallReply; None if this is no short call.

        Raises
        ------
        FarmError
            The kernel failed.
        """
        inputs = request.inputs
        if request.repeat or len(inputs) != len(self._expected):
            return None
        contents = []
        for tensor, (dtype, shape, size_bytes) in zip(inputs, self._expected, strict=True):
            content = tensor.inline
            if len(content) != size_bytes or tensor.dtype != dtype or tensor.shape != shape:
                return None
            contents.append(content)
        return self._reply(contents)

    def alike(self, request: session_pb2.CallRequest) -> Alike:
        """Return how to answer calls that are like this one, which `reply` answered, but for their contents.

        Notes
        -----
        A message is its fields one after the other, in the order of their numbers. All but the contents and the limit
        is the same bytes in each such call, so that comparing bytes takes the place of looking at each field.
        """
        data = request.SerializeToString(deterministic=True)
        pieces, start = [], 0
        for tensor, (_, _, size_bytes) in zip(request.inputs, self._expected, strict=True):
            head = session_pb2.CallRequest(inputs=[tensor]).SerializeToString(deterministic=True)
            end = data.find(head, start) + len(head)
            pieces.append((data[start : end - size_bytes], size_bytes))
            start = end
        return Alike(self, pieces)

    def _reply(self, contents: list[bytes]) -> bytes:
        parts = []
        for head, content in zip(self._heads, self._call(contents), strict=True):
            parts.append(head)
            parts.append(content)
        return b"".join(parts)


class Alike:
    """Calls of one function whose messages differ in nothing but contents and limits."""

    def __init__(self, short: Short, pieces: list[tuple[bytes, int]]) -> None:
        self._short = short
        self._pieces = pieces

    def reply(self, data: bytes) -> bytes | None:
        """Return the serialised CallReply to a serialised CallRequest; None if it is another kind of call.

        Raises
        ------
        FarmError
            The kernel failed.
        """
        contents = []
        start = 0
        for head, size_bytes in self._pieces:
            if not data.startswith(head, start):
                return None
            start += len(head)
            contents.append(data[start : start + size_bytes])
            start += size_bytes
        left = len(data) - start
        if left and (left != _LIMIT_BYTES or data[start] != _LIMIT_TAG):
            return None
        return self._short._reply(contents)


def short_of(module: LoadedModule, symbol: str) -> Short | None:
    """Return how to call a function in short; None if it has to go the long way. Raises NotFound."""
    call = module.short_call(symbol)
    params = module.functions[symbol].signature.params
    if call is None or any(spec.size_bytes > MAX_INLINE_BYTES for spec in params):
        return None
    expected = [(spec.dtype, list(spec.shape), spec.size_bytes) for spec in params if spec.is_input]
    heads = [_head(spec.dtype, spec.shape, spec.size_bytes) for spec in params if spec.is_output]
    return Short(call, expected, heads)


def _head(dtype: str, shape: tuple[int, ...], size_bytes: int) -> bytes:
    """Return what stands before an output's content in a CallReply; it is the same for every call.

    A message is its fields one after the other, and `inline` is the last one of a tensor, so the content ends it.
    """
    tensor = tensor_pb2.Tensor(dtype=dtype, shape=shape, inline=bytes(size_bytes))
    reply = session_pb2.CallReply(outputs=[tensor])
    return reply.SerializeToString(deterministic=True)[:-size_bytes]
