"""What every strategy offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np

from farm.tune.history import History


class Strategy(Protocol):
    """A way to choose what to try next."""

    name: str

    def propose(self, history: History, rng: np.random.Generator, count: int) -> list[int]:
        """Return 1 to `count` different configurations that have not been asked for.

        Called only while there is one. What is pending in `history` counts as asked for.
        """
        ...

    def learn(self, history: History, number: int) -> None:
        """Take note of a result, whoever had proposed it; it is in `history` already."""
        ...


class OneByOne(ABC):
    """A strategy that gains nothing from choosing several at once."""

    def propose(self, history: History, rng: np.random.Generator, count: int) -> list[int]:
        """Return one configuration."""
        del count
        return [self.propose_one(history, rng)]

    @abstractmethod
    def propose_one(self, history: History, rng: np.random.Generator) -> int:
        """Return a configuration that has not been asked for."""

    def learn(self, history: History, number: int) -> None:  # noqa: B027 - most learn nothing
        """Learn nothing beyond the history."""
