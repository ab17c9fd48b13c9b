"""Tiles: how much of a layer is on chip at once, and where.

Owns: sizes and places in both memories. Does not own: what is done with them (`schedule`).

Invariant: everything that one tile needs fits both memories at once, without overlap.

Notes
-----
Without hints the tiles are those that `farm.codegen.ea.predict` finds fastest.

A hint is an annotation of any loop of the function: ``ea.rows``, ``ea.blocks`` and ``ea.depth_blocks`` are the sizes of
a tile, ``ea.buffers`` of two lets the next operands be loaded while the last are multiplied, ``ea.outputs`` of two lets
the next tile be computed while the last is stored, ``ea.rows_outside`` of one goes over the columns of a block of rows
before the next rows, so that these are loaded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from farm.codegen.ea.epilogue import Epilogue
from farm.codegen.ea.lift import Layer
from farm.codegen.ea.predict import Shape, predict
from farm.ea.config import MachineConfig
from farm.errors import UnsupportedFunction

MAX_ROWS = 2047  # the stride between blocks of C, 11 bits
MAX_DEPTH_ROWS = 4095  # rows of one load, and the stride between blocks of W, 12 bits
MAX_BLOCKS = 8  # of columns in one tile; more gain nothing once weights are loaded once
MAX_DEPTH_BLOCKS = 63  # of one GEMM, 6 bits
MAX_BUFFERS = 2  # of the operands, and of the output


@dataclass(frozen=True, slots=True)
class Tiling:
    """Sizes in rows and blocks of `dim` lanes, and first rows in the memories.

    Attributes
    ----------
    rows, blocks, depth_blocks
        Of one tile, at most.
    a, w
        In the scratchpad, one for each buffer; in different banks where there is room for that.
    outputs, inputs, temporaries, vectors
        In the accumulator; vectors lie one group for each block of columns.
    rows_outside
        Whether all columns of a block of rows come before the next rows.
    """

    rows: int
    blocks: int
    depth_blocks: int
    a: tuple[int, ...]
    w: tuple[int, ...]
    outputs: tuple[int, ...]
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
    inputs, temporaries, vectors
        Of the expression: whole tiles, rows of one block, rows for each block of columns.
    """

    rows: int
    blocks: int
    depth_blocks: int
    inputs: int
    temporaries: int
    vectors: int
    config: MachineConfig

    def most_rows(self, blocks: int, outputs: int) -> int:
        """Return how many rows of a tile the accumulator holds; may be less than one."""
        left = self.config.acc_rows - blocks * self.vectors
        return min(self.rows, left // (blocks * (outputs + self.inputs) + self.temporaries))

    def problem(
        self, rows: int, blocks: int, depth_blocks: int, buffers: int, outputs: int
    ) -> str | None:
        """Return why a tile does not fit; None if it does."""
        config = self.config
        used = rows * (blocks * (outputs + self.inputs) + self.temporaries) + blocks * self.vectors
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
        inputs=len(epilogue.inputs),
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
    wanted = _checked(layer, room, dict(hints or {}))
    shape = _fastest(layer, epilogue, room, wanted)
    if shape is None:
        raise UnsupportedFunction(_why_none_fits(layer, room, wanted))
    rows, blocks = shape.rows, shape.blocks
    plane = rows * blocks
    outputs = tuple(plane * index for index in range(shape.outputs))
    inputs = tuple(plane * (shape.outputs + index) for index in range(room.inputs))
    scratch = plane * (shape.outputs + room.inputs)
    own, weights = rows * shape.depth_blocks, blocks * config.dim * shape.depth_blocks
    first_w = own * shape.buffers
    bank = config.spad_rows // config.spad_banks
    apart = -(-first_w // bank) * bank
    if apart + weights * shape.buffers <= config.spad_rows:
        first_w = apart
    return Tiling(
        rows=rows,
        blocks=blocks,
        depth_blocks=shape.depth_blocks,
        a=tuple(own * index for index in range(shape.buffers)),
        w=tuple(first_w + weights * index for index in range(shape.buffers)),
        outputs=outputs,
        inputs=inputs,
        temporaries=tuple(scratch + rows * index for index in range(epilogue.temporaries)),
        vectors=scratch + rows * epilogue.temporaries,
        rows_outside=shape.rows_outside,
    )


def sizes(most: int) -> list[int]:
    """Return sizes of tiles that are worth a try: powers of two and what lies between, and parts of the whole."""
    powers = [1 << shift for shift in range(most.bit_length())]
    between = [3 * each // 2 for each in powers if each > 1]
    parts = [-(-most // count) for count in range(1, 9)] if most else []
    return sorted({each for each in (*powers, *between, *parts) if each <= most})


def _fastest(
    layer: Layer, epilogue: Epilogue, room: Room, wanted: Mapping[str, int]
) -> Shape | None:
    """Return the tiles that fit and are predicted fastest, as the hints want them; None if none fits."""
    best: tuple[float, int, Shape] | None = None
    # Two of each are tried first: one alone is never faster, unless there is no room for two.
    for outputs, buffers in ((2, 2), (1, 2), (2, 1), (1, 1)):
        if wanted.get("outputs", outputs) != outputs or wanted.get("buffers", buffers) != buffers:
            continue
        if best is not None and buffers == 1:
            break
        for shape in _fitting(layer, room, wanted, buffers, outputs):
            found = predict(layer, epilogue, room.config, shape)
            tiles = -(-layer.rows // shape.rows) * -(-layer.columns // shape.blocks)
            if best is None or (found, tiles) < best[:2]:
                best = (found, tiles, shape)
    return None if best is None else best[2]


def _fitting(
    layer: Layer, room: Room, wanted: Mapping[str, int], buffers: int, outputs: int
) -> Iterator[Shape]:
    all_blocks = [wanted["blocks"]] if "blocks" in wanted else range(1, room.blocks + 1)
    for blocks in all_blocks:
        most = room.most_rows(blocks, outputs)
        all_rows = [wanted["rows"]] if "rows" in wanted else [*sizes(room.rows), most]
        for rows in (each for each in all_rows if 1 <= each <= most):
            for depth_blocks in _depths(layer, room, wanted, rows, blocks, buffers):
                if room.problem(rows, blocks, depth_blocks, buffers, outputs) is None:
                    for outside in [wanted["rows_outside"]] if "rows_outside" in wanted else (0, 1):
                        yield Shape(rows, blocks, depth_blocks, buffers, outputs, bool(outside))


def _depths(
    layer: Layer, room: Room, wanted: Mapping[str, int], rows: int, blocks: int, buffers: int
) -> list[int]:
    if layer.product is None:
        return [0]
    if "depth_blocks" in wanted:
        return [wanted["depth_blocks"]]
    most = min(
        room.depth_blocks, room.config.spad_rows // buffers // (rows + blocks * room.config.dim)
    )
    return [each for each in {most, *(most // 2, most // 4, most // 8)} if each]


def _checked(layer: Layer, room: Room, hints: dict[str, int]) -> dict[str, int]:
    """Return the hints; raises UnsupportedFunction for one that no tile can have."""
    limits = {"rows": room.rows, "blocks": room.blocks, "buffers": MAX_BUFFERS}
    limits |= {"outputs": MAX_BUFFERS, "depth_blocks": room.depth_blocks}
    if layer.product is None:
        hints.pop("depth_blocks", None)
    for name, value in hints.items():
        least, most = (0, 1) if name == "rows_outside" else (1, limits[name])
        if not least <= value <= most:
            raise UnsupportedFunction(
                f"function {layer.function.name} on ea: hint ea.{name} is {value}; use {least} to {most}"
            )
    return hints


def _why_none_fits(layer: Layer, room: Room, wanted: Mapping[str, int]) -> str:
    name = layer.function.name
    if not wanted:
        return (
            f"function {name} on ea: its expression needs {room.vectors} vectors and "
            f"{1 + room.inputs + room.temporaries} matrices at once, more than {room.config.acc_rows} accumulator rows "
            "hold; split it, or place it on the CPU"
        )
    least = [
        wanted.get(each, 1) for each in ("rows", "blocks", "depth_blocks", "buffers", "outputs")
    ]
    if layer.product is None:
        least[2] = 0
    why = room.problem(*least)
    return (
        f"function {name} on ea: a tile of {least[0]} rows, {least[1]} blocks of columns and {least[2]} of depth "
        f"{why or 'does not fit'}; choose smaller hints"
    )
