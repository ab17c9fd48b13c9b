"""How much the choice of tiles matters on the emulated accelerator, in cycles of its model: the same on every machine.

Figures, for int8 products, convolutions and pools: ``landscape_NAME_best`` (part of the roofline that the best tiles
found reach), ``landscape_NAME_default`` (how many times longer the tiles take chosen without hints; 1: none found is
faster) and ``landscape_NAME_cycles`` (of the tiles chosen without hints; the peer is the roofline). Standard error says
how far the median and the worst are from the best.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable

import numpy as np
from support.figures import emit

from farm import ops, te
from farm.codegen.ea.epilogue import compile_epilogue
from farm.codegen.ea.lift import lift
from farm.codegen.ea.schedule import schedule
from farm.codegen.ea.tiling import choose_tiling
from farm.ea.config import EA16
from farm.ea.timing import Timing
from farm.ir import Function
from farm.runtime.ea.machine import CompiledMachine
from farm.runtime.ea.program import LoadedProgram
from farm.tune.templates import template_for

LONGEST = 8_000
"""Instructions of a program that is timed; those of the tiniest tiles are longer, and slow."""


def product(rows: int, columns: int, depth: int) -> Function:
    """Return a product of int8 matrices."""
    a = te.placeholder((rows, depth), "int8", name="a")
    w = te.placeholder((depth, columns), "int8", name="w")
    return te.function("product", [a, w, ops.matmul(a, w)])


def convolution(size: int, channels: int, outputs: int, kernel: int, **options: int) -> Function:
    """Return a convolution of a square int8 image, with bias, rescaling and ReLU; outputs 0: depthwise."""
    x = te.placeholder((1, size, size, channels), "int8", name="x")
    groups, last = (1, outputs) if outputs else (channels, channels)
    w = te.placeholder((kernel, kernel, channels // groups, last), "int8", name="w")
    bias, multiplier, shift = (
        te.placeholder((last,), "int32", name=name) for name in ("bias", "multiplier", "shift")
    )
    sums = ops.conv2d(x, w, padding=kernel // 2, layout="NHWC", groups=groups, **options)
    y = ops.relu(ops.requantize(ops.add(sums, bias), multiplier, shift))
    return te.function("convolution", [x, w, bias, multiplier, shift, y])


def pool(size: int, channels: int, kernel: int, stride: int) -> Function:
    """Return the largest values of windows of a square int8 image."""
    x = te.placeholder((1, size, size, channels), "int8", name="x")
    y = ops.max_pool2d(x, kernel, stride=stride, padding=kernel // 2, layout="NHWC")
    return te.function("pool", [x, y])


LAYERS: dict[str, tuple[Callable[[], Function], str]] = {
    "512": (lambda: product(512, 512, 512), ">= 0.95"),
    "vector": (lambda: product(1, 1000, 2048), "none"),
    "tall": (lambda: product(3136, 64, 576), ">= 0.95"),
    "conv3x3": (lambda: convolution(56, 64, 64, 3), ">= 0.9"),
    "conv1x1": (lambda: convolution(56, 64, 256, 1), "none"),
    "strided": (lambda: convolution(56, 64, 128, 3, stride=2), "none"),
    "narrow": (lambda: convolution(7, 512, 512, 3), "none"),
    "depthwise": (lambda: convolution(56, 64, 0, 3), ">= 0.9"),
    "maxpool": (lambda: pool(112, 64, 3, 2), "none"),
}
"""Products by rows, columns and depth; layers of common networks; with the goal of the best."""


def measure(name: str, machine: CompiledMachine, schedules: int) -> None:
    """Time so many schedules of one layer."""
    make, goal = LAYERS[name]
    function = make()
    layer = lift(function)
    epilogue = compile_epilogue(layer)
    space = template_for(function, "ea -config=ea16").space

    def timed(hints: dict[str, int]) -> Timing | None:
        program = schedule(layer, epilogue, choose_tiling(layer, epilogue, EA16, hints), EA16)
        if len(program.instructions) > LONGEST:
            return None
        return machine.time(LoadedProgram.of(program))

    usual = timed({})
    assert usual is not None
    drawn = space.draw(np.random.default_rng(0), min(schedules, space.size))
    found = [timed({k: int(v) for k, v in space.configuration(n).items()}) for n in drawn]
    cycles = sorted(each.cycles for each in [usual, *found] if each is not None)
    # The least that any schedule does: each operand moves once, each block is multiplied once.
    bound = min(each.bound_cycles for each in [usual, *found] if each is not None)
    emit(
        f"landscape_{name}_best",
        bound / cycles[0],
        "of the roofline",
        goal=goal,
        samples=len(cycles),
        lower_is_better=False,
    )
    emit(
        f"landscape_{name}_default",
        usual.cycles / cycles[0],
        "times the best",
        goal="<= 1.2",
        samples=len(cycles),
        lower_is_better=True,
    )
    emit(
        f"landscape_{name}_cycles",
        usual.cycles,
        "cycles",
        goal="none",
        samples=1,
        lower_is_better=True,
        peer="roofline",
        peer_value=bound,
    )
    print(
        f"{name}: {space.size} schedules, {len(cycles)} timed; best {cycles[0]} cycles, median "
        f"{statistics.median(cycles) / cycles[0]:.2f} times that, worst {cycles[-1] / cycles[0]:.2f}; "
        f"{sum(each <= 1.05 * cycles[0] for each in cycles)} within 5 %",
        file=sys.stderr,
    )


def main() -> None:
    """Measure every layer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=300, help="of each layer")
    parser.add_argument("--only", choices=LAYERS, help="one of the layers")
    chosen = parser.parse_args()
    machine = CompiledMachine(EA16)
    for name in [chosen.only] if chosen.only else LAYERS:
        measure(name, machine, chosen.schedules)


if __name__ == "__main__":
    main()
