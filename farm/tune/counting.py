"""Counting the configurations of a space without listing them.

Owns: the order of parameters, and how many configurations begin with which values. Does not own: numbers and
configurations (`farm.tune.space`).

Invariant: what is counted once is remembered by those earlier parameters that later constraints still speak of; a count
takes a bounded number of evaluations, or is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from farm.errors import InvalidSpace
from farm.tune.expression import Constraint, Value
from farm.tune.parameter import Parameter

MAX_CHECKS = 500_000
"""Evaluations of constraints that counting may take: about a second."""


@dataclass(frozen=True)
class Level:
    """One parameter in the order of counting.

    Parameters
    ----------
    closed
        Constraints all of whose parameters are chosen once this one is.
    relevant
        Earlier parameters that this or later levels' constraints speak of.
    """

    parameter: Parameter
    closed: tuple[Constraint, ...]
    relevant: tuple[str, ...]


class Tree:
    """Counts of configurations by the parameters that the rest depends on.

    Parameters
    ----------
    parameters, constraints
        As of the space.
    """

    def __init__(self, parameters: Sequence[Parameter], constraints: Sequence[Constraint]) -> None:
        self.levels = levels_of(parameters, constraints)
        self._known: dict[tuple[int, tuple[Value, ...]], list[tuple[int, int]]] = {}
        self._checks = 0
        self.size = self._count(0, {})

    def choices(self, level: int, chosen: dict[str, Value]) -> list[tuple[int, int]]:
        """Return each place of a level's value that can be chosen, and how many configurations begin so."""
        at = self.levels[level]
        key = (level, tuple(chosen[name] for name in at.relevant))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = list(self._find(at, level, chosen))
        return known

    def _find(self, at: Level, level: int, chosen: dict[str, Value]) -> Iterator[tuple[int, int]]:
        if self._checks + len(self._known) > MAX_CHECKS:
            raise InvalidSpace(
                f"space: too entangled to count (more than {MAX_CHECKS} checks); use constraints of fewer "
                "parameters each, or fewer values"
            )
        name = at.parameter.name
        for place, value in enumerate(at.parameter.values):
            chosen[name] = value
            fits = all(constraint.holds(chosen) for constraint in at.closed)
            self._checks += len(at.closed)
            count = self._count(level + 1, chosen) if fits else 0
            del chosen[name]
            if count:
                yield place, count

    def rows(self) -> Iterator[tuple[int, ...]]:
        """Yield the places of each configuration's values by level, in order."""
        chosen: dict[str, Value] = {}

        def walk(level: int, row: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if level == len(self.levels):
                yield row
                return
            parameter = self.levels[level].parameter
            for place, _ in self.choices(level, chosen):
                chosen[parameter.name] = parameter.values[place]
                yield from walk(level + 1, (*row, place))
                del chosen[parameter.name]

        return walk(0, ())

    def _count(self, level: int, chosen: dict[str, Value]) -> int:
        if level == len(self.levels):
            return 1
        return sum(count for _, count in self.choices(level, chosen))


def levels_of(parameters: Sequence[Parameter], constraints: Sequence[Constraint]) -> list[Level]:
    """Order the parameters so that constraints are decided early: the fewest values first."""
    left = {parameter.name: parameter for parameter in parameters}
    order: list[Parameter] = []
    while left:
        chosen = {parameter.name for parameter in order}
        missing = [constraint.names - chosen for constraint in constraints]
        missing = [names for names in missing if names]

        def cost(names: frozenset[str]) -> float:
            return math.fsum(math.log(len(left[name].values)) for name in names)

        wanted = min(missing, key=cost, default=frozenset(left))
        # In the order of the parameters: sets have none, and numbers must be the same in every process.
        name = min(
            (name for name in left if name in wanted), key=lambda name: len(left[name].values)
        )
        order.append(left.pop(name))
    levels = []
    place = {parameter.name: index for index, parameter in enumerate(order)}
    ends = [max((place[name] for name in each.names), default=0) for each in constraints]
    for index, parameter in enumerate(order):
        closed = tuple(c for c, end in zip(constraints, ends, strict=True) if end == index)
        open_names = {
            name
            for constraint, end in zip(constraints, ends, strict=True)
            if end >= index
            for name in constraint.names
            if place[name] < index
        }
        levels.append(Level(parameter, closed, tuple(sorted(open_names))))
    return levels
