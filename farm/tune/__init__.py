"""Tuning: spaces of configurations, and searching them.

Owns spaces, strategies and searches. Does not own building and measuring candidates.
"""

from farm.tune.search import Search
from farm.tune.space import Parameter, Space
from farm.tune.strategies import DEFAULT_STRATEGY, STRATEGIES

__all__ = ["DEFAULT_STRATEGY", "STRATEGIES", "Parameter", "Search", "Space"]
