"""Best kernels in turns, by one timer.

Owns: that timer. Does not own: whose kernels they are.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import threadpoolctl

from farm.artifact import Artifact
from farm.runtime.interface import Array
from farm.runtime.local import local_capabilities
from farm.runtime.native import NativeLoader

ROUNDS = 60


def interleaved(
    artifact: Path, arrays: Sequence[Array], others: Mapping[str, Callable[[], object]]
) -> dict[str, float]:
    """Return the median time of a call in ns, on one thread: an artifact's only function, numpy's BLAS, others."""
    here = local_capabilities(accelerators=False)
    loader = NativeLoader(here.targets, here.provides, time.thread_time_ns)
    loaded = Artifact.load(artifact)
    (symbol,) = loaded.symbols
    times: dict[str, list[int]] = {name: [] for name in ("ours", "numpy", *others)}
    with loader.load(loaded) as module, threadpoolctl.threadpool_limits(1):
        result = module.call(symbol, arrays, repeat=2).outputs[0]
        np.testing.assert_allclose(result, arrays[0] @ arrays[1], rtol=1e-3, atol=1e-3)
        for _ in range(ROUNDS):
            times["ours"] += module.call(symbol, arrays, repeat=1).samples_ns
            for name, call in {"numpy": lambda: arrays[0] @ arrays[1], **others}.items():
                began = time.thread_time_ns()
                call()
                times[name].append(time.thread_time_ns() - began)
    return {name: statistics.median(found) for name, found in times.items()}
