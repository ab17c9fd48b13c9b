"""Random search: what every other strategy has to beat."""

from __future__ import annotations

import numpy as np

from farm.tune.history import History
from farm.tune.strategies.base import OneByOne


class Random(OneByOne):
    """Each configuration as likely as any other, none twice."""

    name = "random"

    def propose_one(self, history: History, rng: np.random.Generator) -> int:
        """Return any configuration."""
        return history.any_new(rng)
