"""Search spaces: parameters with values, and the constraints between them.

Owns counting, numbering and drawing configurations. Does not own what a configuration means.

Invariant: valid by construction. Each configuration has one number in ``range(space.size)``; nothing is
drawn and thrown away. Counts come from a table over those earlier parameters that later constraints still
speak of, so that a space of 10**12 needs no list of its members.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from farm.errors import InvalidSpace
from farm.tune.counting import Tree
from farm.tune.expression import Constraint, Value
from farm.tune.parameter import Parameter

MAX_PARAMETERS = 200
MAX_TABLE = 1 << 16
"""Spaces of up to so many configurations are listed; in larger ones each is found when it is asked for."""

Configuration = Mapping[str, Value]


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
        self._tree = Tree(self.parameters, self.constraints)
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
            if Tree(
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
