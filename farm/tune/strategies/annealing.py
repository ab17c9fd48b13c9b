"""Simulated annealing: a walk that accepts worse steps less and less."""

from __future__ import annotations

import math

import numpy as np

from farm.tune.history import History
from farm.tune.strategies.base import OneByOne

START_TEMPERATURE = 0.3
"""At first a step 30 % slower is accepted in one of e cases."""
COOLING = 0.97


class Annealing(OneByOne):
    """Walks from neighbour to neighbour; restarts at the best when all around has been tried."""

    name = "annealing"

    def __init__(self) -> None:
        self._at: int | None = None
        self._asked: set[int] = set()
        self._temperature = START_TEMPERATURE
        self._rng = np.random.default_rng(0)

    def propose_one(self, history: History, rng: np.random.Generator) -> int:
        """Return an untried neighbour of where the walk is."""
        if self._at is None and history.best is not None:
            self._at = history.best[0]
        around: list[int] = []
        if self._at is not None:
            around = history.fresh(history.space.neighbours(self._at))
        if not around and history.best is not None:
            self._at = history.best[0]
            around = history.fresh(history.space.neighbours(self._at))
        number = around[int(rng.integers(len(around)))] if around else history.any_new(rng)
        self._asked.add(number)
        self._rng = np.random.default_rng(int(rng.integers(1 << 32)))
        return number

    def learn(self, history: History, number: int) -> None:
        """Step to a result of its own if it is better, or by chance."""
        if number not in self._asked:
            return
        self._asked.discard(number)
        self._temperature *= COOLING
        here = math.inf if self._at is None else history.costs.get(self._at, math.inf)
        there = history.costs[number]
        if not math.isfinite(there):
            return
        worse = math.log(max(there, 1e-300) / max(here, 1e-300)) if math.isfinite(here) else 0.0
        if worse <= 0 or self._rng.random() < math.exp(-worse / self._temperature):
            self._at = number
