"""Search spaces: parameters with values, and the constraints between them.

Owns counting, numbering and drawing configurations. Does not own what a configuration means.

Invariant: valid by construction. Each configuration has one number in ``range(space.size)``; nothing is
drawn and thrown away. Counts come from a table over those earlier parameters that later constraints still
speak of, so that a space of 10**12 needs no list of its members.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farm.errors import InvalidSpace
from farm.tune.expression import Constraint, Value

MAX_PARAMETERS = 200
MAX_VALUES = 100_000
MAX_TABLE = 1 << 16
"""Spaces of up to so many configurations are listed; in larger ones each is found when it is asked for."""
MAX_CHECKS = 500_000
"""Evaluations of constraints that counting may take: about a second."""

Configuration = Mapping[str, Value]


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


class Space:
    """All valid configurations.

    Parameters
    ----------
    parameters
        Names and values.
    constraints
        Conditions that all have to hold; see `Constraint`.

    Raises
    ------
    InvalidSpace
        A bad parameter or constraint; no configuration is valid (says which constraints are to blame); or too
        entangled to count.

    Examples
    --------
    >>> space = Space({"tile": [1, 2, 3, 4], "vector": [1, 2, 4]}, ["tile % vector == 0"])
    >>> space.size
    7
    >>> space.configuration(6)
    {'tile': 4, 'vector': 4}
    """

    def __init__(
        self, parameters: Mapping[str, Sequence[Value]], constraints: Sequence[str] = ()
    ) -> None:
        self.parameters = tuple(
            Parameter(name, tuple(values)) for name, values in parameters.items()
        )
        if not 1 <= len(self.parameters) <= MAX_PARAMETERS:
            raise InvalidSpace(
                f"space: {len(self.parameters)} parameters; give 1 to {MAX_PARAMETERS}"
            )
        self.constraints = tuple(map(Constraint, constraints))
        self._ordered = np.array([parameter.ordered for parameter in self.parameters])
        known = {parameter.name for parameter in self.parameters}
        for constraint in self.constraints:
            if unknown := sorted(constraint.names - known):
                raise InvalidSpace(
                    f"constraint {constraint.text!r}: unknown parameters ({', '.join(unknown)}); "
                    f"the space has {', '.join(sorted(known))}"
                )
        self._tree = _Tree(self.parameters, self.constraints)
        self.size = self._tree.size
        if self.size == 0:
            raise InvalidSpace(f"space: no configuration is valid; {self._blame()}")

    @property
    def listed(self) -> bool:
        """Whether it is small enough to look at every configuration."""
        return self.size <= MAX_TABLE

    def configuration(self, number: int) -> dict[str, Value]:
        """Return a configuration by its number; raises IndexError outside ``range(size)``."""
        if not 0 <= number < self.size:
            raise IndexError(f"configuration {number}: the space has {self.size}")
        if self._table is not None:
            return {
                parameter.name: parameter.values[place]
                for parameter, place in zip(
                    self.parameters, self._table[number].tolist(), strict=True
                )
            }
        chosen: dict[str, Value] = {}
        for level, at in enumerate(self._tree.levels):
            for place, count in self._tree.choices(level, chosen):
                if number < count:
                    chosen[at.parameter.name] = at.parameter.values[place]
                    break
                number -= count
        return {parameter.name: chosen[parameter.name] for parameter in self.parameters}

    def number(self, configuration: Configuration) -> int:
        """Return a configuration's number.

        Raises
        ------
        InvalidSpace
            It is none of this space: says which parameter or constraint it fails.
        """
        names = [parameter.name for parameter in self.parameters]
        if set(configuration) != set(names):
            raise InvalidSpace(
                f"configuration: has {', '.join(sorted(configuration))}; give {', '.join(names)}"
            )
        row = self._places(configuration)
        if self._table is not None:
            number = self._numbers.get(np.array(row, np.int32).tobytes())
            if number is None:
                raise InvalidSpace(f"configuration: {self._broken(configuration)}")
            return number
        for constraint in self.constraints:
            if not constraint.holds(configuration):
                raise InvalidSpace(f"configuration: {self._broken(configuration)}")
        wanted = dict(zip(names, row, strict=True))
        number, chosen = 0, dict[str, Value]()
        for level, at in enumerate(self._tree.levels):
            name = at.parameter.name
            number += sum(
                count for place, count in self._tree.choices(level, chosen) if place < wanted[name]
            )
            chosen[name] = configuration[name]
        return number

    def contains(self, configuration: Configuration) -> bool:
        """Tell whether a configuration with these parameters is valid."""
        try:
            self.number(configuration)
        except InvalidSpace:
            return False
        return True

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        """Return `count` different numbers, each as likely as any other; all there are if fewer."""
        if count >= self.size:
            return [int(each) for each in rng.permutation(self.size)]
        if self.size <= 1 << 20:
            return [int(each) for each in rng.choice(self.size, count, replace=False)]
        drawn: dict[int, None] = {}
        while (
            len(drawn) < count
        ):  # repeats are rare: there are a million, or many more than asked for
            drawn.setdefault(_below(rng, self.size))
        return list(drawn)

    def neighbours(self, number: int, *, adjacent: bool = False) -> list[int]:
        """Return the numbers of configurations that differ in one parameter.

        Parameters
        ----------
        adjacent
            Only by one step in the list of values, for parameters of numbers.
        """
        if self._table is not None:
            apart = self._table != self._table[number]
            one = apart.sum(axis=1) == 1
            if adjacent:
                steps = np.abs(self._table - self._table[number]) * self._ordered
                one &= steps.max(axis=1) <= 1
            return [int(each) for each in np.flatnonzero(one)]
        configuration = self.configuration(number)
        found = []
        for parameter, ordered in zip(self.parameters, self._ordered, strict=True):
            place = parameter.values.index(configuration[parameter.name])
            for other, value in enumerate(parameter.values):
                if other == place or (adjacent and ordered and abs(other - place) > 1):
                    continue
                changed = {**configuration, parameter.name: value}
                concerned = (c for c in self.constraints if parameter.name in c.names)
                if all(constraint.holds(changed) for constraint in concerned):
                    found.append(self.number(changed))
        return sorted(found)

    def nearest(self, configuration: Configuration, rng: np.random.Generator) -> int:
        """Return a valid configuration that keeps as much of one as can be, parameter by parameter.

        Values that no valid configuration could have, after those kept, are replaced by a random one that can.
        """
        number = 0
        chosen: dict[str, Value] = {}
        for level, at in enumerate(self._tree.levels):
            name, values = at.parameter.name, at.parameter.values
            choices = self._tree.choices(level, chosen)
            places = [place for place, _ in choices]
            wanted = next((p for p in places if values[p] == configuration[name]), None)
            picked = places[int(rng.integers(len(places)))] if wanted is None else wanted
            number += sum(count for place, count in choices if place < picked)
            chosen[name] = values[picked]
        return number

    def features(self, numbers: Sequence[int]) -> NDArray[np.float64]:
        """Return what a model sees of configurations, shape (len(numbers), features), in 0 to 1.

        Parameters of numbers give their place in the list of values, others one column a value.
        """
        rows = self._rows(numbers)
        columns: list[NDArray[np.float64]] = []
        for index, parameter in enumerate(self.parameters):
            at, count = rows[:, index], len(parameter.values)
            if count > 1 and parameter.ordered:
                columns.append(at / (count - 1))
            elif count > 1:
                columns += [(at == place).astype(np.float64) for place in range(count)]
        return np.stack(columns, axis=1) if columns else np.zeros((len(numbers), 1))

    def _rows(self, numbers: Sequence[int]) -> NDArray[np.int32]:
        if self._table is not None:
            return self._table[np.asarray(numbers, np.intp)]
        rows = [self._places(self.configuration(number)) for number in numbers]
        return np.array(rows, np.int32).reshape(len(numbers), len(self.parameters))

    def _places(self, configuration: Configuration) -> list[int]:
        row = []
        for parameter in self.parameters:
            value = configuration[parameter.name]
            place = parameter.places.get((type(value), value))
            if place is None:
                shown = ", ".join(map(repr, parameter.values[:20]))
                raise InvalidSpace(
                    f"configuration: {parameter.name}={value!r} is not one of its values; use {shown}"
                )
            row.append(place)
        return row

    def _broken(self, configuration: Configuration) -> str:
        """Say which constraint a configuration breaks."""
        broken = next(each for each in self.constraints if not each.holds(configuration))
        shown = ", ".join(f"{name}={configuration[name]!r}" for name in sorted(broken.names))
        return f"it breaks {broken.text!r} ({shown}); choose others"

    def _blame(self) -> str:
        """Name constraints without any one of which something would be valid."""
        alone = [
            repr(each.text)
            for each in self.constraints
            if _Tree(
                self.parameters, [other for other in self.constraints if other is not each]
            ).size
        ]
        if alone:
            return f"without any one of these some would be: {', '.join(alone)}"
        return "several constraints contradict each other or the values; drop some to see which"

    @functools.cached_property
    def _table(self) -> NDArray[np.int32] | None:
        """Places of values of all configurations in order, shape (size, parameters); None if too many."""
        if self.size > MAX_TABLE:
            return None
        columns = {level.parameter.name: index for index, level in enumerate(self._tree.levels)}
        rows = np.array(list(self._tree.rows()), np.int32).reshape(self.size, len(columns))
        return rows[:, [columns[parameter.name] for parameter in self.parameters]]

    @functools.cached_property
    def _numbers(self) -> dict[bytes, int]:
        """Number by row of the table."""
        assert self._table is not None
        return {row.tobytes(): number for number, row in enumerate(self._table)}


@dataclass(frozen=True)
class _Level:
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


class _Tree:
    """Counts of configurations by the parameters that the rest depends on.

    Parameters
    ----------
    parameters, constraints
        As of the space.
    """

    def __init__(self, parameters: Sequence[Parameter], constraints: Sequence[Constraint]) -> None:
        self.levels = _levels(parameters, constraints)
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

    def _find(self, at: _Level, level: int, chosen: dict[str, Value]) -> Iterator[tuple[int, int]]:
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


def _levels(parameters: Sequence[Parameter], constraints: Sequence[Constraint]) -> list[_Level]:
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
        levels.append(_Level(parameter, closed, tuple(sorted(open_names))))
    return levels


def _below(rng: np.random.Generator, limit: int) -> int:
    """Return a uniform number below a limit of any size."""
    bits = limit.bit_length()
    while True:
        words = rng.integers(0, 1 << 32, (bits + 31) // 32, dtype=np.uint64)
        value = 0
        for word in words.tolist():
            value = value << 32 | word
        value &= (1 << bits) - 1
        if value < limit:
            return value
