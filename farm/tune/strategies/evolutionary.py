"""Evolutionary search: children of good configurations, repaired so that they are valid."""

from __future__ import annotations

import numpy as np

from farm.tune.history import History
from farm.tune.strategies.base import OneByOne

PARENTS = 20
FOUNDERS = 10
MUTATION = 0.15
"""How likely a parameter is to get a random value."""
TRIES = 20


class Evolutionary(OneByOne):
    """Crosses two of the best, parents by tournament, and changes some parameters."""

    name = "evolutionary"

    def propose_one(self, history: History, rng: np.random.Generator) -> int:
        """Return a child that is new."""
        ranked = history.ranked()[:PARENTS]
        if len(history.costs) < FOUNDERS or len(ranked) < 2:
            return history.any_new(rng)
        space = history.space
        for _ in range(TRIES):
            mother, father = (
                space.configuration(ranked[int(min(rng.integers(len(ranked), size=2)))])
                for _ in range(2)
            )
            child = {}
            for parameter in space.parameters:
                if rng.random() < MUTATION:
                    child[parameter.name] = parameter.values[
                        int(rng.integers(len(parameter.values)))
                    ]
                else:
                    child[parameter.name] = (mother if rng.random() < 0.5 else father)[
                        parameter.name
                    ]
            number = space.nearest(child, rng)
            if history.is_new(number):
                return number
        return history.any_new(rng)
