"""What a search knows so far.

Owns results by configuration and what is under way. Does not own how the next one is chosen.

Invariant: no configuration is asked for twice; each has at most one result.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from farm.errors import InvalidInput
from farm.tune.space import Space


@dataclass
class History:
    """Results of one search.

    Parameters
    ----------
    space
        What is searched.
    costs
        Cost by configuration, in the order told; infinite if it failed. Lower is better.
    pending
        Asked for, without a result yet.
    """

    space: Space
    costs: dict[int, float] = field(default_factory=dict)
    pending: dict[int, None] = field(default_factory=dict)

    @property
    def exhausted(self) -> bool:
        """Whether every configuration has been asked for."""
        return len(self.costs) + len(self.pending) >= self.space.size

    @property
    def best(self) -> tuple[int, float] | None:
        """The configuration of the least cost and that cost; None if none succeeded."""
        number = min(self.costs, key=self.costs.__getitem__, default=None)
        if number is None or not math.isfinite(self.costs[number]):
            return None
        return number, self.costs[number]

    def is_new(self, number: int) -> bool:
        """Tell whether a configuration has not been asked for."""
        return number not in self.costs and number not in self.pending

    def fresh(self, numbers: Sequence[int]) -> list[int]:
        """Return those that have not been asked for."""
        return [number for number in numbers if self.is_new(number)]

    def ranked(self) -> list[int]:
        """Return what succeeded, best first."""
        good = [number for number, cost in self.costs.items() if math.isfinite(cost)]
        return sorted(good, key=self.costs.__getitem__)

    def tell(self, number: int, cost: float) -> None:
        """Add a result.

        Raises
        ------
        InvalidInput
            No such configuration, or it has a result; or the cost is negative or not a number.
        """
        if not 0 <= number < self.space.size:
            raise InvalidInput(f"result: configuration {number} is not one of {self.space.size}")
        if number in self.costs:
            raise InvalidInput(f"result: configuration {number} has one already; tell each once")
        if math.isnan(cost) or cost < 0:
            raise InvalidInput(
                f"result: bad cost ({cost}); use a number from 0 on, infinity if it failed"
            )
        self.pending.pop(number, None)
        self.costs[number] = cost

    def any_new(self, rng: np.random.Generator) -> int:
        """Return a configuration not asked for, each as likely as any other."""
        taken = len(self.costs) + len(self.pending)
        if self.space.size <= 4 * taken:
            left = [number for number in range(self.space.size) if self.is_new(number)]
            return left[int(rng.integers(len(left)))]
        while True:  # three of four draws at least are new
            for number in self.space.draw(rng, 1):
                if self.is_new(number):
                    return number

    @functools.cached_property
    def all_features(self) -> NDArray[np.float64] | None:
        """Features of the whole space, None if it is too large to list."""
        return self.space.features(range(self.space.size)) if self.space.listed else None

    def features(self, numbers: Sequence[int]) -> NDArray[np.float64]:
        """Return features of configurations."""
        known = self.all_features
        return self.space.features(numbers) if known is None else known[list(numbers)]
