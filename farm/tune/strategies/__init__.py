"""Strategies: ways to choose which configuration to try next.

Owns the strategies by name. Does not own results (`farm.tune.history`) or measuring.
"""

from collections.abc import Callable

from farm.tune.strategies.annealing import Annealing
from farm.tune.strategies.base import Strategy
from farm.tune.strategies.evolutionary import Evolutionary
from farm.tune.strategies.local import Local
from farm.tune.strategies.portfolio import Portfolio
from farm.tune.strategies.random import Random
from farm.tune.strategies.surrogate import Surrogate

STRATEGIES: dict[str, Callable[[], Strategy]] = {
    each.name: each for each in (Portfolio, Surrogate, Local, Evolutionary, Annealing, Random)
}
DEFAULT_STRATEGY = Portfolio.name

__all__ = ["DEFAULT_STRATEGY", "STRATEGIES", "Strategy"]
