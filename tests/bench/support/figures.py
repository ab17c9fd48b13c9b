"""What every benchmark prints: one JSON line for each figure, and how it is measured beside a peer.

Owns: the form of a line, the load that it notes, and medians. Does not own: what is measured.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence


def median_s(run: Callable[[], object], samples: int, warmup: int = 2) -> tuple[float, list[float]]:
    """Return the median time of calls in seconds, and all times."""
    for _ in range(warmup):
        run()
    times = []
    for _ in range(samples):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times), times


def emit(
    name: str,
    value: float,
    unit: str,
    *,
    goal: str,
    samples: int,
    lower_is_better: bool,
    peer: str | None = None,
    peer_value: float | None = None,
    spread: Sequence[float] = (),
) -> None:
    """Print one figure; `ratio` above 1 means better than the peer, None that one of the two is 0."""
    ratio = None
    if peer_value and value:
        ratio = peer_value / value if lower_is_better else value / peer_value
    line = {
        "name": name,
        "value": round(value, 4),
        "unit": unit,
        "goal": goal,
        "peer": peer,
        "peer_value": None if peer_value is None else round(peer_value, 4),
        "ratio": None if ratio is None else round(ratio, 3),
        "samples": samples,
        "p10_p90": _spread(spread),
        "load": round(os.getloadavg()[0], 2),
    }
    print(json.dumps(line), flush=True)


def _spread(values: Sequence[float]) -> list[float] | None:
    if len(values) < 10:
        return None
    ordered = sorted(values)
    return [round(ordered[len(ordered) // 10], 6), round(ordered[len(ordered) * 9 // 10], 6)]
