"""Buffers: typed, dense, row-major arrays.

Owns: a buffer's limits, what memory it asks for, and the form of names in a function. Does not own: content.

Invariant: a `Buffer` that exists has a legal name, shape and alignment.
"""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass

from farm.errors import InvalidFunction
from farm.ir.dtype import DType

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
MAX_ELEMENTS = 1 << 40
MAX_RANK = 16
MAX_REGISTER_BYTES = 4096  # twice the vector registers of AVX-512
MAX_STACK_BYTES = 1 << 16


class Scope(enum.Enum):
    """Which memory an inner buffer asks for. It changes no result, only where a code generator keeps the elements."""

    GLOBAL = "global"  # wherever it fits; parameters are always here
    STACK = "stack"  # the running thread's own stack
    REGISTER = "register"  # registers, where loops around its accesses are unrolled or vectorized


_MOST_BYTES = {Scope.STACK: MAX_STACK_BYTES, Scope.REGISTER: MAX_REGISTER_BYTES}


@dataclass(frozen=True, slots=True)
class Buffer:
    """An array with static extents; names are unique in a function.

    Attributes
    ----------
    align_bytes
        Alignment of the first element, a power of two, at least the element's size.
    scope
        The memory that an inner buffer asks for; at most 64 KiB on the stack and 4 KiB in registers.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    align_bytes: int
    scope: Scope = Scope.GLOBAL

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
        most = _MOST_BYTES.get(self.scope)
        if most is not None and self.size_bytes > most:
            raise InvalidFunction(
                f"buffer {self.name}: {self.size_bytes} bytes in scope {self.scope.value}; use at most {most}, "
                f"or scope global"
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
