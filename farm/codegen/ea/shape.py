"""Shapes of tiles: what a search may choose, and what of it fits the machine.

Owns: the sizes that go together. Does not own: which are chosen (`tiling`), or where they lie.

Invariant: what `Room.problem` finds nothing wrong with fits both memories and the fields of instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

from farm.codegen.ea.epilogue import Epilogue
from farm.codegen.ea.geometry import Window
from farm.codegen.ea.lift import Layer
from farm.ea.config import MachineConfig

MAX_HEIGHT = 2047  # the stride between blocks of C, 11 bits
MAX_ROWS = 4095  # of one load, and the strides between blocks of A and of W, 12 bits
MAX_BLOCKS = 8  # of columns in one tile; more gain nothing once weights are loaded once
MAX_DEPTH_BLOCKS = 63  # of one GEMM, 6 bits
MAX_BUFFERS = 2  # of the operands, and of the output


@dataclass(frozen=True, slots=True)
class Shape:
    """Tiles: how many pixels of how many lines, blocks of lanes, places for each, and their order; see `tiling`."""

    rows: int
    lines: int
    flat: bool
    blocks: int
    depth_blocks: int
    buffers: int
    outputs: int
    rows_outside: bool

    def height(self, lines: int, pixels: int, window: Window) -> int:
        """Return the rows that the results of some lines take."""
        return (lines - 1) * self.pitch(pixels, window) + pixels

    def pitch(self, pixels: int, window: Window) -> int:
        """Return the rows from one line of results to the next, at most."""
        return window.right.positions(pixels) if self.flat else pixels


@dataclass(frozen=True, slots=True)
class Room:
    """What tiles of a layer have to fit.

    Attributes
    ----------
    rows, lines, blocks, depth_blocks
        The largest that make sense, each alone; no depth without a product.
    inputs, temporaries, vectors, tables
        Of the expression: whole tiles, rows of one block, rows for each block of columns, rows for all.
    """

    window: Window
    rows: int
    lines: int
    blocks: int
    depth_blocks: int
    inputs: int
    temporaries: int
    vectors: int
    tables: int
    reduces: bool
    config: MachineConfig

    def most_height(self, blocks: int, outputs: int) -> int:
        """Return how many rows of results the accumulator holds; may be less than one."""
        left = self.config.acc_rows - blocks * self.vectors - self.tables
        return min(MAX_HEIGHT, left // (blocks * outputs * (1 + self.inputs) + self.temporaries))

    def accumulator(self, shape: Shape) -> int:
        """Return the accumulator rows that tiles take."""
        height = shape.height(shape.lines, shape.rows, self.window)
        planes = shape.blocks * shape.outputs * (1 + self.inputs) + self.temporaries
        return height * planes + shape.blocks * self.vectors + self.tables

    def patch(self, shape: Shape) -> int:
        """Return the scratchpad rows of what a tile's windows read, for one block of channels."""
        window = self.window
        return window.down.positions(shape.lines) * window.right.positions(shape.rows)

    def weights(self, shape: Shape) -> int:
        """Return the scratchpad rows of a tile's weights."""
        return self.window.taps * shape.depth_blocks * shape.blocks * self.config.dim

    def scratchpad(self, shape: Shape) -> int:
        """Return the scratchpad rows that tiles take."""
        if not self.reduces:
            return 0
        if not self.depth_blocks:
            return shape.buffers * shape.blocks * self.patch(shape)
        return shape.buffers * (shape.depth_blocks * self.patch(shape) + self.weights(shape))

    def problem(self, shape: Shape) -> str | None:
        """Return why a tile does not fit; None if it does."""
        config = self.config
        if (used := self.accumulator(shape)) > config.acc_rows:
            return f"needs {used} accumulator rows of {config.acc_rows}"
        if (used := self.scratchpad(shape)) > config.spad_rows:
            return f"needs {used} scratchpad rows of {config.spad_rows}"
        if (used := shape.height(shape.lines, shape.rows, self.window)) > MAX_HEIGHT:
            return f"has {used} rows of results, more than {MAX_HEIGHT}"
        if self.reduces and (used := self.patch(shape)) > MAX_ROWS:
            return f"reads {used} rows for a block of channels, more than {MAX_ROWS}"
        return None


def room_of(layer: Layer, epilogue: Epilogue, config: MachineConfig) -> Room:
    """Return what tiles of a layer have to fit."""
    window, depth = layer.window, 0
    if layer.product is not None:
        depth = min(config.blocks(layer.product.depth), MAX_DEPTH_BLOCKS, MAX_ROWS // config.dim)
    weighted = layer.pool is not None and layer.pool.w is not None
    return Room(
        window=window,
        rows=min(window.right.out, MAX_HEIGHT),
        lines=min(window.down.out, MAX_HEIGHT),
        blocks=min(config.blocks(layer.group_columns), MAX_BLOCKS),
        depth_blocks=depth,
        inputs=len(epilogue.inputs),
        temporaries=max(epilogue.temporaries, int(weighted)),
        vectors=len(epilogue.vectors) + (window.taps if weighted else 0),
        tables=len(epilogue.tables) * config.lut_rows,
        reduces=layer.reduction is not None,
        config=config,
    )


def sizes(most: int) -> list[int]:
    """Return sizes of tiles that are worth a try: powers of two and what lies between, and parts of the whole."""
    powers = [1 << shift for shift in range(most.bit_length())]
    between = [3 * each // 2 for each in powers if each > 1]
    parts = [-(-most // count) for count in range(1, 9)] if most else []
    return sorted({each for each in (*powers, *between, *parts) if each <= most})
