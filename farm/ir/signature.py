"""The signature of a function, as artifacts and callers see it.

Owns: nothing but this step between two rooms: `farm.ir` and `farm.artifact`.

Invariant: it depends on the parameters alone.
"""

from __future__ import annotations

from farm.artifact.signature import ParamSpec, Signature
from farm.ir.function import Function


def signature_of(function: Function) -> Signature:
    """Return what a function takes and gives."""
    return Signature(
        tuple(
            ParamSpec(
                name=param.buffer.name,
                dtype=str(param.buffer.dtype),
                shape=param.buffer.shape,
                role=param.role.value,
                align_bytes=param.buffer.align_bytes,
            )
            for param in function.params
        )
    )
