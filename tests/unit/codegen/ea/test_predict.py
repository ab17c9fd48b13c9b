"""The estimate by which tiles are chosen, held against the cycle model."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from farm import ops, te
from farm.codegen.ea.epilogue import compile_epilogue
from farm.codegen.ea.lift import lift
from farm.codegen.ea.predict import predict
from farm.codegen.ea.schedule import schedule
from farm.codegen.ea.tiling import choose_tiling
from farm.ea.config import find_config
from farm.errors import UnsupportedFunction
from farm.ir import Function
from farm.runtime.ea.machine import CompiledMachine
from farm.runtime.ea.program import LoadedProgram
from farm.tune.templates import template_for

SHAPES = [(128, 128, 128), (1, 200, 300), (150, 40, 70), (33, 65, 17), (300, 16, 96)]
LONG = 600
"""Instructions of a program whose time is not worth the test's."""


MACHINES = functools.cache(CompiledMachine)


def product(shape, relu):
    rows, columns, depth = shape
    a = te.placeholder((rows, depth), "int8", name="a")
    w = te.placeholder((depth, columns), "int8", name="w")
    y = ops.matmul(a, w)
    if relu:
        y = te.compute((rows, columns), lambda i, j: te.maximum(y[i, j], 0), name="y")
    return te.function("f", [a, w, y])


def convolution(size, channels, outputs, kernel, groups=1, **options):
    x = te.placeholder((1, size, size, channels), "int8", name="x")
    w = te.placeholder((kernel, kernel, channels // groups, outputs), "int8", name="w")
    y = ops.conv2d(x, w, layout="NHWC", padding=kernel // 2, groups=groups, **options)
    return te.function("f", [x, w, ops.relu(y)])


def pool(size, channels, kernel, stride):
    x = te.placeholder((1, size, size, channels), "int8", name="x")
    return te.function("f", [x, ops.max_pool2d(x, kernel, stride=stride, layout="NHWC")])


WINDOWS = {
    "convolution": lambda: convolution(14, 32, 32, 3),
    "strided": lambda: convolution(15, 24, 40, 3, stride=2),
    "narrow": lambda: convolution(7, 64, 64, 3),
    "grouped": lambda: convolution(12, 40, 40, 3, groups=2),
    "depthwise": lambda: convolution(14, 48, 48, 3, groups=48),
    "pool": lambda: pool(16, 40, 3, 2),
    "mean of all": lambda: pool(14, 64, 14, 14),
}


class Measured:
    """A layer, and what it really takes with some hints."""

    def __init__(self, shape, config="ea16", relu=False):
        self.function = shape if isinstance(shape, Function) else product(shape, relu)
        self.config = find_config(config)
        self.layer = lift(self.function)
        self.epilogue = compile_epilogue(self.layer)
        self.template = template_for(self.function, f"ea -config={config}")

    def tiling(self, hints):
        return choose_tiling(self.layer, self.epilogue, self.config, hints)

    def cycles(self, hints, longest=LONG):
        program = schedule(self.layer, self.epilogue, self.tiling(hints), self.config)
        if hints and len(program.instructions) > longest:
            return None
        return MACHINES(self.config).time(LoadedProgram.of(program)).cycles

    def drawn(self, count, seed=0):
        rng = np.random.default_rng(seed)
        numbers = self.template.space.draw(rng, min(count, self.template.space.size))
        return [self.template.space.configuration(number) for number in numbers]


@pytest.mark.parametrize("config", ["ea8", "ea16", "ea32"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_tiles_without_hints_are_nearly_as_fast_as_the_best_of_many(shape, relu, config):
    measured = Measured(shape, config, relu)
    others = [measured.cycles(each) for each in measured.drawn(6)]
    best = min(each for each in others if each is not None)
    assert measured.cycles({}) <= 1.2 * best


@pytest.mark.parametrize("layer", WINDOWS)
def test_tiles_of_windows_without_hints_are_nearly_as_fast_as_the_best_of_many(layer):
    measured = Measured(WINDOWS[layer]())
    others = [measured.cycles(each, 4 * LONG) for each in measured.drawn(12)]
    best = min(each for each in others if each is not None)
    assert measured.cycles({}) <= 1.2 * best


@pytest.mark.parametrize("shape", SHAPES)
def test_estimate_is_near_what_fast_tiles_take_and_never_makes_slow_ones_look_fast(shape):
    measured = Measured(shape)
    seen = []
    for hints in measured.drawn(15, seed=1):
        found = measured.cycles(hints)
        if found is not None:
            shape_of_tiles = measured.tiling(hints).shape
            told = predict(measured.layer, measured.epilogue, measured.config, shape_of_tiles)
            seen.append((found, told / found))
    assert len(seen) >= 3
    ratios = [ratio for _, ratio in sorted(seen)]
    assert min(ratios) > 0.8
    assert ratios[0] < 1.5


def test_hint_alone_is_kept_and_the_others_are_chosen_around_it():
    measured = Measured((300, 100, 100))
    for name, value in {"rows": 37, "blocks": 3, "depth_blocks": 2}.items():
        assert getattr(measured.tiling({name: value}).shape, name) == value
    for name in ("buffers", "outputs"):
        for value in (1, 2):
            tiling = measured.tiling({name: value})
            assert len(tiling.a if name == "buffers" else tiling.outputs) == value
    with pytest.raises(UnsupportedFunction, match="choose smaller hints"):
        measured.tiling({"rows": 300, "blocks": 7, "outputs": 2})


def test_operands_lie_in_different_banks_where_they_can():
    measured = Measured((512, 512, 512))
    tiling = measured.tiling({})
    bank = measured.config.spad_rows // measured.config.spad_banks
    rows = tiling.patch * tiling.shape.depth_blocks
    banks = {place // bank for start in tiling.a for place in (start, start + rows - 1)}
    assert banks.isdisjoint(place // bank for place in tiling.w)
