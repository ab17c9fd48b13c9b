"""When a tuning is over.

Owns: the rules. Does not own: what is tuned.
"""

from __future__ import annotations

from dataclasses import dataclass

from farm.errors import InvalidInput

GAIN = 0.01
"""Less is no gain."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Whichever is reached first ends a tuning.

    Parameters
    ----------
    trials
        Of all workloads together, resumed ones included; 1 to a million.
    time_s
        From the start.
    patience
        Trials of a workload in a row without a gain of 1 %.
    near
        Stop a workload that reaches this part of the roofline, above 0 to 1.

    Raises
    ------
    InvalidInput
        One is out of range.
    """

    trials: int = 64
    time_s: float | None = None
    patience: int | None = None
    near: float | None = None

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("trials", self.trials, 1, 1_000_000),
            ("time_s", self.time_s, 0.001, 1e9),
            ("patience", self.patience, 1, 1_000_000),
            ("near", self.near, 0.001, 1),
        ):
            if value is not None and not low <= value <= high:
                raise InvalidInput(f"tune: {name} is {value:g}; use {low:g} to {high:g}")
