"""Tuning the emulated accelerator: how many evaluations the best schedule of all takes, beside random search.

The whole space of an int8 layer is timed first, in cycles of the accelerator's model: the same on every machine.

Figures: ``ea_search_NAME`` (evaluations until the best of the landscape, mean over seeds, over those that random search
needs on average; it begins with nothing), and ``ea_tuned_NAME`` (the same of one tuning through a farm, whose device
measures the cycles, and which begins with the default schedule).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

import numpy as np
from support.figures import emit

import farm
from farm import ops, te
from farm.codegen.ea.epilogue import compile_epilogue
from farm.codegen.ea.lift import lift
from farm.codegen.ea.schedule import schedule
from farm.codegen.ea.tiling import choose_tiling
from farm.ea.config import EA16
from farm.ir import Function
from farm.runtime.ea.machine import CompiledMachine
from farm.runtime.ea.program import LoadedProgram
from farm.target import Target
from farm.testing import AgentPlan, EmbeddedFarm
from farm.tune import Search, Space
from farm.tune.templates import template_for
from farm.tune.tuning import tune

LAYERS = {"tall": (100, 32, 64), "square": (64, 64, 128)}
"""Rows, columns and depth."""
TARGET = "ea -config=ea16"


def layer(name: str) -> Function:
    """Return a product of int8 matrices."""
    rows, columns, depth = LAYERS[name]
    x = te.placeholder((rows, depth), "int8", name="x")
    w = te.placeholder((depth, columns), "int8", name="w")
    return te.function("layer", [x, w, ops.matmul(x, w)])


def landscape(function: Function, space: Space) -> np.ndarray:
    """Return the cycles of every schedule of a function."""
    machine, lifted = CompiledMachine(EA16), lift(function)
    epilogue = compile_epilogue(lifted)

    def cycles(number: int) -> float:
        hints = {name: int(value) for name, value in space.configuration(number).items()}
        tiles = choose_tiling(lifted, epilogue, EA16, hints)
        program = schedule(lifted, epilogue, tiles, EA16)
        return float(machine.time(LoadedProgram.of(program)).cycles)

    return np.array([cycles(number) for number in range(space.size)])


def evaluations(space: Space, costs: np.ndarray, seed: int) -> int:
    """Return how many evaluations the default strategy takes to the best."""
    search, best, count = Search(space, seed=seed), costs.min(), 0
    while search.history.best is None or search.history.best[1] > best:
        for number in search.ask():
            search.tell(number, float(costs[number]))
            count += 1
    return count


def through_a_farm(function: Function, costs: np.ndarray, trials: int) -> int | None:
    """Return how many trials one tuning on a farm takes to the best; None if it does not get there."""
    plans = [
        AgentPlan("ea-1", ("ea",), ("ea:ea16@ea-0",), slots=1),
        AgentPlan("cpu-1", (Target.parse("llvm").family,), (), slots=1),
    ]
    with (
        EmbeddedFarm("processes", plans=plans) as embedded,
        farm.connect(embedded.address) as client,
    ):
        found = tune(
            function, client, selector="kind=ea", trials=trials, decide_s=0.5, ceilings=False
        )
    (decision,) = found.decisions
    values = [point.value for point in decision.task.points]
    return next((n for n, value in enumerate(values, 1) if value == costs.min()), None)


def measure(name: str, seeds: int) -> None:
    """Print the figures of one layer."""
    function = layer(name)
    template = template_for(function, TARGET)
    costs = landscape(function, template.space)
    hits = int((costs == costs.min()).sum())
    random = (len(costs) + 1) / (hits + 1)  # the mean place of the first of some hits among all
    first = template.space.number(template.default)
    needed = [evaluations(template.space, costs, seed) for seed in range(seeds)]
    _emit(f"ea_search_{name}", statistics.mean(needed), random, seeds, needed)
    trials = min(len(costs), max(64, round(0.1 * random)))
    tuned = through_a_farm(function, costs, trials)
    if tuned is not None:
        _emit(f"ea_tuned_{name}", tuned, random, 1, ())
    print(
        f"{name}: {len(costs)} schedules, {hits} of {costs.min():.0f} cycles, default "
        f"{costs[first] / costs.min():.3f} times that; random needs {random:.0f}, ours "
        f"{statistics.mean(needed):.1f} ({min(needed)} to {max(needed)}), through the farm {tuned}",
        file=sys.stderr,
    )


def _emit(name: str, needed: float, random: float, samples: int, spread: Sequence[float]) -> None:
    emit(
        name,
        needed / random,
        "of the evaluations that random search needs",
        goal="<= 0.05",
        samples=samples,
        lower_is_better=True,
        spread=[each / random for each in spread],
    )


def main() -> None:
    """Measure every layer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", choices=LAYERS, help="one of the layers")
    chosen = parser.parse_args()
    for name in [chosen.only] if chosen.only else LAYERS:
        measure(name, chosen.seeds)


if __name__ == "__main__":
    main()
