"""What a value of a graph is: shape, element type, and what its integers stand for.

Owns: types of values and their limits. Does not own: what operators make of them (`farm.graph.operators`).

Invariant: a type that exists is within the limits, and its quantisation fits its shape.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from farm.errors import InvalidGraph
from farm.ir import DType
from farm.ir.buffer import MAX_ELEMENTS, MAX_RANK
from farm.ir.dtype import as_dtype

Array = npt.NDArray[Any]

NAME = re.compile(r"[ -~]{1,256}")
MAX_CHANNELS = 1 << 16


def check_label(what: str, name: object) -> str:
    """Return a name of a graph, node or value; refuse what is no printable text of 1 to 256 letters."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidGraph(
            f"{what}: bad name ({str(name)[:80]!r}); use 1 to 256 printable ASCII letters"
        )
    return name


@dataclass(frozen=True, slots=True)
class Quantisation:
    """What integers stand for: ``real = scale * (integer - zero_point)``.

    Attributes
    ----------
    scales, zero_points
        One of each for the whole tensor, or one for each place on `axis`. Scales are positive and finite.
    axis
        None: one for the whole tensor. Counted from the front.
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int | None = None

    def __post_init__(self) -> None:
        count = len(self.scales)
        if not 1 <= count <= MAX_CHANNELS or len(self.zero_points) != count:
            raise InvalidGraph(
                f"quantisation: {count} scales and {len(self.zero_points)} zero points; "
                f"use as many of each, 1 to {MAX_CHANNELS}"
            )
        if self.axis is None and count > 1:
            raise InvalidGraph(f"quantisation: {count} scales without an axis; name the axis")
        if any(type(zero) is not int for zero in self.zero_points):
            raise InvalidGraph(f"quantisation: zero points {self.zero_points!r:.80}; use integers")
        for scale in self.scales:
            if not isinstance(scale, int | float) or not (scale > 0 and math.isfinite(scale)):
                raise InvalidGraph(f"quantisation: scale {scale}; use positive, finite numbers")

    def __str__(self) -> str:
        """Return ``scale 0.1 zero 0``, or how many there are on which axis."""
        if self.axis is not None:
            return f"{len(self.scales)} scales on axis {self.axis}"
        return f"scale {self.scales[0]:g} zero {self.zero_points[0]}"


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a value: what every array that it stands for is.

    Attributes
    ----------
    shape
        Extents, each at least 1; empty for a scalar.
    quantisation
        Only of integers; None: they stand for themselves.
    """

    shape: tuple[int, ...]
    dtype: DType
    quantisation: Quantisation | None = None

    def __post_init__(self) -> None:
        if len(self.shape) > MAX_RANK or any(
            isinstance(extent, bool) or not isinstance(extent, int) or extent < 1
            for extent in self.shape
        ):
            raise InvalidGraph(
                f"type: bad shape {self.shape}; use at most {MAX_RANK} extents, each at least 1"
            )
        if self.elements > MAX_ELEMENTS:
            raise InvalidGraph(f"type: shape {self.shape} has too many elements; use at most 2**40")
        if self.quantisation is not None:
            self._check_quantisation(self.quantisation)

    def _check_quantisation(self, quantisation: Quantisation) -> None:
        if not self.dtype.is_integer:
            raise InvalidGraph(f"type: {self.dtype} with a quantisation; only integers have one")
        for zero in quantisation.zero_points:
            if not self.dtype.min <= zero <= self.dtype.max:
                raise InvalidGraph(
                    f"type: zero point {zero} is no {self.dtype}; use one of its values"
                )
        axis = quantisation.axis
        if axis is None:
            return
        if not 0 <= axis < len(self.shape) or self.shape[axis] != len(quantisation.scales):
            raise InvalidGraph(
                f"type: {len(quantisation.scales)} scales on axis {axis} of shape {self.shape}; "
                f"use one for each place of that axis"
            )

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of one array of this type."""
        return self.elements * self.dtype.size_bytes

    @property
    def plain(self) -> ValueType:
        """The same without its quantisation: what code sees."""
        return replace(self, quantisation=None)

    def __str__(self) -> str:
        """Return ``int8[4, 8] scale 0.1 zero 0``."""
        text = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        return text if self.quantisation is None else f"{text} {self.quantisation}"


def value_type(
    shape: tuple[int, ...] | list[int],
    dtype: str | DType = "float32",
    quantisation: Quantisation | None = None,
) -> ValueType:
    """Make a type; raises InvalidGraph if it breaks a limit, InvalidFunction for an unknown element type."""
    return ValueType(tuple(shape), as_dtype(dtype), quantisation)


def type_of_array(array: Array, quantisation: Quantisation | None = None) -> ValueType:
    """Return the type of an array; raises InvalidGraph if no value has such elements, in this machine's byte order."""
    if not isinstance(array, np.ndarray):
        raise InvalidGraph(f"constant: {type(array).__name__} is no array; pass numpy.array of it")
    if array.dtype.name not in {str(kind) for kind in DType}:
        raise InvalidGraph(
            f"constant: {array.dtype} cannot be held; use one of {', '.join(map(str, DType))}"
        )
    if not array.dtype.isnative:
        raise InvalidGraph(
            f"constant: {array.dtype} is in another machine's byte order; convert it with astype({array.dtype.name!r})"
        )
    return value_type(tuple(map(int, array.shape)), array.dtype.name, quantisation)
