"""Ports of accelerators: what tuning gains on each example, in cycles that its devices count or in time.

Figures, for each of `docs/examples/port`: ``NAME_default`` and ``NAME_tuned``, one layer with the default knobs and
with the best of all configurations (of some, where there are many), in cycles; ``blas`` and ``conv8`` (a layer of a
graph, built for this CPU) in ms. ``NAME_lines``: lines of its code. No peer: no other system runs these. Knobs are
searched by `farm.tune.Search`, results compared with numpy.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from support.figures import emit

import farm
from farm import ops, te
from farm.accel import Accelerator, Loaded
from farm.codegen.accelerator import with_knobs
from farm.codegen.accelerator.asking import knobs_on
from farm.codegen.accelerator.compile import compile_loaded
from farm.graph import Backend, Graph, GraphBuilder, GraphModule, build_graph, execute
from farm.ir import Function
from farm.runtime.plugin import open_program
from farm.tune import Search, Space
from farm.tune.space import Configuration

PORTS = Path(__file__).resolve().parents[2] / "docs" / "examples" / "port"
EXAMPLES = {
    "tile8": ("target", "tile8", "TILE8"),
    "dotcore": ("tensorize", "dotcore", "DOTCORE"),
    "blas": ("library", "blaslib", "BLAS"),
    "conv8": ("byoc", "conv8", "CONV8"),
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
        if accelerator.backend is not None:
            measure_backend(name, accelerator.backend, trials)
        else:
            measure(name, accelerator, trials)


def layer() -> Function:
    """Return a product of int8 matrices."""
    x, w = te.placeholder((M, K), "int8", name="x"), te.placeholder((K, N), "int8", name="w")
    return te.function("layer", [x, w, ops.matmul(x, w)])


def measure(name: str, accelerator: Accelerator, trials: int) -> None:
    """Search the knobs of one accelerator for one layer, and print the default and the best."""
    loaded, function = Loaded(accelerator, name), layer()
    knobs = knobs_on(loaded, function, name)
    unit, scale = ("ms", 1e3) if accelerator.timing == "native" else ("cycles", 1)

    def one(configuration: Configuration) -> float:
        return cost(loaded, with_knobs(function, configuration))

    search(name, knobs, one, trials, unit, scale)


def measure_backend(name: str, backend: Backend, trials: int) -> None:
    """Search the knobs of a backend of graphs for one convolution, and print the default and the best."""
    graph, image = convolution()
    (wanted,) = execute(graph, [image])

    def one(configuration: Configuration) -> float:
        built = build_graph(graph, [backend], options={name: configuration}, strict=True)
        with farm.load(built.artifact) as module:
            loaded = GraphModule(built, module)
            assert (loaded([image])[0] == wanted).all()
            times = loaded.measure([image], repeat=20)
        return sum(it.median_s for it in times.values())

    search(name, backend.knobs, one, trials, "ms", 1e3)


def convolution() -> tuple[Graph, np.ndarray]:
    """Return a 3x3 convolution of int8 with its rescaling, 14x14 places and 64 channels, and an image."""
    rng = np.random.default_rng(1)
    b = GraphBuilder("layer")
    x = b.input("x", (1, 14, 14, 64), "int8")
    weights = b.constant(rng.integers(-90, 90, (3, 3, 64, 64)).astype(np.int8))
    y = b.op("conv2d", x, weights, layout="NHWC", padding=[1, 1])
    y = b.op("add", y, b.constant(rng.integers(-999, 999, 64).astype(np.int32)))
    multiplier, shift = np.full(64, 1 << 30, np.int32), np.full(64, 40, np.int32)
    y = b.op("requantize", y, b.constant(multiplier), b.constant(shift))
    return b.finish(b.op("relu", y)), rng.integers(-128, 128, (1, 14, 14, 64)).astype(np.int8)


def search(
    name: str,
    knobs: Mapping[str, Sequence[int]],
    one: Callable[[Configuration], float],
    trials: int,
    unit: str,
    scale: float,
) -> None:
    """Print what `one` says of the first value of each knob, and of the best configuration that a search finds."""
    space = Space(knobs)
    found = Search(space, seed=1)
    first = space.number({key: values[0] for key, values in knobs.items()})
    default = one(space.configuration(first))
    found.tell(first, default)
    while len(found.history.costs) < min(trials, space.size):
        for number in found.ask(1):
            found.tell(number, one(space.configuration(number)))
    assert found.best is not None
    samples = len(found.history.costs)
    for which, value in (("default", default), ("tuned", found.best[1])):
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
