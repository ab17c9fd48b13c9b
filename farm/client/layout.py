"""How the arrays of a short call stand in a string of bytes.

Owns: packing inputs, and making arrays of outputs. Does not own: messages (`farm.client.batch`).

Invariant: what is packed has exactly the sizes that the signature says, and is a copy: changing an array afterwards
changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from farm.artifact import Signature
from farm.artifact.signature import ParamSpec, check_inputs
from farm.core.elements import numpy_dtype
from farm.core.limits import MAX_INLINE_BYTES

Spec = tuple[npt.DTypeLike, tuple[int, ...], int]
"""Element type, shape, and size in bytes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The arrays of one function's calls. Make one with `layout_of`."""

    symbol: str
    signature: Signature
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    input_bytes: int
    output_bytes: int

    def pack(self, arrays: Sequence[Any]) -> list[bytes]:
        """Return the content of each array; raises InvalidArguments if they do not fit the signature."""
        parts = []
        if len(arrays) != len(self.inputs):
            check_inputs(self.symbol, self.signature, arrays)
        for array, (dtype, shape, _) in zip(arrays, self.inputs):  # noqa: B905 - checked; it costs
            # The full check costs more than all the rest, so that it is left to what does not fit at first sight.
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                check_inputs(self.symbol, self.signature, arrays)
            parts.append(array.tobytes())
        return parts

    def unpack(self, outputs: bytes | bytearray, start: int = 0) -> Any:  # noqa: ANN401 - one array or several
        """Return what a call gave: its array, or a tuple if there are several."""
        arrays = []
        for dtype, shape, size in self.outputs:
            flat = np.frombuffer(outputs, dtype, math.prod(shape), start)
            arrays.append(flat.reshape(shape).copy())
            start += size
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    def unpack_all(self, outputs: bytes, calls: int) -> list[Any]:
        """Return what several calls gave."""
        if len(self.outputs) == 1:
            ((dtype, shape, _),) = self.outputs
            if shape:  # else numpy would give scalars
                return list(np.frombuffer(bytearray(outputs), dtype).reshape(calls, *shape))
        return [self.unpack(outputs, number * self.output_bytes) for number in range(calls)]


def layout_of(symbol: str, signature: Signature) -> Layout | None:
    """Return the layout of a function's calls; None if its arrays are too large to travel in a message."""
    if any(spec.size_bytes > MAX_INLINE_BYTES for spec in signature.params):
        return None
    return Layout(
        symbol,
        signature,
        tuple(map(_spec, signature.inputs)),
        tuple(map(_spec, signature.outputs)),
        sum(spec.size_bytes for spec in signature.inputs),
        sum(spec.size_bytes for spec in signature.outputs),
    )


def _spec(spec: ParamSpec) -> Spec:
    return numpy_dtype(spec.dtype), spec.shape, spec.size_bytes
