"""Which workload gets the next trials: the one where they promise to save most time.

Owns: that choice. Notes: the gradients of Ansor's task scheduler (Zheng et al., OSDI 2020): what the last trials
gained, and what as many more could gain if progress went on as it did on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

WINDOW = 16
WARM_UP = 16
"""Trials of a workload before its gradient says anything."""
TRUST = 0.5
"""In what it gained lately, against what it may gain."""


class Tunable(Protocol):
    """What the choice looks at.

    Attributes
    ----------
    bests
        The best value after each trial that had one.
    weight
        How much a saving counts.
    """

    trials: int
    bests: list[float]
    weight: float


def gradient(task: Tunable) -> float:
    """Return the time that a trial is expected to save; infinite before anything is known."""
    if task.trials < WARM_UP or not task.bests:
        return float("inf") if task.trials < WARM_UP else 0.0
    now = task.bests[-1]
    before = task.bests[max(0, len(task.bests) - 1 - WINDOW)]
    lately = (before - now) / min(WINDOW, len(task.bests))
    hoped = now / task.trials
    return task.weight * (TRUST * lately + (1 - TRUST) * hoped)


def choose(tasks: Sequence[Tunable]) -> int:
    """Return the index of the workload that gets the next trials; the one with the fewest if several are alike."""
    return max(range(len(tasks)), key=lambda n: (gradient(tasks[n]), -tasks[n].trials, -n))
