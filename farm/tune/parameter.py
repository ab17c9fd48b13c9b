"""A parameter of a search space: what can be chosen.

Owns: names and values, checked. Does not own: which values go together (`farm.tune.expression`, `farm.tune.counting`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from farm.errors import InvalidSpace
from farm.tune.expression import Value

MAX_VALUES = 100_000


@dataclass(frozen=True)
class Parameter:
    """What can be chosen.

    Parameters
    ----------
    name
        An identifier.
    values
        All of one kind, in a sensible order (numbers ascending); at least one, none twice.
    """

    name: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise InvalidSpace(f"parameter {self.name[:80]!r}: no identifier; rename it")
        if not 1 <= len(self.values) <= MAX_VALUES:
            raise InvalidSpace(
                f"parameter {self.name}: {len(self.values)} values; give 1 to {MAX_VALUES}"
            )
        if len(set(self.values)) != len(self.values):
            raise InvalidSpace(f"parameter {self.name}: a value stands twice; give each once")

    @property
    def ordered(self) -> bool:
        """Whether its values are numbers, so that neighbours in the list are alike."""
        return all(isinstance(value, int | float) for value in self.values)

    @functools.cached_property
    def places(self) -> dict[tuple[type, Value], int]:
        """Place of each value; True is not 1 here."""
        return {(type(value), value): place for place, value in enumerate(self.values)}
