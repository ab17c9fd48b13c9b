"""What a recipe leaves open: knobs with their values, what has to hold between them, and what is good without tuning.

Owns: that description. Does not own: any recipe, or searching (`farm.tune`).

Invariant: the default is one of the choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from farm.schedule import Schedule

Choice = Mapping[str, int]
"""A value for each knob of a recipe."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """The choices of one recipe for one block.

    Attributes
    ----------
    values
        For each knob what it may be, ascending.
    constraints
        Expressions over knobs that all have to hold, in the language of `farm.tune.Space`.
    default
        What is good without tuning.
    """

    values: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()
    default: Choice = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to schedule one block.

    Attributes
    ----------
    apply
        Takes its steps on a schedule, with a choice of the knobs; raises ScheduleError if it does not fit.
    """

    name: str
    knobs: Knobs
    apply: Callable[[Schedule, Choice], None]


def values(found: Iterable[int], *always: int) -> tuple[int, ...]:
    """Return values ascending, each once; `always` are among them."""
    return tuple(sorted({*found, *always}))


def divisors(number: int, least: int = 1, most: int | None = None) -> list[int]:
    """Return the divisors of a number in a range, ascending.

    Examples
    --------
    >>> divisors(24, 2, 8)
    [2, 3, 4, 6, 8]
    """
    limit = number if most is None else min(number, most)
    return [each for each in range(max(1, least), limit + 1) if number % each == 0]
