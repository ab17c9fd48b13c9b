"""Graphs: a layer of an author's own code generator before and after tuning, and how fast graphs are partitioned.

Figures: ``byoc_lines`` (of the example), ``byoc_default`` and ``byoc_tuned`` (ms of an int8 convolution of 14x14x64 to
64 channels, beside the CPU's default schedule; tuned is the best of all options, each built and checked against the
reference) and ``partition`` (nodes/s of random graphs, half of the nodes claimed).
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
from pathlib import Path

import numpy as np
from support.figures import emit, median_s

import farm
from farm.graph import GraphBuilder, GraphModule, build_graph, execute, partition

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "port" / "byoc" / "conv8.py"
REPEAT = 30
NODES = (1000, 4000)


def layer():
    """Return the layer, an image and what it gives."""
    rng = np.random.default_rng(1)
    b = GraphBuilder("residual")
    x = b.input("x", (1, 14, 14, 64), "int8")
    weight = b.constant(rng.integers(-90, 90, (3, 3, 64, 64)).astype(np.int8))
    y = b.op("conv2d", x, weight, layout="NHWC", padding=[1, 1])
    y = b.op("add", y, b.constant(rng.integers(-999, 999, 64).astype(np.int32)))
    factors = b.constant(np.full(64, 1 << 30, np.int32)), b.constant(np.full(64, 40, np.int32))
    graph = b.finish(b.op("relu", b.op("requantize", y, *factors)))
    image = rng.integers(-128, 128, (1, 14, 14, 64)).astype(np.int8)
    return graph, image, execute(graph, [image])[0]


def times_ms(graph, image, wanted, backends, options):
    """Return the times of the layer's only region, its result checked."""
    built = build_graph(graph, backends, options=options, strict=True)
    (step,) = built.plan.steps
    with farm.load(built.artifact) as module:
        loaded = GraphModule(built, module)
        assert (loaded([image])[0] == wanted).all()
        arrays = [image, *(built.plan.constants[name] for name in step.constants)]
        return [each / 1e6 for each in module.call(step.symbol, arrays, REPEAT).samples_ns]


def byoc() -> None:
    """Measure the example."""
    sys.path.insert(0, str(EXAMPLE.parent))
    from conv8 import BACKEND

    lines = len(EXAMPLE.read_text().splitlines())
    emit("byoc_lines", lines, "lines", goal="<= 150", samples=1, lower_is_better=True)
    case = layer()
    cpu = statistics.median(times_ms(*case, [], {}))
    found = {}
    for values in itertools.product(*BACKEND.knobs.values()):
        options = dict(zip(BACKEND.knobs, values, strict=True))
        found[values] = times_ms(*case, [BACKEND], {BACKEND.name: options})
    best = min(found.values(), key=statistics.median)
    for name, times in (("byoc_default", next(iter(found.values()))), ("byoc_tuned", best)):
        emit(
            name,
            statistics.median(times),
            "ms",
            goal="none",
            samples=REPEAT,
            lower_is_better=True,
            peer="default schedule for the CPU",
            peer_value=cpu,
            spread=times,
        )


def random_graph(count: int):
    """Return a graph in which each node reads two of the last six values."""
    source = random.Random(1)
    b = GraphBuilder("random")
    values = [b.input("x", (3,), "int32")]
    used: set[str] = set()
    for number in range(count):
        operands = [source.choice(values[-6:]) for _ in range(2)]
        used.update(operands)
        values.append(b.op("add", *operands, name=f"n{number}"))
    return b.finish(*(value for value in values[1:] if value not in used))


def partitions() -> None:
    """Measure partitions of two sizes: the rate stays if it is linear."""
    sys.path.insert(0, str(ROOT / "tests"))
    from graph_examples import Takes

    for count in NODES:
        graph = random_graph(count)
        backend = Takes("half", frozenset(f"n{number}" for number in range(0, count, 2)))
        time_s, times = median_s(lambda g=graph, b=backend: partition(g, [b]), 3, warmup=1)
        emit(
            f"partition_{count}",
            count / time_s,
            "nodes/s",
            goal="none",
            samples=len(times),
            lower_is_better=False,
        )


def main() -> None:
    """Measure all."""
    byoc()
    partitions()


if __name__ == "__main__":
    main()
