"""Running the reference of a workload.

Owns: what it gives for each case of inputs, and the inputs that candidates need not make again. Does not own: keeping
either (`farm_agents.reference`).

Invariant: inputs are kept before the reference is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from farm.api.v1 import measure_pb2, tensor_pb2
from farm.core.digest import Digest
from farm.core.elements import numpy_dtype
from farm.core.wire import digest_to_proto, tensor_to_proto
from farm.errors import InvalidInput
from farm_agents.worker.subject import cases_of, read_artifact

if TYPE_CHECKING:
    from farm.runtime import Loader
    from farm_agents.worker.blobs import Blobs

Array = npt.NDArray[Any]
KeepBlob = Callable[[memoryview], Digest]

MAX_KEPT_BYTES = 64 << 20
"""Of the inputs of all cases; what is larger would fill the agent's cache, and takes long to call anyway."""

MAX_SENT_BYTES = 16 << 10
"""Of an array that goes to each candidate in its message."""


def expect(
    request: measure_pb2.MeasureRequest, loader: Loader, blobs: Blobs, keep: KeepBlob
) -> list[measure_pb2.ExpectedCase]:
    """Return what the reference gives for each case of a candidate's inputs, and the inputs if devices make them.

    Parameters
    ----------
    keep
        Stores what is too large for a message.
    """
    candidate = read_artifact(request.subject.artifact, blobs).symbols
    signature = candidate.get(request.subject.symbol)
    if signature is None:
        raise InvalidInput(f"{request.subject.symbol}: not in its artifact; name one that is")
    cases = [arrays for _, arrays in cases_of(request.workload, signature, blobs)]
    size_bytes = sum(array.nbytes for arrays in cases for array in arrays)
    is_kept = not request.workload.inputs and size_bytes <= MAX_KEPT_BYTES
    kept = [[_kept(it, keep) for it in arrays] if is_kept else [] for arrays in cases]
    reference = request.workload.reference
    dtypes = [spec.dtype for spec in signature.outputs]
    found = []
    with loader.load(read_artifact(reference.artifact, blobs)) as module:
        types = [spec.dtype for spec in module.function(reference.symbol).signature.inputs]
        for arrays, inputs in zip(cases, kept, strict=True):
            if len(types) != len(arrays):
                raise InvalidInput(
                    f"reference: takes {len(types)} arrays, {request.subject.symbol} takes {len(arrays)}; give one "
                    "that computes the same"
                )
            wide = [
                array.astype(numpy_dtype(dtype)) for array, dtype in zip(arrays, types, strict=True)
            ]
            outputs = module.call(reference.symbol, wide).outputs
            right = [_kept(np.asarray(it), keep) for it in _narrowed(outputs, dtypes)]
            found.append(measure_pb2.ExpectedCase(outputs=right, inputs=inputs))
    return found


def _kept(array: Array, keep: KeepBlob) -> tensor_pb2.Tensor:
    """Return the message for an array; content that is not small is a blob, which each candidate maps."""
    tensor = tensor_to_proto(array, keep)
    if len(tensor.inline) > MAX_SENT_BYTES:
        tensor.blob.CopyFrom(digest_to_proto(keep(memoryview(tensor.inline))))
    return tensor


def _narrowed(outputs: Sequence[Array], dtypes: Sequence[str]) -> tuple[Array, ...]:
    """Return the reference's outputs, as float32 where candidates have no more: half as much for each to read."""
    with np.errstate(over="ignore"):
        return tuple(
            array.astype(np.float32)
            if array.dtype == np.float64 and index < len(dtypes) and dtypes[index] != "float64"
            else array
            for index, array in enumerate(outputs)
        )
