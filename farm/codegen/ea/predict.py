"""What tiles of some shape would take, about.

Owns: the estimate by which tiles are chosen without hints. Does not own: the cycle model (`farm.ea.timing`), whose
costs of single instructions it repeats in closed form, for whole layers.

Notes
-----
A layer takes at least what its busiest engine takes, and each tile at least its way around each ring of buffers:
operands are loaded, multiplied and free again; an output is multiplied, worked on and stored. Where a ring has two
places, two tiles are on their way at once. What comes before the first product and after the last is added.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from farm.codegen.ea.epilogue import Epilogue
from farm.codegen.ea.geometry import Axis
from farm.codegen.ea.lift import Layer
from farm.codegen.ea.reduction import Pool
from farm.codegen.ea.shape import Shape
from farm.ea.config import MachineConfig
from farm.ea.isa import VecOp
from farm.ea.timing import VEC_START_CYCLES, vec_interval


@dataclass(frozen=True, slots=True)
class _Part:
    """Tiles of one size, and how many there are."""

    lines: int
    pixels: int
    width: int
    count: int


class Predictor:
    """Estimates for one layer."""

    def __init__(self, layer: Layer, epilogue: Epilogue, config: MachineConfig) -> None:
        self.layer, self.config, self.window = layer, config, layer.window
        self.drain = 2 * config.dim + config.bus_latency_cycles
        self.size = layer.out.dtype.size_bytes
        self.inputs = [buffer.dtype.size_bytes for buffer in epilogue.inputs]
        self.operations = len(epilogue.operations)
        self.interval = sum(vec_interval(operation.op) for operation in epilogue.operations)
        # The same loads and stores are asked for again and again, for one shape after the other.
        self.matrix = functools.cache(self._matrix)
        self.source = functools.cache(self._source)
        self.weights = functools.cache(self._weights)

    def cycles(self, shape: Shape) -> float:
        """Return about how many cycles the layer takes with tiles of a shape."""
        return _Prediction(self, shape).cycles()

    def _matrix(self, lines: int, pixels: int, width: int, size: int) -> int:
        """Return the bus's cycles for a tile of a matrix as large as the output."""
        columns = self.layer.columns
        runs = (1, lines * pixels) if pixels == self.window.right.out else (lines, pixels)
        return runs[0] * moved(runs[1], width * size, columns * size, self.config)

    def _source(self, lines: int, pixels: int, depth: int) -> int:
        """Return the bus's cycles for what the windows of some results read."""
        reduction = self.layer.reduction
        if reduction is None:
            return 0
        down, right = self.window.down, self.window.right
        read, across = _read(down, lines), _read(right, pixels)
        if across * right.step >= right.size and down.step == 1:
            read, across = 1, read * across
        return read * moved(across, depth, reduction.channels * right.step, self.config)

    def _weights(self, depth: int, width: int) -> int:
        """Return the bus's cycles for weights of all taps."""
        product = self.layer.product
        if product is None:
            return 0
        return self.window.taps * moved(depth, width, product.depth_stride, self.config)


def predict(layer: Layer, epilogue: Epilogue, config: MachineConfig, shape: Shape) -> float:
    """Return about how many cycles a layer takes with these tiles."""
    return Predictor(layer, epilogue, config).cycles(shape)


class _Prediction:
    """One estimate."""

    def __init__(self, known: Predictor, shape: Shape) -> None:
        self.known, self.shape, self.config, self.drain = known, shape, known.config, known.drain
        layer, window = known.layer, known.window
        self.lines = _parts(window.down.out, shape.lines)
        self.pixels = _parts(window.right.out, shape.rows)
        places = window.images * _count(self.lines) * _count(self.pixels)
        self.widths = [
            (width, count * groups)
            for columns, groups in _parts(layer.columns, layer.group_columns)
            for width, count in _parts(columns, shape.blocks * self.config.dim)
        ]
        self.tiles = places * _count(self.widths)
        self.largest = (self.lines[0][0], self.pixels[0][0], self.widths[0][0])
        self.store = known.matrix(*self.largest, known.size)
        product = layer.product
        self.depth = 0 if product is None else product.depth
        stay = self.depth <= shape.depth_blocks * self.config.dim
        grouped, many_columns = layer.group_columns < layer.columns, len(self.widths) > 1
        many_columns = many_columns or self.widths[0][1] > 1
        outside = shape.rows_outside
        # Which operands are loaded again for each tile; other groups of columns are of other channels.
        self.loads_a = not stay or grouped or (places > 1 and not (outside and many_columns))
        self.loads_w = not stay or (many_columns and (outside or places == 1))

    def cycles(self) -> float:
        """Return the estimate."""
        shape, known, layer = self.shape, self.known, self.known.layer
        in_turn = busy = bus = 0.0
        multiplied = pooled = 0.0
        loaded = 0
        for part in self.parts():
            if layer.product is not None:
                multiplied, loaded = self.product(part)
            elif layer.pool is not None:
                pooled, loaded = self.pool(layer.pool, part)
            height = shape.height(part.lines, part.pixels, known.window)
            each = VEC_START_CYCLES * known.operations + height * known.interval
            worked = pooled + self.config.blocks(part.width) * each
            extras = sum(known.matrix(part.lines, part.pixels, part.width, n) for n in known.inputs)
            stored = known.matrix(part.lines, part.pixels, part.width, known.size)
            arriving = extras + self.drain if extras else 0
            around = multiplied + worked + self.store + self.drain
            around = around + arriving if shape.outputs == 1 else max(around, worked + arriving)
            least = max(multiplied, worked)
            waits = self.after(shape.outputs) * max(0, around / shape.outputs - least)
            in_turn += part.count * (least + waits)
            busy += part.count * worked
            bus += part.count * (stored + loaded + extras)
        first = 0
        if layer.reduction is not None:
            bus += self.once()
            lines, pixels, width = self.largest
            depth = min(shape.depth_blocks * self.config.dim, self.depth) or width
            first = known.source(lines, pixels, depth) + known.weights(depth, width)
        last = known.matrix(self.lines[-1][0], self.pixels[-1][0], self.widths[-1][0], known.size)
        return max(max(in_turn, busy) + first + last, bus) + 2 * self.drain

    def parts(self) -> list[_Part]:
        """Return the sizes of tiles."""
        images = self.known.window.images
        return [
            _Part(lines, pixels, width, images * down * right * across)
            for lines, down in self.lines
            for pixels, right in self.pixels
            for width, across in self.widths
        ]

    def after(self, places: int) -> float:
        """Return the part of the tiles that need a place which an earlier one has to free."""
        return max(0, self.tiles - places) / self.tiles

    def product(self, part: _Part) -> tuple[float, int]:
        """Return about how long the product of one tile takes, and the cycles of its loads."""
        config, shape = self.config, self.shape
        steps = _parts(self.depth, shape.depth_blocks * config.dim)
        count = _count(steps)
        ahead = self.loads(*self.largest, steps[0][0])
        time, loaded, late = 0.0, 0, 0
        height, times = self.rows(part)
        for depth, many in steps:
            blocks = config.blocks(depth) * config.blocks(part.width)
            taps = self.known.window.taps * times
            product = taps * (config.dim + blocks * max(height, config.dim))
            load = self.loads(part.lines, part.pixels, part.width, depth)
            around = (product + ahead + self.drain) / shape.buffers if load else 0.0
            after = max(0, self.tiles * count - shape.buffers) / (self.tiles * count)
            time += many * (product + after * max(0.0, around - product))
            loaded += many * load
            # A store had the bus.
            late = max(0, ahead + self.store + self.drain - product) if load else 0
        return time + late * (self.tiles - 1) / self.tiles, loaded

    def pool(self, pool: Pool, part: _Part) -> tuple[float, int]:
        """Return how long the pool of a tile takes, with what it waits for its pixels, and their loads' cycles."""
        height, times = self.rows(part)
        ops = [VecOp.ADD] if pool.w is None else [VecOp.MUL, VecOp.ADD]
        each = sum(VEC_START_CYCLES + height * vec_interval(op) for op in ops)
        window = self.known.window
        worked = self.config.blocks(part.width) * window.taps * times * each
        rows = self.shape.height(part.lines, part.pixels, window)
        if pool.goes_by_pixels(window, part.lines, part.pixels, rows, times):
            by_line = window.down.kernel * (VEC_START_CYCLES + window.right.kernel)
            worked = self.config.blocks(part.width) * (part.lines * part.pixels * by_line + rows)
        load = self.known.source(part.lines, part.pixels, part.width)
        around = (worked + load + self.drain) / self.shape.buffers
        return worked + self.after(self.shape.buffers) * max(0.0, around - worked), load

    def rows(self, part: _Part) -> tuple[int, int]:
        """Return the rows of one instruction for a tap, and how many of them there are."""
        window = self.known.window
        dense = window.can_be_flat and window.right.positions(part.pixels) == part.pixels
        if self.shape.flat or part.lines == 1 or dense:
            return self.shape.height(part.lines, part.pixels, window), 1
        return part.pixels, part.lines

    def loads(self, lines: int, pixels: int, width: int, depth: int) -> int:
        """Return the cycles of loading the operands of a product, as far as they are loaded for each tile."""
        a = self.known.source(lines, pixels, depth) if self.loads_a else 0
        return a + (self.known.weights(depth, width) if self.loads_w else 0)

    def once(self) -> int:
        """Return the cycles of loading whole operands that stay."""
        known, window = self.known, self.known.window
        if known.layer.product is None:
            return 0
        a = 0
        if not self.loads_a:
            a = window.images * known.source(window.down.out, window.right.out, self.depth)
        if self.loads_w:
            return a
        return a + sum(count * known.weights(self.depth, width) for width, count in self.widths)


def _parts(extent: int, step: int) -> list[tuple[int, int]]:
    """Split an extent into steps, of which the last may be shorter: return each size and how often it comes."""
    count = -(-extent // step)
    last = extent - (count - 1) * step
    if last == step:
        return [(step, count)]
    return [(step, count - 1), (last, 1)] if count > 1 else [(last, 1)]


def _count(parts: list[tuple[int, int]]) -> int:
    return sum(count for _, count in parts)


def _read(axis: Axis, outputs: int) -> int:
    """Return how many pixels some outputs read on an axis, at most."""
    return min(axis.positions(outputs), -(-axis.size // axis.step))


def moved(runs: int, size: int, stride: int, config: MachineConfig) -> int:
    """Return the bus's cycles for some runs of bytes."""
    if size == stride:
        runs, size = 1, runs * size
    crossing = 1 if runs > 1 and stride % config.bus_bytes else 0
    bursts = config.burst_cycles * -(-size // config.burst_bytes)
    return runs * (-(-size // config.bus_bytes) + crossing + bursts)
