"""Tiles: how much of a layer is on chip at once, and where.

Owns: sizes and places in both memories. Does not own: what is done with them (`schedule`).

Invariant: everything that one tile needs fits both memories at once, without overlap.

Notes
-----
Without hints there is one buffer of each kind, and tiles are as large as the memories and instruction fields allow, in
the order columns, rows, depth, so that weights are loaded once for each block of columns where they fit.

A hint is an annotation of any loop of the function: ``ea.rows``, ``ea.blocks`` and ``ea.depth_blocks`` are the sizes of
a tile, ``ea.buffers`` of two lets the next operands be loaded while the last are multiplied, ``ea.rows_outside`` of one
goes over the columns of a block of rows before the next rows, so that these are loaded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farm.codegen.ea.epilogue import Epilogue
from farm.codegen.ea.lift import Layer
from farm.ea.config import MachineConfig
from farm.errors import UnsupportedFunction

MAX_ROWS = 2047  # the stride between blocks of C, 11 bits
MAX_DEPTH_ROWS = 4095  # rows of one load, and the stride between blocks of W, 12 bits
MAX_BLOCKS = 8  # of columns in one tile; more gain nothing once weights are loaded once
MAX_DEPTH_BLOCKS = 63  # of one GEMM, 6 bits
MAX_BUFFERS = 2


@dataclass(frozen=True, slots=True)
class Tiling:
    """Sizes in rows and blocks of `dim` lanes, and first rows in the memories.

    Attributes
    ----------
    rows, blocks, depth_blocks
        Of one tile, at most.
    a, w
        In the scratchpad, one for each buffer.
    output, inputs, temporaries, vectors
        In the accumulator; vectors lie one group for each block of columns.
    rows_outside
        Whether all columns of a block of rows come before the next rows.
    """

    rows: int
    blocks: int
    depth_blocks: int
    a: tuple[int, ...]
    w: tuple[int, ...]
    output: int
    inputs: tuple[int, ...]
    temporaries: tuple[int, ...]
    vectors: int
    rows_outside: bool = False


@dataclass(frozen=True, slots=True)
class Room:
    """What tiles of a layer have to fit.

    Attributes
    ----------
    rows, blocks, depth_blocks
        The largest that make sense, each alone; no depth without a product.
    planes, temporaries, vectors
        Of the expression: whole tiles, rows of one block, rows for each block of columns.
    """

    rows: int
    blocks: int
    depth_blocks: int
    planes: int
    temporaries: int
    vectors: int
    config: MachineConfig

    def problem(self, rows: int, blocks: int, depth_blocks: int, buffers: int) -> str | None:
        """Return why a tile does not fit; None if it does."""
        config = self.config
        used = rows * (blocks * self.planes + self.temporaries) + blocks * self.vectors
        if used > config.acc_rows:
            return f"needs {used} accumulator rows of {config.acc_rows}"
        used = buffers * depth_blocks * (rows + blocks * config.dim)
        if used > config.spad_rows:
            return f"needs {used} scratchpad rows of {config.spad_rows}"
        return None


def room_of(layer: Layer, epilogue: Epilogue, config: MachineConfig) -> Room:
    """Return what tiles of a layer have to fit."""
    depth = 0
    if layer.product is not None:
        depth = min(
            config.blocks(layer.product.depth), MAX_DEPTH_BLOCKS, MAX_DEPTH_ROWS // config.dim
        )
    return Room(
        rows=min(layer.rows, MAX_ROWS),
        blocks=min(config.blocks(layer.columns), MAX_BLOCKS),
        depth_blocks=depth,
        planes=1 + len(epilogue.inputs),
        temporaries=epilogue.temporaries,
        vectors=len(epilogue.vectors),
        config=config,
    )


def choose_tiling(
    layer: Layer, epilogue: Epilogue, config: MachineConfig, hints: Mapping[str, int] | None = None
) -> Tiling:
    """Return tiles that fit: the hints' where there are any.

    Raises
    ------
    UnsupportedFunction
        The expression needs more accumulator rows than there are, or a hint is none that fits.
    """
    room = room_of(layer, epilogue, config)
    rows, blocks, depth_blocks = _largest(layer, room)
    wanted = dict(hints or {})
    rows = _hinted(layer, wanted, "rows", rows, room.rows)
    blocks = _hinted(layer, wanted, "blocks", blocks, room.blocks)
    if layer.product is not None:
        depth_blocks = _hinted(layer, wanted, "depth_blocks", depth_blocks, room.depth_blocks)
    buffers = _hinted(layer, wanted, "buffers", 1, MAX_BUFFERS)
    rows_outside = _hinted(layer, wanted, "rows_outside", 0, 1, least=0)
    why = room.problem(rows, blocks, depth_blocks, buffers)
    if why is not None:
        raise UnsupportedFunction(
            f"function {layer.function.name} on ea: a tile of {rows} rows, {blocks} blocks of columns and "
            f"{depth_blocks} of depth {why}; choose smaller hints"
        )
    plane = rows * blocks
    inputs = tuple(plane * (1 + index) for index in range(len(epilogue.inputs)))
    scratch = plane * room.planes
    own, weights = rows * depth_blocks, blocks * config.dim * depth_blocks
    return Tiling(
        rows=rows,
        blocks=blocks,
        depth_blocks=depth_blocks,
        a=tuple(own * index for index in range(buffers)),
        w=tuple(own * buffers + weights * index for index in range(buffers)),
        output=0,
        inputs=inputs,
        temporaries=tuple(scratch + rows * index for index in range(epilogue.temporaries)),
        vectors=scratch + rows * epilogue.temporaries,
        rows_outside=bool(rows_outside),
    )


def _largest(layer: Layer, room: Room) -> tuple[int, int, int]:
    """Return rows, blocks and depth of the largest tiles, with one buffer."""
    config, blocks = room.config, room.blocks
    while True:
        rows = (config.acc_rows - blocks * room.vectors) // (
            blocks * room.planes + room.temporaries
        )
        if rows >= min(layer.rows, config.dim) or blocks == 1:
            break
        blocks -= 1
    if rows < 1:
        raise UnsupportedFunction(
            f"function {layer.function.name} on ea: its expression needs {room.vectors} vectors and "
            f"{room.planes + room.temporaries} matrices at once, more than {config.acc_rows} accumulator rows hold; "
            f"split it, or place it on the CPU"
        )
    rows = min(rows, room.rows)
    if layer.product is None:
        return rows, blocks, 0
    rows = min(rows, config.spad_rows // 2)  # leave room for weights
    return rows, blocks, min(room.depth_blocks, config.spad_rows // (rows + blocks * config.dim))


def _hinted(
    layer: Layer, hints: Mapping[str, int], name: str, default: int, most: int, least: int = 1
) -> int:
    value = hints.get(name, default)
    if not least <= value <= most:
        raise UnsupportedFunction(
            f"function {layer.function.name} on ea: hint ea.{name} is {value}; use {least} to {most}"
        )
    return value
