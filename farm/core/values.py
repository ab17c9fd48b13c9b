"""Frozen values: a changed copy, as `dataclasses.replace` makes it, in half the time.

Owns: `replace`. Does not own: any value.

Invariant: for what it takes, the result is that of `dataclasses.replace`.

Notes
-----
The cores of the tracker and of the agents make dozens of changed copies a step, which was most of what a step cost:
`dataclasses.replace` looks at every field's description each time and runs ``__init__``, which sets each field by name.
"""

from __future__ import annotations

import functools
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    # A type checker knows which fields the standard function takes.
    from dataclasses import replace as replace
else:

    def replace(value: Any, /, **changes: Any) -> Any:  # noqa: ANN401 - as declared above
        """Return a copy of a frozen dataclass with slots in which some fields are others.

        Raises
        ------
        TypeError
            It is no such value, or has no such field.
        """
        cls = value.__class__
        read, setters, by_name = _form_of(cls)
        copy = object.__new__(cls)
        for put, old in zip(setters, read(value), strict=True):
            put(copy, old)
        try:
            for name, new in changes.items():
                by_name[name](copy, new)
        except KeyError as error:
            raise TypeError(f"{cls.__name__} has no field {error}") from None
        return copy


@functools.cache
def _form_of(
    cls: type,
) -> tuple[
    Callable[[Any], Any], list[Callable[[Any, Any], None]], dict[str, Callable[[Any, Any], None]]
]:
    """Return how to read all fields of a class (two or more), and how to set each."""
    names = [it.name for it in fields(cls)] if is_dataclass(cls) else []
    if len(names) < 2 or "__slots__" not in cls.__dict__ or hasattr(cls, "__post_init__"):
        raise TypeError(f"{cls.__name__}: no dataclass with slots; use dataclasses.replace")
    setters = [cls.__dict__[name].__set__ for name in names]
    return attrgetter(*names), setters, dict(zip(names, setters, strict=True))
