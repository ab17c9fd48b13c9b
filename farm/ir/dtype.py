"""Element types of buffers and expressions.

Owns: the closed set of types with their ranges. Does not own: arithmetic (`farm.ir.arithmetic`).

Invariant: a type's value is its name in text, on the wire and in numpy.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from farm.core.elements import numpy_dtype
from farm.errors import InvalidFunction


class Kind(enum.Enum):
    """What the bits of an element mean."""

    BOOL = "bool"
    INT = "int"
    UINT = "uint"
    FLOAT = "float"


class DType(enum.Enum):
    """An element type; the value is its name in text, on the wire and in numpy."""

    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"

    kind: Kind
    bits: int
    is_float: bool
    is_integer: bool
    is_half: bool

    def __init__(self, name: str) -> None:
        self.kind = Kind(name.replace("bfloat", "float").rstrip("0123456789"))
        self.bits = int(name.lstrip("abcdefghijklmnopqrstuvwxyz") or 8)
        self.is_float = self.kind is Kind.FLOAT
        self.is_integer = self.kind in (Kind.INT, Kind.UINT)
        self.is_half = self.is_float and self.bits == 16

    def __str__(self) -> str:
        """Return the name."""
        return str(self.value)

    @property
    def size_bytes(self) -> int:
        """Return the size of one element in memory."""
        return self.bits // 8

    @property
    def value_bytes(self) -> int:
        """Return the size of a value while it is computed with: floats of 16 bits are float32 then."""
        return 4 if self.is_half else self.size_bytes

    @property
    def is_signed(self) -> bool:
        """Whether negative values exist."""
        return self.kind in (Kind.INT, Kind.FLOAT)

    @property
    def numpy(self) -> np.dtype[Any]:
        """Return the numpy type of the same elements."""
        return numpy_dtype(str(self.value))

    @property
    def min(self) -> int:
        """Return the smallest value of an integer or bool type."""
        return -(1 << (self.bits - 1)) if self.kind is Kind.INT else 0

    @property
    def max(self) -> int:
        """Return the largest value of an integer or bool type."""
        if self.kind is Kind.BOOL:
            return 1
        return (1 << (self.bits - (self.kind is Kind.INT))) - 1


def as_dtype(value: str | DType) -> DType:
    """Return `value` as an element type.

    Raises
    ------
    InvalidFunction
        No such type; the message lists those that exist.
    """
    if isinstance(value, DType):
        return value
    try:
        return DType(value)
    except ValueError:
        known = ", ".join(map(str, DType))
        raise InvalidFunction(f"dtype: unknown ({value!r}); use one of {known}") from None
