"""What may be concluded from samples.

Owns: statistics of one column, noise grades, paired ratios and their verdict. Does not own: taking samples.

Invariant: pure and deterministic: the bootstrap has a fixed seed, so that equal samples give equal conclusions.

Notes
-----
The estimator of a comparison is the median of ratios of samples that were taken next to each other, of the CPU time of
the calling thread: whatever slows the machine down for longer than a pair slows both of it, and time in which others
run is not counted. The interval is the percentile bootstrap of that median.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from farm.errors import InvalidInput
from farm.measuring.values import ComparedPair, Grade, Samples, Statistics, Verdict

RESAMPLES = 1_000
FEW = 5
"""Of so few numbers a resample has the least or the largest as its median so often (0.05 and more), that an interval of
0.99 ends at them: nothing needs to be drawn."""
DRAWN_AT_ONCE = 1 << 18
"""Numbers; many samples would take hundreds of megabytes otherwise."""
CONFIDENCE = 0.95
LOOK_CONFIDENCE = 0.99
"""Of the interval that ends a comparison early: who looks again and again is fooled more often."""
WINDOWS = 3
"""That agree, before what follows counts."""
MIN_CLEAN = 3
MIN_PAIRS = 10
"""Fewer say nothing. If so few are clean, all are used: CPU time has little of what disturbed them."""
GRADES = ((Grade.A, 0.01), (Grade.B, 0.05))
_SEED = 20_240_229

Numbers = NDArray[np.float64]


def interval(values: Numbers, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the bootstrap interval of the median of at least one number."""
    if len(values) <= FEW:
        return float(values.min()), float(values.max())
    rng = np.random.default_rng(_SEED)
    at_once = max(1, DRAWN_AT_ONCE // len(values))
    counts = [min(at_once, RESAMPLES - start) for start in range(0, RESAMPLES, at_once)]
    drawn = (values[rng.integers(0, len(values), (count, len(values)))] for count in counts)
    medians = np.concatenate([np.median(some, axis=1) for some in drawn])
    tail = (1 - confidence) / 2
    low, high = np.quantile(medians, (tail, 1 - tail))
    return float(low), float(high)


def statistics_of(samples: Samples, clock: str) -> Statistics | None:
    """Return statistics of one call by a clock; None without samples."""
    values = [float(value) for value in samples.per_call(clock)]
    if not values:
        return None
    hidden = set(samples.disturbed)
    clean = [value for index, value in enumerate(values) if index not in hidden]
    used = clean if len(clean) >= MIN_CLEAN else values
    ordered = sorted(used)
    p10, first, median, third = (_quantile(ordered, part) for part in (0.1, 0.25, 0.5, 0.75))
    low, high = interval(np.array(used)) if len(used) > FEW else (ordered[0], ordered[-1])
    return Statistics(
        n=len(values),
        clean=len(clean),
        min=ordered[0],
        p10=p10,
        median=median,
        spread=(third - first) / 2,
        low=low,
        high=high,
    )


def _quantile(ordered: Sequence[float], part: float) -> float:
    """Return what `numpy.quantile` does, which takes a millisecond when a new process calls it first."""
    at = part * (len(ordered) - 1)
    below = int(at)
    more = at - below
    one, other = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    return other - (other - one) * (1 - more) if more >= 0.5 else one + (other - one) * more


def grade_of(found: Statistics | None) -> Grade:
    """Return how far the noise of samples allows conclusions."""
    if found is None or found.clean < MIN_CLEAN or found.median <= 0:
        return Grade.C
    half = max(found.high - found.median, found.median - found.low) / found.median
    return next((grade for grade, limit in GRADES if half <= limit), Grade.C)


def compare(
    first: Samples,
    other: Samples,
    clock: str,
    threshold: float,
    confidence: float = CONFIDENCE,
) -> ComparedPair:
    """Return what interleaved samples say of `other` against `first`; samples of one index are a pair.

    Parameters
    ----------
    threshold
        Differences below it do not matter, as a part of 1.
    """
    a, b = np.array(first.per_call(clock)), np.array(other.per_call(clock))
    count = min(len(a), len(b))
    usable = np.zeros(count, np.bool_)
    usable[:] = (a[:count] > 0) & (b[:count] > 0)
    clean = usable.copy()
    clean[[index for index in (*first.disturbed, *other.disturbed) if index < count]] = False
    chosen = clean if clean.sum() >= MIN_PAIRS else usable
    if not chosen.any():
        return ComparedPair(Verdict.INCONCLUSIVE, pairs=count)
    ratios = b[:count][chosen] / a[:count][chosen]
    low, high = interval(ratios, confidence)
    enough = chosen.sum() >= MIN_PAIRS
    return ComparedPair(
        verdict=verdict_of(low, high, threshold) if enough else Verdict.INCONCLUSIVE,
        ratio=float(np.median(ratios)),
        low=low,
        high=high,
        pairs=count,
        clean=int(clean.sum()),
    )


def compare_parts(
    first: Sequence[Samples], other: Sequence[Samples], clock: str, threshold: float
) -> ComparedPair:
    """Return what the interleaved samples of several processes say together.

    A difference must show in each of them: one that only one process has is of how that one lies in memory.
    """
    whole = compare(joined(first), joined(other), clock, threshold)
    if whole.verdict not in (Verdict.FASTER, Verdict.SLOWER):
        return whole
    parts = [compare(a, b, clock, threshold) for a, b in zip(first, other, strict=True)]
    edge = 1 - threshold if whole.verdict is Verdict.FASTER else 1 + threshold
    agree = all((it.ratio < edge) == (whole.verdict is Verdict.FASTER) for it in parts)
    return whole if agree else replace(whole, verdict=Verdict.INCONCLUSIVE)


def verdict_of(low: float, high: float, threshold: float) -> Verdict:
    """Return what the interval of a ratio means."""
    if high < 1 - threshold:
        return Verdict.FASTER
    if low > 1 + threshold:
        return Verdict.SLOWER
    if low >= 1 - threshold and high <= 1 + threshold:
        return Verdict.SAME
    return Verdict.INCONCLUSIVE


def disturbed(samples: Samples, excess: float = 0.1) -> tuple[int, ...]:
    """Return the indices of samples that something disturbed.

    A sample is disturbed if its thread was made to wait, if the hypervisor gave the CPU to others for more than
    `excess` of it, or if it lasted longer by more than `excess` than the CPU time that it got.
    """
    found: list[int] = []
    for index, wall_ns in enumerate(samples.wall_ns):
        waited = bool(samples.switches) and samples.switches[index] > 0
        stolen = bool(samples.steal_ns) and samples.steal_ns[index] > excess * wall_ns
        idle = bool(samples.cpu_ns) and wall_ns > (1 + excess) * samples.cpu_ns[index]
        if waited or stolen or idle:
            found.append(index)
    return tuple(found)


def joined(parts: Sequence[Samples]) -> Samples:
    """Return samples of several processes as one, in order; they must have the same calls in each.

    Raises
    ------
    InvalidInput
        They have not.
    """
    first = parts[0]
    if any(part.calls != first.calls for part in parts):
        raise InvalidInput("samples: of different numbers of calls; measure again")
    columns: dict[str, tuple[int, ...]] = {}
    for name in first.columns():
        whole = [part.columns()[name] for part in parts]
        columns[name] = sum(whole, ()) if all(whole) else ()
    names = [name for name in first.observed if all(name in part.observed for part in parts)]
    offsets = np.cumsum([0, *(len(part.wall_ns) for part in parts)]).tolist()
    return Samples(
        calls=first.calls,
        **columns,
        observed={name: sum((part.observed[name] for part in parts), ()) for name in names},
        disturbed=tuple(
            offset + index
            for offset, part in zip(offsets, parts, strict=False)
            for index in part.disturbed
        ),
    )


def settled(windows: Sequence[float], within: float = 0.05, count: int = WINDOWS) -> bool:
    """Tell whether the last windows agree."""
    last = windows[-count:]
    return len(last) == count and max(last) <= (1 + within) * min(last)
