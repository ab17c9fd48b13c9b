"""What became of each item of a build; the same for local builds and builds on a farm.

Owns: the outcome of an item, and the error that reports all failed ones. Does not own: showing it (`farm.cli`).

Invariant: a report of failure names every item that failed, with its target.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from farm.building.plan import BuildItem
from farm.errors import BuildFailed, FarmError


class ItemState(enum.Enum):
    """How far an item is."""

    QUEUED = "queued"
    BUILDING = "building"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """The state of one item.

    Attributes
    ----------
    agent_id
        Who builds it; empty while queued.
    seconds
        Time that the compiler took.
    cached
        Nobody compiled it in this request: it was in the build cache.
    """

    item: BuildItem
    state: ItemState
    agent_id: str = ""
    seconds: float = 0.0
    cached: bool = False
    error: FarmError | None = None


Progress = Callable[[ItemOutcome], None]
"""Called with each change of an item, for progress displays."""


def failure(outcomes: Sequence[ItemOutcome]) -> BuildFailed | None:
    """Return the error that reports every failed item, by target; None if all were built."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if not failed:
        return None
    lines = [f"  {outcome.item}: {outcome.error}" for outcome in failed]
    built = sum(outcome.state is ItemState.DONE for outcome in outcomes)
    summary = f"build: {len(failed)} of {len(outcomes)} items failed ({built} built)"
    return BuildFailed(
        "\n".join([f"{summary}; mend or drop them:", *lines]),
        **{f"{o.item.target}/{o.item.function.name}": o.error.code for o in failed if o.error},
    )
