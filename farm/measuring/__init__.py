"""What a measure is: how it is asked for, what it gives, and what may be concluded from it.

Owns: options, samples, statistics, noise grades, verdicts, and their messages. Does not own: taking samples
(`farm_agents.worker`), or asking for them (`farm.client`).

Invariant: numbers of different units, timing classes or cache modes are never compared.
"""

from farm.measuring.values import (
    CacheMode,
    ComparedPair,
    Comparison,
    Grade,
    Measurement,
    Options,
    Samples,
    Statistics,
    Status,
    Verdict,
)

__all__ = [
    "CacheMode",
    "ComparedPair",
    "Comparison",
    "Grade",
    "Measurement",
    "Options",
    "Samples",
    "Statistics",
    "Status",
    "Verdict",
]
