"""A portfolio: several strategies, each asked the more often the more it found lately.

No single strategy wins on every space; which one does shows after some tens of results. Source: an
area-under-the-curve bandit, as in OpenTuner (Ansel et al. 2014), with a head start for the surrogate.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from farm.tune.history import History
from farm.tune.strategies.annealing import Annealing
from farm.tune.strategies.base import Strategy
from farm.tune.strategies.evolutionary import Evolutionary
from farm.tune.strategies.local import Local
from farm.tune.strategies.random import Random
from farm.tune.strategies.surrogate import FIRST, Surrogate

WINDOW = 60
"""Results over which a strategy's success counts."""
CURIOSITY = 0.15
HEAD_START = {"surrogate": 0.25}
AT_ONCE = 8


class Portfolio:
    """Asks the strategy with the best record, and now and then another."""

    name = "portfolio"

    def __init__(self) -> None:
        self._arms: dict[str, Strategy] = {
            each.name: each
            for each in (Surrogate(), Local(), Evolutionary(), Annealing(), Random())
        }
        self._asked: dict[int, str] = {}
        self._record: deque[tuple[str, bool]] = deque(maxlen=WINDOW)

    def propose(self, history: History, rng: np.random.Generator, count: int) -> list[int]:
        """Return what the chosen strategy proposes, at most a few at once so that others have their turn."""
        arm = self._arms["surrogate"]
        if len(history.costs) + len(history.pending) >= FIRST:
            arm = self._arms[max(self._arms, key=self._score)]
        proposed = arm.propose(history, rng, min(count, AT_ONCE))
        for number in proposed:
            self._asked[number] = arm.name
        return proposed

    def learn(self, history: History, number: int) -> None:
        """Credit whoever proposed it if it is a new best."""
        for arm in self._arms.values():
            arm.learn(history, number)
        name = self._asked.pop(number, None)
        if name is not None:
            best = history.best
            self._record.append((name, best is not None and best[0] == number))

    def _score(self, name: str) -> float:
        """Return recent successes, later ones counting more, plus what is due to a strategy seldom asked."""
        uses = [won for used, won in self._record if used == name]
        total = len(uses) * (len(uses) + 1) / 2
        area = sum(place for place, won in enumerate(uses, 1) if won) / total if uses else 0.0
        waiting = sum(1 for used in self._asked.values() if used == name)
        due = math.sqrt(2 * math.log(len(self._record) + 2) / (len(uses) + waiting + 1))
        return area + HEAD_START.get(name, 0.0) + CURIOSITY * due
