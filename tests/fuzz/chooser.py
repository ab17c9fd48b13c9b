"""Where random choices come from: a seed, or hypothesis, which can make a failing one smaller."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Chooser(Protocol):
    """Makes choices; the first of several, and the smallest number, count as the simplest."""

    def number(self, least: int, most: int) -> int:
        """Choose an integer, both ends included."""
        ...

    def one(self, options: Sequence[T]) -> T:
        """Choose one of several."""
        ...


class Seeded:
    """Choices from a seed: the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def number(self, least: int, most: int) -> int:
        return self.random.randint(least, most)

    def one(self, options: Sequence[T]) -> T:
        return self.random.choice(options)


class Drawn:
    """Choices that hypothesis makes."""

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self.draw = draw

    def number(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most))

    def one(self, options: Sequence[T]) -> T:
        return options[self.number(0, len(options) - 1)]
