"""A comparison from what was measured.

Owns: putting the samples of several processes together, and the pairs. Does not own: statistics (`statistics`), or
taking samples.

Invariant: what did not run right alone is in no pair that has a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from farm.measuring.statistics import (
    compare_parts,
    grade_of,
    joined,
    statistics_of,
    verdict_of,
)
from farm.measuring.values import ComparedPair, Comparison, Measurement, Samples, Verdict


def compared(
    alone: Sequence[Measurement], parts: Mapping[int, Sequence[Samples]], threshold: float
) -> Comparison:
    """Return what comparing with the first gave.

    Parameters
    ----------
    alone
        What measuring each candidate alone gave.
    parts
        By index of a candidate, its interleaved samples in each process; those without any did not run right.
    """
    found = [
        _with_samples(measurement, parts[index]) if index in parts else measurement
        for index, measurement in enumerate(alone)
    ]
    pairs = []
    for index, measurement in enumerate(found[1:], 1):
        if index not in parts or 0 not in parts:
            pairs.append(ComparedPair(Verdict.NONE))
            continue
        found[0].check_comparable(measurement)
        if measurement.unit == "cycles":
            pairs.append(_exact(found[0], measurement, threshold))
            continue
        pairs.append(compare_parts(parts[0], parts[index], measurement.clock, threshold))
    rounds = len(found[0].samples.wall_ns) if 0 in parts else 0
    return Comparison(tuple(found), tuple(pairs), rounds=rounds)


def _with_samples(measurement: Measurement, parts: Sequence[Samples]) -> Measurement:
    samples = joined(parts)
    statistics = statistics_of(samples, measurement.clock)
    return replace(measurement, samples=samples, statistics=statistics, grade=grade_of(statistics))


def _exact(first: Measurement, other: Measurement, threshold: float) -> ComparedPair:
    """Return the pair of two that are the same in each call."""
    a, b = first.statistics, other.statistics
    if a is None or b is None or a.median <= 0:
        return ComparedPair(Verdict.NONE)
    ratio = b.median / a.median
    count = min(a.n, b.n)
    return ComparedPair(verdict_of(ratio, ratio, threshold), ratio, ratio, ratio, count, count)
