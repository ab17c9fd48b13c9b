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

from dataclasses import dataclass

from farm.codegen.ea.epilogue import Epilogue
from farm.codegen.ea.lift import Layer
from farm.ea.config import MachineConfig
from farm.ea.timing import VEC_START_CYCLES, vec_interval


@dataclass(frozen=True, slots=True)
class Shape:
    """Tiles: sizes in rows and blocks of lanes, how many places there are, and their order; see `tiling`."""

    rows: int
    blocks: int
    depth_blocks: int
    buffers: int
    outputs: int
    rows_outside: bool


@dataclass(frozen=True, slots=True)
class _Split:
    """An extent in steps; the last may be shorter."""

    whole: int
    last: int
    count: int

    @staticmethod
    def of(extent: int, step: int) -> _Split:
        """Split an extent."""
        count = -(-extent // step)
        return _Split(step, extent - (count - 1) * step, count)

    def parts(self) -> tuple[tuple[int, int], ...]:
        """Return each size and how often it comes."""
        return ((self.whole, self.count - 1), (self.last, 1))


def predict(layer: Layer, epilogue: Epilogue, config: MachineConfig, shape: Shape) -> float:
    """Return about how many cycles a layer takes with these tiles."""
    rows = _Split.of(layer.rows, shape.rows)
    columns = _Split.of(layer.columns, shape.blocks * config.dim)
    drain = 2 * config.dim + config.bus_latency_cycles
    operands = (
        None if layer.product is None else _Operands(layer, layer.product.depth, shape, config)
    )
    matrices = [buffer.dtype.size_bytes for buffer in epilogue.inputs]
    size = layer.out.dtype.size_bytes
    largest = _moved(
        min(shape.rows, layer.rows),
        min(shape.blocks * config.dim, layer.columns) * size,
        layer.columns * size,
        config,
    )
    tiles = rows.count * columns.count

    def after(places: int) -> float:
        """Return the part of the tiles that need a place which an earlier one has to free."""
        return max(0, tiles - places) / tiles

    in_turn = busy = bus = 0.0
    for height, high in rows.parts():
        for width, wide in columns.parts():
            multiplied, loaded = (
                (0.0, 0) if operands is None else operands.tile(height, width, largest, tiles)
            )
            stored = _moved(height, width * size, layer.columns * size, config)
            worked = config.blocks(width) * sum(
                VEC_START_CYCLES + height * vec_interval(operation.op)
                for operation in epilogue.operations
            )
            extras = sum(_moved(height, width * it, layer.columns * it, config) for it in matrices)
            around = (multiplied + worked + largest + drain) / shape.outputs
            alone = worked + (extras + drain if extras else 0)  # there is one place for extras
            least = max(multiplied, worked)
            waits = after(shape.outputs) * max(0, around - least)
            in_turn += high * wide * (least + max(waits, after(1) * (alone - least)))
            busy += high * wide * worked
            bus += high * wide * (stored + loaded + extras)
    first = 0
    if operands is not None:
        bus += operands.once()
        first = operands.first()
    last = _moved(rows.last, columns.last * size, layer.columns * size, config)
    return max(max(in_turn, busy) + first + last, bus) + 2 * drain


@dataclass(frozen=True, slots=True)
class _Operands:
    """The operands of a layer's product."""

    layer: Layer
    depth: int
    shape: Shape
    config: MachineConfig

    @property
    def stay(self) -> bool:
        """Whether an operand of whole depth stays while the next tiles need it."""
        return self.depth <= self.shape.depth_blocks * self.config.dim

    def tile(self, height: int, width: int, stored: int, tiles: int) -> tuple[float, int]:
        """Return about how long the product of one tile takes, and the cycles of what is loaded for each tile."""
        config, shape = self.config, self.shape
        loads_a, loads_w = self.again
        drain = 2 * config.dim + config.bus_latency_cycles
        steps = _Split.of(self.depth, shape.depth_blocks * config.dim)
        ahead = sum(self._loads(*self.largest, loads_a, loads_w))
        time, loaded, late = 0.0, 0, 0
        for depth, count in steps.parts():
            blocks = config.blocks(depth) * config.blocks(width)
            product = config.dim + blocks * max(height, config.dim)
            load = sum(self._loads(height, width, depth, loads_a, loads_w))
            around = (product + ahead + drain) / shape.buffers if load else 0.0
            after = max(0, tiles * steps.count - shape.buffers) / (tiles * steps.count)
            time += count * (product + after * max(0.0, around - product))
            loaded += count * load
            late = max(0, ahead + stored + drain - product) if load else 0  # a store had the bus
        return time + late * (tiles - 1) / tiles, loaded

    @property
    def again(self) -> tuple[bool, bool]:
        """Whether each operand is loaded again for each tile."""
        shape, layer = self.shape, self.layer
        many_rows = layer.rows > shape.rows
        many_columns = self.config.blocks(layer.columns) > shape.blocks
        return (
            not self.stay or (many_rows and not (shape.rows_outside and many_columns)),
            not self.stay or (many_columns and (shape.rows_outside or not many_rows)),
        )

    @property
    def largest(self) -> tuple[int, int, int]:
        """Rows, columns and depth of the largest tile: the one that is loaded ahead may be that."""
        dim, shape, layer = self.config.dim, self.shape, self.layer
        width, depth = shape.blocks * dim, shape.depth_blocks * dim
        return min(shape.rows, layer.rows), min(width, layer.columns), min(depth, self.depth)

    def once(self) -> int:
        """Return the cycles of loading whole operands that stay."""
        a, w = (not again for again in self.again)
        columns = _Split.of(self.layer.columns, self.shape.blocks * self.config.dim)
        weights = sum(count * self._w(self.depth, width) for width, count in columns.parts())
        return (self._a(self.layer.rows, self.depth) if a else 0) + (weights if w else 0)

    def first(self) -> int:
        """Return the cycles of the loads before the first product."""
        return sum(self._loads(*self.largest, True, True))

    def _loads(self, height: int, width: int, depth: int, a: bool, w: bool) -> tuple[int, int]:
        return self._a(height, depth) if a else 0, self._w(depth, width) if w else 0

    def _a(self, height: int, depth: int) -> int:
        return _moved(height, depth, self.depth, self.config)

    def _w(self, depth: int, width: int) -> int:
        return _moved(depth, width, self.layer.columns, self.config)


def _moved(runs: int, size: int, stride: int, config: MachineConfig) -> int:
    """Return the bus's cycles for some runs of bytes."""
    if size == stride:
        runs, size = 1, runs * size
    crossing = 1 if runs > 1 and stride % config.bus_bytes else 0
    bursts = config.burst_cycles * -(-size // config.burst_bytes)
    return runs * (-(-size // config.bus_bytes) + crossing + bursts)
