"""Buffers: typed, dense, row-major arrays.

Owns: a buffer's limits, and the form of names in a function. Does not own: content, or where it lies.

Invariant: a `Buffer` that exists has a legal name, shape and alignment.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from farm.errors import InvalidFunction
from farm.ir.dtype import DType

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
MAX_ELEMENTS = 1 << 40
MAX_RANK = 16


@dataclass(frozen=True, slots=True)
class Buffer:
    """An array with static extents; names are unique in a function.

    Attributes
    ----------
    align_bytes
        Alignment of the first element, a power of two, at least the element's size.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    align_bytes: int

    def __post_init__(self) -> None:
        check_name("buffer", self.name)
        if len(self.shape) > MAX_RANK:
            raise InvalidFunction(
                f"buffer {self.name}: rank {len(self.shape)}; use at most {MAX_RANK}"
            )
        if any(extent < 1 for extent in self.shape) or self.elements > MAX_ELEMENTS:
            raise InvalidFunction(
                f"buffer {self.name}: impossible shape {self.shape}; each extent is at least 1 "
                f"and their product at most 2**40"
            )
        align = self.align_bytes
        if align < self.dtype.size_bytes or align > 4096 or align & (align - 1):
            raise InvalidFunction(
                f"buffer {self.name}: alignment {align}; use a power of two from "
                f"{self.dtype.size_bytes} to 4096"
            )

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Return the size of all elements in memory."""
        return self.elements * self.dtype.size_bytes


def check_name(what: str, name: str) -> None:
    """Refuse a name that is no C identifier of at most 255 letters."""
    if not NAME.fullmatch(name):
        raise InvalidFunction(
            f"{what}: bad name ({name[:80]!r}); use letters, digits and _, no digit first"
        )
