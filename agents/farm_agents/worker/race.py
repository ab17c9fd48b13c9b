"""Giving up on a candidate: that it is judged, and that it is much slower than the best so far.

Owns: how a measure ends without a value, the race, and which calls say something for it. Does not own: what is judged
(`measure`).

Invariant: a candidate that is much slower than the best so far ends itself by a timer of its CPU time, before it has
cost more than a few times that.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from farm.errors import FarmError, KernelFailed
from farm.measuring import CacheMode, Options, Status

RACE_SLACK = 1.5
"""How much slower than later calls the first one may be."""
RACE_LEAST_S = 0.005
RACED_SAMPLES = 3
RACED_FACTOR = 1.25
"""After so many samples what is so much slower than the best needs no more of them."""
LOST_FACTOR = 1.5
"""What is so much slower in each call that was checked needs no other call, if one lasts as long as a sample."""


class Judged(Exception):
    """A measure ended without a value that counts."""

    def __init__(self, status: Status, error: FarmError) -> None:
        super().__init__(error.message)
        self.status, self.error = status, error


@dataclass(frozen=True, slots=True)
class Race:
    """What a candidate is raced against.

    Parameters
    ----------
    incumbent
        What the best so far takes for a call, in ns or cycles; 0: there is none.
    has_timer
        Whether that is CPU time of this process.
    """

    incumbent: float
    factor: float
    has_timer: bool

    def is_lost(self, value: float) -> bool:
        """Tell whether a candidate that takes so much for a call is given up."""
        return 0 < self.incumbent * self.factor < value

    def check(self, name: str, value: float, clock: str) -> None:
        """Give the candidate up if it is too slow."""
        if self.is_lost(value):
            unit = "cycles" if clock == "cycles" else "ns"
            raise Judged(
                Status.SLOW,
                KernelFailed(
                    f"{name}: takes {value:.4g} {unit}, the best so far {self.incumbent:.4g}; given up"
                ),
            )

    @contextlib.contextmanager
    def timer(self) -> Iterator[None]:
        """End this process by SIGPROF if the context takes much more CPU time than a call of the best so far."""
        if self.incumbent <= 0 or not self.has_timer:
            yield
            return
        limit_s = self.incumbent * 1e-9 * self.factor * RACE_SLACK
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, max(RACE_LEAST_S, limit_s))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def is_telling(took: float, clock: str, options: Options) -> bool:
    """Tell whether what one call took can be compared with what others take that were called many times in a row.

    Cycles are the same in each call. Wall time, in which others run, says less, and short calls have warm caches
    and predictors only in a row.
    """
    long = took >= options.sample_s * 1e9 and options.cache is not CacheMode.ROTATE
    return clock == "cycles" or (clock == "cpu_ns" and long)
