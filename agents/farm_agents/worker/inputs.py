"""Inputs that a device makes for itself, from a seed.

Owns: the values of each case. Does not own: what functions make of them (`numerics`).

Invariant: arrays depend on the seed, the case and the parameter's name, type and shape alone, so that every process of
every host makes the same ones.
"""

from __future__ import annotations

from enum import StrEnum, unique
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from farm.core.elements import is_float, numpy_dtype

if TYPE_CHECKING:
    from farm.artifact.signature import ParamSpec, Signature

Array = npt.NDArray[Any]

MODERATE = 1000
"""Random integers of more than a byte are at most so large, so that few sums wrap around."""
_TYPICAL = (0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 0.25, -0.25, 3.0, -3.0, 0.0)
"""Sums of products of these are exact in any order: an element that is off by anything is wrong."""


@unique
class Case(StrEnum):
    """One set of inputs."""

    RANDOM = "random"
    TYPICAL = "typical"
    """Few values, zeros among them, exact in any order; integers go to the ends of their ranges."""
    GIVEN = "given"
    """The caller's own."""


GENERATED = (Case.RANDOM, Case.TYPICAL)


def generate(signature: Signature, seed: int, case: Case) -> list[Array]:
    """Return one array for each input or inout, in order."""
    return [_array(spec, seed, case) for spec in signature.inputs]


def _array(spec: ParamSpec, seed: int, case: Case) -> Array:
    source = np.random.default_rng([seed, len(case.value), *spec.name.encode()])
    dtype = numpy_dtype(spec.dtype)
    if dtype.kind == "b":
        return source.integers(0, 2, spec.shape).astype(dtype)
    if is_float(dtype):
        if case is Case.TYPICAL:
            return _chosen(source, np.array(_TYPICAL, dtype), spec)
        exact = dtype if dtype.itemsize >= 4 else np.dtype(np.float32)
        values = source.random(spec.shape, exact)
        values *= 2
        values -= 1
        return values.astype(dtype, copy=False)
    bounds = np.iinfo(dtype)
    if case is Case.TYPICAL:
        ends = [bounds.min, bounds.max, 0, 1, bounds.max // 2, -1 if bounds.min else 2]
        return _chosen(source, np.array(ends, dtype), spec)
    limit = bounds.max if dtype.itemsize == 1 else MODERATE
    return source.integers(max(bounds.min, -limit - 1), limit, spec.shape, dtype, endpoint=True)


def _chosen(source: np.random.Generator, values: Array, spec: ParamSpec) -> Array:
    which = source.integers(0, len(values), spec.shape, np.uint8).reshape(-1)
    chosen: Array = np.empty(spec.shape, values.dtype)
    flat = chosen.reshape(-1)
    for start in range(0, len(flat), _AT_ONCE):  # numpy makes indices of 8 bytes of them
        part = slice(start, start + _AT_ONCE)
        values.take(which[part], out=flat[part], mode="clip")
    return chosen


_AT_ONCE = 1 << 14
