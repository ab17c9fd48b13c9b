"""The element types of arrays, by name.

Owns: which names there are, and numpy's type behind each. Does not own: what the types mean in a function
(`farm.ir.dtype`), or DLPack's codes (`farm.artifact.abi`).

Invariant: a name is `numpy_dtype(name).name`. numpy itself has no bfloat16; ``ml_dtypes`` adds it, and is loaded with
the first use.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy type of a name in `NAMES`."""
    kind: Any = name
    if name == "bfloat16":
        import ml_dtypes

        kind = ml_dtypes.bfloat16
    found: np.dtype[Any] = np.dtype(kind)
    return found


def is_float(dtype: np.dtype[Any]) -> bool:
    """Tell whether a numpy type is one of floats; numpy counts bfloat16 as opaque."""
    return dtype.kind == "f" or dtype.name == "bfloat16"
