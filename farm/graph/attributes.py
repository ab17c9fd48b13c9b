"""Attributes of operators: named, typed, checked.

Owns: the kinds of attributes and their checks. Does not own: which operator has which (`farm.graph.operators`).

Invariant: attributes that passed `check_attributes` are complete, of the right kinds, and plain JSON but for tuples.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from farm.errors import FarmError, InvalidGraph
from farm.ir.dtype import as_dtype

Attribute = int | float | str | tuple[int, ...] | tuple[tuple[int, int], ...] | None
Attributes = Mapping[str, Attribute]

MAX_NUMBERS = 64
"""Numbers in one attribute."""
MAX_INT = 1 << 62
MAX_TEXT = 256


class AttributeKind(enum.Enum):
    """What an attribute holds; the value says so in messages."""

    FLAG = "true or false"
    INT = "an integer"
    NUMBER = "a finite number"
    TEXT = "text"
    DTYPE = "the name of an element type"
    INTS = "a list of integers"
    AXES = "a list of integers, or nothing for all"
    PAIRS = "a list of two integers for each axis"


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """One attribute of an operator.

    Attributes
    ----------
    default
        What a node without it has; ignored where `required`.
    """

    kind: AttributeKind
    default: Attribute = None
    required: bool = False


def check_attributes(
    subject: str, specs: Mapping[str, AttributeSpec], given: Mapping[str, object]
) -> Attributes:
    """Return all attributes of a node, defaults filled in, lists made tuples.

    Raises
    ------
    InvalidGraph
        One is unknown, missing, or of another kind; the message names it and `subject`.
    """
    for name in given:
        if name not in specs:
            known = ", ".join(sorted(specs)) or "none"
            raise InvalidGraph(f"{subject}: unknown attribute {str(name)[:80]!r}; it has {known}")
    found: dict[str, Attribute] = {}
    for name, spec in specs.items():
        if name in given:
            found[name] = _checked(f"{subject}: attribute {name}", spec.kind, given[name])
        elif spec.required:
            raise InvalidGraph(f"{subject}: attribute {name} is missing; give {spec.kind.value}")
        else:
            found[name] = spec.default
    return MappingProxyType(found)


def _checked(subject: str, kind: AttributeKind, value: object) -> Attribute:
    match kind:
        case AttributeKind.FLAG if isinstance(value, bool):
            return value
        case AttributeKind.INT if _is_int(value):
            return value  # type: ignore[return-value]
        case AttributeKind.NUMBER if _is_int(value) or (
            isinstance(value, float) and math.isfinite(value)
        ):
            return value  # type: ignore[return-value]
        case AttributeKind.TEXT if isinstance(value, str) and len(value) <= MAX_TEXT:
            return value
        case AttributeKind.DTYPE:
            try:
                return str(as_dtype(value))  # type: ignore[arg-type]
            except FarmError as error:
                raise InvalidGraph(f"{subject}: {error.message}") from error
        case AttributeKind.AXES if value is None:
            return None
        case AttributeKind.INTS | AttributeKind.AXES if _are_ints(value):
            return tuple(value)  # type: ignore[arg-type]
        case AttributeKind.PAIRS if (
            isinstance(value, list | tuple)
            and len(value) <= MAX_NUMBERS
            and all(_are_ints(pair) and len(pair) == 2 for pair in value)
        ):
            return tuple((first, second) for first, second in value)
    raise InvalidGraph(f"{subject} is {str(value)[:80]!r}; give {kind.value}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_INT


def _are_ints(value: object) -> bool:
    return (
        isinstance(value, list | tuple) and len(value) <= MAX_NUMBERS and all(map(_is_int, value))
    )
