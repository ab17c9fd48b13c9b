"""Intrinsics: operations of the hardware, whose meaning is a Python function of plain loops.

Owns: the description that an author gives. Does not own: reading the body as loops, matching them against a function,
or placing operands (`farm.codegen.accelerator.tensorized`).

Invariant: an intrinsic that exists has well-formed, differently named operands of which exactly one is written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm.core.elements import NAMES
from farm.errors import InvalidInput

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
MAX_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of an intrinsic: an array of fixed type and shape, somewhere in the device's memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operand of one call lies.

    Attributes
    ----------
    address
        Byte of its first element.
    strides
        Bytes between neighbours, for each dimension of the operand.
    """

    address: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intrinsic:
    """One operation.

    Attributes
    ----------
    operands
        In the order of the body's parameters; the last is what it adds to, the others it only reads.
    body
        What it computes: a Python function of ``for NAME in range(NUMBER)`` loops around one ``out[...] += a * b`` (or
        any sum, product, minimum or maximum of elements, with casts such as ``int32(a[i, k])``). It runs on arrays as
        it stands, and it is what loops are matched against.
    emit
        ``(places, config)`` → the instructions that do it with operands at these places, by name.

    Notes
    -----
    The contract about sizes: loops need not be multiples of the intrinsic's. Device memory holds inputs with zeros
    around them up to multiples, and what lies outside the output is thrown away, so that an intrinsic is never called
    for a part. This is why the body has to be a sum of products, of which one factor is such a zero. Floats are summed
    in the body's order inside a call, and in the layer's over all calls, unless the function allows another.
    """

    name: str
    operands: Sequence[Operand]
    body: Callable[..., object]
    emit: Callable[[Mapping[str, Place], Any], bytes]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise InvalidInput(f"intrinsic {self.name!r}: malformed name; use a-z, 0-9 and _")
        them = self.operands
        if not isinstance(them, list | tuple) or not all(isinstance(it, Operand) for it in them):
            raise InvalidInput(
                f"intrinsic {self.name}: operands are {them!r:.80}; give a list of Operand"
            )
        names = [operand.name for operand in self.operands]
        if len(names) < 2 or len(set(names)) != len(names):
            raise InvalidInput(
                f"intrinsic {self.name}: operands {', '.join(names) or 'none'}; give two or more, each name once"
            )
        for operand in self.operands:
            if operand.dtype not in NAMES:
                raise InvalidInput(
                    f"intrinsic {self.name}: operand {operand.name} is {operand.dtype!r:.80}; use one of "
                    f"{', '.join(NAMES)}"
                )
            shape = operand.shape
            whole = isinstance(shape, tuple) and all(type(extent) is int for extent in shape)
            if not (whole and shape and min(shape) >= 1 and math.prod(shape) <= MAX_ELEMENTS):
                raise InvalidInput(
                    f"intrinsic {self.name}: operand {operand.name} has shape {shape!r:.80}; use a tuple of extents "
                    f"from 1 on, with at most {MAX_ELEMENTS} elements"
                )
