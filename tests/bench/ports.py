"""Ports of accelerators: what tuning gains on each example, in cycles that its devices count or in time.

Figures, for each of `docs/examples/port`: ``NAME_default`` and ``NAME_tuned``, one layer with the default knobs and
with the best of all configurations (of some, where there are many), in cycles; ``blas`` in ms. ``NAME_lines``: lines of
its code. No peer: no other system runs these. Knobs are searched by `farm.tune.Search`, results compared with numpy.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from support.figures import emit

from farm import ops, te
from farm.accel import Accelerator, Loaded
from farm.codegen.accelerator import with_knobs
from farm.codegen.accelerator.asking import knobs_on
from farm.codegen.accelerator.compile import compile_loaded
from farm.ir import Function
from farm.runtime.plugin import open_program
from farm.tune import Search, Space

PORTS = Path(__file__).resolve().parents[2] / "docs" / "examples" / "port"
EXAMPLES = {
    "tile8": ("target", "tile8", "TILE8"),
    "dotcore": ("tensorize", "dotcore", "DOTCORE"),
    "blas": ("library", "blaslib", "BLAS"),
    "marlann": ("marlann", "marlann", "MARLANN"),
}
TRIALS = 48
M, N, K = 96, 80, 200


def main() -> None:
    """Print the figures of every example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    trials = parser.parse_args().trials
    for name, (folder, module, attribute) in EXAMPLES.items():
        sys.path.insert(0, str(PORTS / folder))
        accelerator = getattr(__import__(module), attribute)
        lines = sum(len(it.read_text().splitlines()) for it in (PORTS / folder).rglob("*.py"))
        goal = "about 150; marlann is a whole package"
        emit(f"{name}_lines", lines, "lines", goal=goal, samples=1, lower_is_better=True)
        measure(name, accelerator, trials)


def layer() -> Function:
    """Return a product of int8 matrices."""
    x, w = te.placeholder((M, K), "int8", name="x"), te.placeholder((K, N), "int8", name="w")
    return te.function("layer", [x, w, ops.matmul(x, w)])


def measure(name: str, accelerator: Accelerator, trials: int) -> None:
    """Search the knobs of one accelerator for one layer, and print the default and the best."""
    loaded, function = Loaded(accelerator, name), layer()
    knobs = knobs_on(loaded, function, name)
    space = Space(knobs)
    search = Search(space, seed=1)
    unit, scale = ("ms", 1e3) if accelerator.timing == "native" else ("cycles", 1)
    first = space.number({key: values[0] for key, values in knobs.items()})
    default = cost(loaded, with_knobs(function, space.configuration(first)))
    search.tell(first, default)
    while len(search.history.costs) < min(trials, space.size):
        for number in search.ask(1):
            chosen = with_knobs(function, space.configuration(number))
            search.tell(number, cost(loaded, chosen))
    assert search.best is not None
    samples = len(search.history.costs)
    for which, value in (("default", default), ("tuned", search.best[1])):
        emit(
            *(f"{name}_{which}", value * scale, unit),
            goal="tuned <= default",
            samples=samples,
            lower_is_better=True,
            peer="default",
            peer_value=default * scale,
        )


def cost(loaded: Loaded, function: Function) -> float:
    """Return the cycles of one run, or the least of some times in seconds; the result is compared."""
    form, program = compile_loaded(loaded, function, loaded.config(loaded.accelerator.name))
    run = open_program(loaded, form, program, loaded.config(loaded.accelerator.name), "")
    rng = np.random.default_rng(0)
    x, w = rng.integers(-128, 128, (M, K), np.int8), rng.integers(-128, 128, (K, N), np.int8)
    arrays = [x, w, np.zeros((M, N), np.int32)]
    x.flags.writeable = w.flags.writeable = False
    cycles = run(arrays)
    assert np.array_equal(arrays[-1], x.astype(np.int32) @ w.astype(np.int32))
    if cycles is not None:
        return float(cycles)
    times = []
    for _ in range(20):
        began = time.perf_counter()
        run(arrays)
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    main()
