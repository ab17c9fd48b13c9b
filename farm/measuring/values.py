"""The values of measuring.

Owns: these types and their checks. Does not own: how they are computed (`statistics`) or sent (`wire`).

Invariant: options that exist are within their ranges; columns of samples that are not empty have one length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum, unique

from farm.errors import FarmError, InvalidInput

MAX_SUBJECTS = 16
MAX_SAMPLES = 10_000
MAX_NAME_BYTES = 128
MIN_THRESHOLD, MAX_THRESHOLD = 0.001, 0.5
MIN_ROUNDS, MAX_ROUNDS = 10, 10_000
DEFAULT_THRESHOLD = 0.02
DEFAULT_ROUNDS = (40, 400)
"""At least and at most, over all processes of a comparison."""
MAX_COMPARED = 20_000
"""Samples of all candidates of a comparison together: what travels in one result."""
MAX_SEED = (1 << 64) - 1
MAX_TOLERANCE = 1.0


@unique
class Status(StrEnum):
    """How a measure ended; only OK has a value that counts."""

    OK = "ok"
    SLOW = "slow"
    """Given up: much slower than the best one so far; its numbers may be unchecked."""
    WRONG = "wrong"
    """Wrong numbers, an input changed, or a write outside its buffers."""
    CRASH = "crash"
    """Ended the process that it ran in, or stopped the accelerator with a fault."""
    TIMEOUT = "timeout"
    REFUSED = "refused"
    """No slice for the device, or arguments that do not fit."""
    FORGED = "forged"
    """Its times cannot be true."""
    BUILD_FAILED = "build_failed"
    QUARANTINED = "quarantined"
    """Two devices were lost while it ran; it is not tried again."""


@unique
class CacheMode(StrEnum):
    """What the caches hold when a sample begins."""

    WARM = "warm"
    """What the call before left."""
    COLD = "cold"
    """Nothing of the arrays; a sample is one call."""
    ROTATE = "rotate"
    """Each call has arrays of its own out of several sets."""


@unique
class Grade(StrEnum):
    """How far the noise allows conclusions; half the 95 % interval of the median, relative to it."""

    A = "A"
    """Within 1 %."""
    B = "B"
    """Within 5 %."""
    C = "C"
    """Wider, or too few clean samples: decides nothing."""


@unique
class Verdict(StrEnum):
    """What a comparison says of a candidate against the first."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"
    """The budget ended before the interval was narrow enough."""
    NONE = "none"
    """One of the two did not run right."""


def _number(value: float, low: float, high: float, what: str) -> None:
    if not low <= value <= high:  # NaN too
        raise InvalidInput(f"{what}: out of range ({value:g}); use {low:g} to {high:g}")


@dataclass(frozen=True, slots=True)
class Options:
    """How to measure.

    Parameters
    ----------
    cache
        What the caches hold when a sample begins; part of what a value means.
    samples
        3 to 10,000.
    sample_s
        How long a sample lasts at least, 0.0001 to 0.05 s: as many calls as that takes.
    warm_up_s
        How long warming up may take, up to 60 s. It ends when three windows agree within 5 %.
    budget_s
        How long all samples may take, 0.001 to 600 s; one that was begun is ended, and there are three at least.
    limit_s
        Of all of it, checks included, 0.1 to 495 s.
    race_factor
        How much slower than the best so far a candidate may be before it is given up, 1 to 1,000.

    Raises
    ------
    InvalidInput
        Something is out of range.
    """

    cache: CacheMode = CacheMode.WARM
    samples: int = 10
    sample_s: float = 0.002
    warm_up_s: float = 0.5
    budget_s: float = 2.0
    limit_s: float = 30.0
    race_factor: float = 5.0

    def __post_init__(self) -> None:
        _number(self.samples, 3, MAX_SAMPLES, "measure: samples")
        _number(self.sample_s, 0.0001, 0.05, "measure: sample_s")
        _number(self.warm_up_s, 0.0, 60.0, "measure: warm_up_s")
        _number(self.budget_s, 0.001, 600.0, "measure: budget_s")
        _number(self.limit_s, 0.1, 495.0, "measure: limit_s")
        _number(self.race_factor, 1.0, 1000.0, "measure: race_factor")


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples, column by column; a column is empty where its numbers cannot be known.

    Attributes
    ----------
    calls
        In each sample.
    start_ns
        A steady clock; only differences mean anything.
    wall_ns, cpu_ns
        Duration, and CPU time of the calling thread.
    switches
        Times that the thread was made to wait.
    steal_ns
        What the hypervisor gave to others on this CPU meanwhile.
    clock_hz
        The core's clock after each.
    observed
        What further observers saw, by name, such as ``cycles`` or ``energy_uj``.
    disturbed
        Indices of samples that something disturbed: kept, and left out of statistics.
    """

    calls: int = 1
    start_ns: tuple[int, ...] = ()
    wall_ns: tuple[int, ...] = ()
    cpu_ns: tuple[int, ...] = ()
    switches: tuple[int, ...] = ()
    steal_ns: tuple[int, ...] = ()
    clock_hz: tuple[int, ...] = ()
    observed: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    disturbed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        columns = [*self.columns().values(), *self.observed.values()]
        lengths = {len(column) for column in columns if column}
        count = max(lengths, default=0)
        if self.calls < 1 or len(lengths) > 1 or any(not 0 <= i < count for i in self.disturbed):
            raise InvalidInput(
                f"samples: impossible (columns of {sorted(lengths)}, {self.calls} calls each); measure again"
            )

    def columns(self) -> dict[str, tuple[int, ...]]:
        """Return the columns of whole numbers by name."""
        scalar = ("calls", "observed", "disturbed")
        return {it.name: getattr(self, it.name) for it in fields(self) if it.name not in scalar}

    def per_call(self, clock: str) -> tuple[float, ...]:
        """Return a column (``cpu_ns``, ``wall_ns``, or an observer's) for one call; empty if there is none."""
        columns: Mapping[str, tuple[float, ...]] = {**self.columns(), **self.observed}
        return tuple(value / self.calls for value in columns.get(clock, ()))


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of the value of a call, over clean samples, in the measurement's unit.

    Attributes
    ----------
    n, clean
        Samples, and those that nothing disturbed; if these are fewer than three, all are used.
    spread
        Half the distance between the quartiles.
    low, high
        95 % bootstrap interval of the median.
    """

    n: int
    clean: int
    min: float
    p10: float
    median: float
    spread: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """What measuring one candidate on one device gave.

    Attributes
    ----------
    unit, clock
        ``ns`` or ``cycles`` of one call, and which column of the samples it is made of.
    timing_class
        ``native``, ``emulated`` or ``simulated``.
    statistics
        None without samples.
    checked
        Its numbers were compared with the reference, before and after timing.
    fingerprint
        Facts of the host; None where one cannot be read.
    host
        Names what of the host stays equal across reboots: equal texts, comparable values.
    phases
        Seconds of ``load``, ``inputs``, ``check``, ``warm_up``, ``time``.
    """

    status: Status
    error: FarmError | None = None
    unit: str = "ns"
    clock: str = "cpu_ns"
    timing_class: str = "unspecified"
    cache: CacheMode = CacheMode.WARM
    samples: Samples = field(default_factory=Samples)
    statistics: Statistics | None = None
    grade: Grade = Grade.C
    checked: bool = False
    fingerprint: Mapping[str, str | None] = field(default_factory=dict)
    host: str = ""
    target: str = ""
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def value(self) -> float | None:
        """The median of a call in `unit`; None unless the status is OK."""
        if self.status is not Status.OK or self.statistics is None:
            return None
        return self.statistics.median

    def check_of_one_kind(self, other: Measurement) -> None:
        """Raise InvalidInput unless another one is of the same timing class and cache mode, in a unit of the class."""
        kind = (other.timing_class, other.cache)
        if kind != (self.timing_class, self.cache) or (
            other.unit != ("cycles" if other.timing_class == "simulated" else "ns")
            and other.value is not None
        ):
            raise InvalidInput(
                f"measurement: {other.timing_class}, {other.cache} caches, in {other.unit[:40]!r}, where "
                f"{self.timing_class}, {self.cache} was asked for; measure again"
            )

    def check_comparable(self, other: Measurement) -> None:
        """Raise InvalidInput unless values of both may be compared."""
        mine = (self.unit, self.clock, self.timing_class, self.cache.value)
        theirs = (other.unit, other.clock, other.timing_class, other.cache.value)
        if mine != theirs:
            raise InvalidInput(
                f"measurements: not comparable ({', '.join(mine)} with {', '.join(theirs)}); measure both on devices "
                "of one timing class, in one cache mode"
            )


@dataclass(frozen=True, slots=True)
class ComparedPair:
    """A candidate against the first.

    Attributes
    ----------
    ratio
        Median of the paired ratios, candidate / first: below 1 is faster. NaN without pairs.
    low, high
        Its 95 % bootstrap interval.
    pairs, clean
        Pairs, and those that nothing disturbed.
    """

    verdict: Verdict
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    pairs: int = 0
    clean: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """What interleaving candidates on one device gave.

    Attributes
    ----------
    measurements
        Of each candidate, in the order asked; samples of one index belong to one round.
    pairs
        Of each candidate but the first.
    """

    measurements: tuple[Measurement, ...]
    pairs: tuple[ComparedPair, ...]
    rounds: int = 0
    error: FarmError | None = None
