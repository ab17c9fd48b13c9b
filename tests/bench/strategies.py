"""Search strategies, scored on spaces that were measured whole: no device is needed.

Figures, for each space: ``SPACE_50`` and ``SPACE_200``, the mean fraction of the known optimum that the default
strategy found within so many evaluations (failed ones count too). Peer: the best of Kernel Tuner's strategies in its
simulation mode (extra ``peers``), in the same run, on the same files.

The spaces are of the FAIR Benchmark Hub for Auto-Tuning (DOI 10.5281/zenodo.15364124): ``NAME_DEVICE.csv.gz`` with
the parameters, ``time_ms`` and ``error``, beside ``NAME.T1.json``. Name their folder with ``--spaces`` or the variable
FARM_TUNING_SPACES; without one there is nothing to do.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import json
import os
import random
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from support.figures import emit

from farm.tune import DEFAULT_STRATEGY, Search, Space

EVALUATIONS = (50, 200)
PEERS = (
    *("random_sample", "genetic_algorithm", "diff_evo", "simulated_annealing", "dual_annealing"),
    *("mls", "greedy_ils", "pso", "firefly_algorithm"),
)


@dataclass(frozen=True)
class Measured:
    """A space and the cost of each of its configurations, infinite where it failed."""

    name: str
    space: Space
    costs: np.ndarray

    def found(self, costs: list[float]) -> list[float]:
        """Return the fraction of the optimum after 50 and 200 of these evaluations."""
        best = np.minimum.accumulate([*costs, *[np.inf] * max(EVALUATIONS)])
        return [float(self.costs.min() / best[count - 1]) for count in EVALUATIONS]


def measured(file: Path) -> Measured:
    """Read a space; every row has to be one of its configurations, and every configuration a row."""
    name = file.name.removesuffix(".csv.gz")
    described = json.loads((file.parent / f"{name.split('_')[0]}.T1.json").read_text())
    parts = described["ConfigurationSpace"]
    parameters = {each["Name"]: values(each["Values"]) for each in parts["TuningParameters"]}
    space = Space(parameters, [each["Expression"] for each in parts["Conditions"]])
    costs = np.full(space.size, np.nan)
    with gzip.open(file, "rt") as text:
        for row in csv.DictReader(text):
            number = space.number({each.name: int(row[each.name]) for each in space.parameters})
            costs[number] = np.inf if row["error"] else float(row["time_ms"])
    assert not np.isnan(costs).any(), f"{name}: configurations without a measurement"
    return Measured(name, space, costs)


def values(text: str) -> list[int]:
    """Return a list of numbers, written out or as one comprehension over a range."""
    return list(eval(text, {"__builtins__": {}, "range": range}))


def ours(of: Measured, seeds: int) -> list[list[float]]:
    """Return what the default strategy found for each seed."""
    results = []
    for seed in range(seeds):
        search, told = Search(of.space, seed=seed), []
        while len(told) < max(EVALUATIONS) and not search.exhausted:
            (number,) = search.ask()
            cost = float(of.costs[number])
            search.tell(number, None if np.isinf(cost) else cost)
            told.append(cost)
        results.append(of.found(told))
    return results


def theirs(of: Measured, strategy: str, seeds: int, folder: Path) -> list[list[float]]:
    """Return what a strategy of Kernel Tuner found for each seed."""
    import kernel_tuner

    names = [each.name for each in of.space.parameters]
    cache = folder / f"{of.name}.json"
    results = []
    for seed in range(seeds):
        cache.write_text(json.dumps(_cache(of, names)))
        random.seed(seed)
        np.random.seed(seed)
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            told, _ = kernel_tuner.tune_kernel(
                "kernel",
                "__global__ void kernel() {}",
                1,
                [],
                {each.name: list(each.values) for each in of.space.parameters},
                restrictions=[each.text for each in of.space.constraints] or None,
                simulation_mode=True,
                cache=str(cache),
                strategy=strategy,
                strategy_options={"max_fevals": max(EVALUATIONS)},
                lang="CUDA",
                verbose=False,
                quiet=True,
            )
        costs = [each["time"] for each in told]
        results.append(of.found([cost if isinstance(cost, float) else np.inf for cost in costs]))
    return results


def _cache(of: Measured, names: list[str]) -> dict[str, object]:
    entries = {}
    for number, cost in enumerate(of.costs):
        configuration = of.space.configuration(number)
        time = "RuntimeFailedConfig" if np.isinf(cost) else float(cost)
        key = ",".join(str(configuration[name]) for name in names)
        zero = dict.fromkeys(("compile_time", "verification_time", "benchmark_time"), 0)
        zero |= {"strategy_time": 0, "framework_time": 0}
        times = {} if np.isinf(cost) else {"times": [time]}
        entries[key] = {
            **configuration,
            "time": time,
            **times,
            **zero,
            "timestamp": "2026-01-01 00:00:00+00:00",
        }
    return {
        "device_name": "simulated",
        "kernel_name": "kernel",
        "problem_size": 1,
        "tune_params_keys": names,
        "tune_params": {each.name: list(each.values) for each in of.space.parameters},
        "objective": "time",
        "cache": entries,
    }


def main() -> int:
    """Score every space of the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("FARM_TUNING_SPACES")
    parser.add_argument("--spaces", type=Path, default=Path(default) if default else None)
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    files = sorted(options.spaces.glob("*.csv.gz")) if options.spaces else []
    if not files:
        print("strategies: no spaces; name their folder with --spaces", file=sys.stderr)
        return 0 if options.spaces is None else 2
    try:
        import kernel_tuner  # noqa: F401 - is it here?

        peers: tuple[str, ...] = PEERS
    except ImportError:
        peers = ()
    for file in files:
        of = measured(file)
        found = np.array(ours(of, options.seeds)).mean(axis=0)
        with tempfile.TemporaryDirectory() as folder:
            scores = {
                name: np.array(theirs(of, name, options.seeds, Path(folder))).mean(axis=0)
                for name in peers
            }
        for index, count in enumerate(EVALUATIONS):
            best = max(scores, key=lambda name: float(scores[name][index]), default=None)
            emit(
                f"{of.name}_{count}",
                float(found[index]),
                f"of the optimum ({DEFAULT_STRATEGY})",
                goal=">= peer",
                samples=options.seeds,
                lower_is_better=False,
                peer=None if best is None else f"Kernel Tuner {best}",
                peer_value=None if best is None else float(scores[best][index]),
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
