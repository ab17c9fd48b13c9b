"""Tiles: how much of a layer is on chip at once, and where.

Owns: sizes and places in both memories. Does not own: what is done with them (`schedule`).

Invariant: everything that one tile needs fits both memories at once, without overlap.

Notes
-----
One buffer of each kind, no double buffering: tiles are as large as the memories and instruction fields allow, in the
order columns, rows, depth, so that weights are loaded once for each block of columns where they fit.
"""

from __future__ import annotations

from dataclasses import dataclass

from farm.codegen.ea.epilogue import Epilogue
from farm.codegen.ea.lift import Layer
from farm.ea.config import MachineConfig
from farm.errors import UnsupportedFunction

MAX_ROWS = 2047  # the stride between blocks of C, 11 bits
MAX_DEPTH_ROWS = 4095  # rows of one load, and the stride between blocks of W, 12 bits
MAX_BLOCKS = 8  # of columns in one tile; more gain nothing once weights are loaded once
MAX_DEPTH_BLOCKS = 63  # of one GEMM, 6 bits


@dataclass(frozen=True, slots=True)
class Tiling:
    """Sizes in rows and blocks of `dim` lanes, and first rows in the memories.

    Attributes
    ----------
    rows, blocks, depth_blocks
        Of one tile, at most.
    a, w
        In the scratchpad.
    output, inputs, temporaries, vectors
        In the accumulator; vectors lie one group for each block of columns.
    """

    rows: int
    blocks: int
    depth_blocks: int
    a: int
    w: int
    output: int
    inputs: tuple[int, ...]
    temporaries: tuple[int, ...]
    vectors: int


def choose_tiling(layer: Layer, epilogue: Epilogue, config: MachineConfig) -> Tiling:
    """Return tiles that fit.

    Raises
    ------
    UnsupportedFunction
        The expression needs more accumulator rows than there are.
    """
    wanted = config.blocks(layer.columns)
    planes = 1 + len(epilogue.inputs)
    blocks = min(wanted, MAX_BLOCKS)
    while True:
        rows = (config.acc_rows - blocks * len(epilogue.vectors)) // (
            blocks * planes + epilogue.temporaries
        )
        if rows >= min(layer.rows, config.dim) or blocks == 1:
            break
        blocks -= 1
    if rows < 1:
        raise UnsupportedFunction(
            f"function {layer.function.name} on ea: its expression needs {len(epilogue.vectors)} vectors and "
            f"{planes + epilogue.temporaries} matrices at once, more than {config.acc_rows} accumulator rows hold; "
            f"split it, or place it on the CPU"
        )
    rows = min(rows, layer.rows, MAX_ROWS)
    depth_blocks = 0
    if layer.product is not None:
        rows = min(rows, config.spad_rows // 2)  # leave room for weights
        depth_blocks = min(
            config.blocks(layer.product.depth),
            MAX_DEPTH_BLOCKS,
            MAX_DEPTH_ROWS // config.dim,
            config.spad_rows // (rows + blocks * config.dim),
        )
    plane = rows * blocks
    inputs = tuple(plane * (1 + index) for index in range(len(epilogue.inputs)))
    scratch = plane * planes
    return Tiling(
        rows=rows,
        blocks=blocks,
        depth_blocks=depth_blocks,
        a=0,
        w=rows * depth_blocks,
        output=0,
        inputs=inputs,
        temporaries=tuple(scratch + rows * index for index in range(epilogue.temporaries)),
        vectors=scratch + rows * epilogue.temporaries,
    )
