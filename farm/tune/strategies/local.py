"""Local search: look around the best that is known."""

from __future__ import annotations

import numpy as np

from farm.tune.history import History
from farm.tune.strategies.base import OneByOne

STARTS = 5


class Local(OneByOne):
    """Tries neighbours of the best configuration, near ones first, then of the next best.

    A best whose neighbours have all been tried is a local optimum; the search then goes on around the next one,
    which is what a restart would come to.
    """

    name = "local"

    def propose_one(self, history: History, rng: np.random.Generator) -> int:
        """Return an untried neighbour of the best that has one."""
        if len(history.costs) < STARTS:
            return history.any_new(rng)
        for number in history.ranked():
            for adjacent in (True, False):
                around = history.fresh(history.space.neighbours(number, adjacent=adjacent))
                if around:
                    return around[int(rng.integers(len(around)))]
        return history.any_new(rng)
