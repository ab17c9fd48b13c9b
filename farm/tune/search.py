"""One search through one space: ask what to try, tell what came of it.

Owns the order of asking and telling. Does not own building or measuring.

Invariant: the same seed and the same tells in the same order give the same asks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from farm.errors import InvalidInput
from farm.tune.history import History
from farm.tune.space import Configuration, Space
from farm.tune.strategies import DEFAULT_STRATEGY, STRATEGIES


class Search:
    """Ask and tell, in batches and in any order of results.

    Parameters
    ----------
    space
        What is searched.
    seed
        Of every random choice.
    strategy
        A name from `STRATEGIES`.

    Raises
    ------
    InvalidInput
        No such strategy; lists those known.

    Examples
    --------
    >>> search = Search(Space({"tile": [1, 2, 4, 8]}), seed=1)
    >>> while not search.exhausted:
    ...     for number in search.ask(2):
    ...         search.tell(number, abs(search.space.configuration(number)["tile"] - 4))
    >>> search.best
    ({'tile': 4}, 0)
    """

    def __init__(self, space: Space, *, seed: int = 0, strategy: str = DEFAULT_STRATEGY) -> None:
        if strategy not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise InvalidInput(f"strategy: unknown ({strategy[:80]!r}); use one of {known}")
        self.space = space
        self.history = History(space)
        self._rng = np.random.default_rng(seed)
        self._strategy = STRATEGIES[strategy]()

    @property
    def exhausted(self) -> bool:
        """Whether every configuration has been asked for."""
        return self.history.exhausted

    @property
    def best(self) -> tuple[dict[str, object], float] | None:
        """The best configuration and its cost; None if none succeeded."""
        best = self.history.best
        return None if best is None else (dict(self.space.configuration(best[0])), best[1])

    def ask(self, count: int = 1) -> list[int]:
        """Return up to `count` configurations to try, none asked for before; fewer at the end of the space."""
        asked: list[int] = []
        while len(asked) < count and not self.history.exhausted:
            for number in self._strategy.propose(self.history, self._rng, count - len(asked)):
                assert self.history.is_new(number), number
                self.history.pending[number] = None
                asked.append(number)
        return asked

    def claim(self, number: int) -> bool:
        """Have a configuration of one's own choice count as asked for; False if it was asked for before."""
        if not self.history.is_new(number):
            return False
        self.history.pending[number] = None
        return True

    def tell(self, number: int, cost: float | None) -> None:
        """Add a result, asked for or not (a record of an earlier search).

        Parameters
        ----------
        cost
            From 0 on, lower is better; None if it failed.

        Raises
        ------
        InvalidInput
            No such configuration, or it has a result already; or the cost is negative or not a number.
        """
        self.history.tell(number, math.inf if cost is None else cost)
        self._strategy.learn(self.history, number)

    def forget(self, number: int) -> None:
        """Take back an ask that will have no result, so that it may be asked for again."""
        self.history.pending.pop(number, None)

    def resume(self, records: Iterable[tuple[Configuration, float | None]]) -> int:
        """Tell the results of an earlier search; return how many fit this space and were new."""
        told = 0
        for configuration, cost in records:
            if self.space.contains(configuration):
                number = self.space.number(configuration)
                if number not in self.history.costs:
                    self.tell(number, cost)
                    told += 1
        return told
