"""Tiles: how much of a layer is on chip at once, and where.

Owns: sizes and places in both memories. Does not own: what is done with them (`schedule`).

Invariant: everything that one tile needs fits both memories at once, without overlap.

Notes
-----
Without hints the tiles are those that `farm.codegen.ea.predict` finds fastest.

A hint is an annotation of any loop of the function: ``ea.rows``, ``ea.blocks`` and ``ea.depth_blocks`` are the sizes of
a tile, ``ea.buffers`` of two lets the next operands be loaded while the last are multiplied, ``ea.outputs`` of two lets
the next tile be computed while the last is worked on and stored, ``ea.rows_outside`` of one goes over the columns of a
block of rows before the next rows, so that these are loaded once. Where windows slide over images, ``ea.rows`` counts
pixels of a line and ``ea.lines`` is a size too; ``ea.flat`` of one computes all lines of a tile with one instruction
for each tap, with useless rows between them, which is good for narrow images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from farm.codegen.ea.epilogue import Epilogue
from farm.codegen.ea.lift import Layer
from farm.codegen.ea.predict import Predictor
from farm.codegen.ea.shape import MAX_BUFFERS, MAX_ROWS, Room, Shape, room_of, sizes
from farm.ea.config import MachineConfig
from farm.ea.program import MAX_INSTRUCTIONS
from farm.errors import UnsupportedFunction


@dataclass(frozen=True, slots=True)
class Tiling:
    """The shape of tiles, and first rows in the memories.

    Attributes
    ----------
    height, patch
        Rows of the results of one block of columns, and of what windows read of one block of channels, at most.
    a, w
        In the scratchpad, one for each buffer; in different banks where there is room for that.
    outputs, inputs, temporaries, vectors, tables
        In the accumulator; each input has a place for each output, vectors lie one group for each block of columns.
    """

    shape: Shape
    height: int
    patch: int
    a: tuple[int, ...]
    w: tuple[int, ...]
    outputs: tuple[int, ...]
    inputs: tuple[tuple[int, ...], ...]
    temporaries: tuple[int, ...]
    vectors: int
    vectors_of_block: int
    tables: int


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
    _check_length(layer, room, shape)
    height = shape.height(shape.lines, shape.rows, room.window)
    plane = height * shape.blocks
    scratch = plane * shape.outputs * (1 + room.inputs)
    vectors = scratch + height * room.temporaries
    own = room.patch(shape) * (shape.depth_blocks or shape.blocks) if room.reduces else 0
    weights = room.weights(shape)
    first_w = own * shape.buffers
    bank = config.spad_rows // config.spad_banks
    apart = -(-first_w // bank) * bank
    if apart + weights * shape.buffers <= config.spad_rows:
        first_w = apart
    return Tiling(
        shape,
        height,
        room.patch(shape) if room.reduces else 0,
        a=tuple(own * index for index in range(shape.buffers)),
        w=tuple(first_w + weights * index for index in range(shape.buffers)),
        outputs=tuple(plane * index for index in range(shape.outputs)),
        inputs=tuple(
            tuple(plane * (shape.outputs * (1 + index) + place) for place in range(shape.outputs))
            for index in range(room.inputs)
        ),
        temporaries=tuple(scratch + height * index for index in range(room.temporaries)),
        vectors=vectors,
        vectors_of_block=room.vectors,
        tables=vectors + room.vectors * shape.blocks,
    )


def _check_length(layer: Layer, room: Room, shape: Shape) -> None:
    """Refuse tiles whose program would have too many instructions, before they are made."""
    window = room.window
    steps = 1 if layer.product is None else -(-layer.product.depth // room.config.dim)
    steps = -(-steps // max(1, shape.depth_blocks)) * window.taps
    columns = -(-layer.columns // (shape.blocks * room.config.dim))
    pixels = -(-window.down.out // shape.lines) * -(-window.right.out // shape.rows)
    least = window.images * pixels * columns * steps
    if least > MAX_INSTRUCTIONS:
        raise UnsupportedFunction(
            f"function {layer.function.name} on ea: its program would have more than {least} instructions, and may "
            f"have {MAX_INSTRUCTIONS}; use larger tiles, split it, or place it on the CPU"
        )


def _fastest(
    layer: Layer, epilogue: Epilogue, room: Room, wanted: Mapping[str, int]
) -> Shape | None:
    """Return the tiles that fit and are predicted fastest, as the hints want them; None if none fits."""
    best: tuple[float, int, Shape] | None = None
    predictor = Predictor(layer, epilogue, room.config)
    # Two of each are tried first: one alone is never faster, unless there is no room for two.
    for outputs, buffers in ((2, 2), (1, 2), (2, 1), (1, 1)):
        if wanted.get("outputs", outputs) != outputs or wanted.get("buffers", buffers) != buffers:
            continue
        if best is not None and buffers == 1:
            break
        for shape in _fitting(layer, room, wanted, buffers, outputs):
            found = predictor.cycles(shape)
            pixels = shape.rows * shape.lines
            tiles = -(-layer.window.outputs // pixels) * -(-layer.columns // shape.blocks)
            if best is None or (found, tiles) < best[:2]:
                best = (found, tiles, shape)
    return None if best is None else best[2]


def _fitting(
    layer: Layer, room: Room, wanted: Mapping[str, int], buffers: int, outputs: int
) -> Iterator[Shape]:
    """Yield shapes that fit."""
    all_blocks = [wanted["blocks"]] if "blocks" in wanted else range(1, room.blocks + 1)
    columns = room.config.blocks(layer.columns)
    for blocks in all_blocks:
        orders = (
            [wanted["rows_outside"]]
            if "rows_outside" in wanted
            else (0, 1)[: 1 + (columns > blocks)]
        )
        most = room.most_height(blocks, outputs)
        for rows, lines, flat in _areas(room, wanted, most):
            tried = Shape(rows, lines, flat, blocks, 0, buffers, outputs, False)
            for depth_blocks in _depths(layer, room, wanted, tried):
                for outside in orders:
                    shape = Shape(
                        *(rows, lines, flat, blocks, depth_blocks, buffers, outputs, bool(outside))
                    )
                    if room.problem(shape) is None:
                        yield shape


def _areas(room: Room, wanted: Mapping[str, int], most: int) -> Iterator[tuple[int, int, bool]]:
    """Yield pixels and lines of tiles whose results take at most so many rows."""
    window = room.window
    if "rows" in wanted:
        all_rows = [wanted["rows"]]
    elif room.lines == 1:
        all_rows = [*sizes(room.rows), most]
    else:  # whole lines where they fit, else equal parts
        limit = max(1, min(most, room.rows, _pixels_in(room)))
        parts = -(-room.rows // limit)
        all_rows = [-(-room.rows // parts), -(-room.rows // (parts + 1))]
    kinds = [bool(wanted["flat"])] if "flat" in wanted else (False, True)
    for flat in kinds:
        if flat and not window.can_be_flat:
            continue
        for rows in (each for each in all_rows if 1 <= each <= min(most, room.rows)):
            pitch = window.right.positions(rows) if flat else rows
            most_lines = (most - rows) // pitch + 1
            if room.reduces:
                most_lines = min(most_lines, _lines_in(room, rows))
            all_lines = [wanted["lines"]] if "lines" in wanted else _some(room.lines, most_lines)
            for lines in sorted({each for each in all_lines if each <= room.lines}):
                if 1 <= lines <= most_lines and not (flat and lines == 1 and "flat" not in wanted):
                    yield rows, lines, flat


def _some(whole: int, most: int) -> list[int]:
    """Return few numbers of lines: equal parts of all, and powers of two."""
    parts = {-(-whole // each) for each in range(1, 9)}
    return sorted({*parts, *(1 << shift for shift in range(whole.bit_length())), most})


def _pixels_in(room: Room) -> int:
    """Return how many results of one line are of at most as many rows as a load has."""
    if not room.reduces:
        return room.rows
    right = room.window.right
    return (MAX_ROWS // room.window.down.reach - right.reach) // right.stride + 1


def _lines_in(room: Room, rows: int) -> int:
    """Return how many lines of results are of at most as many rows as a load has."""
    down = room.window.down
    return (MAX_ROWS // room.window.right.positions(rows) - down.reach) // down.stride + 1


def _depths(layer: Layer, room: Room, wanted: Mapping[str, int], shape: Shape) -> list[int]:
    if layer.product is None:
        return [0]
    if "depth_blocks" in wanted:
        return [wanted["depth_blocks"]]
    each = room.patch(shape) + room.window.taps * shape.blocks * room.config.dim
    most = min(room.depth_blocks, room.config.spad_rows // shape.buffers // each)
    halves = (most // 2, most // 4, most // 8) if room.window.taps == 1 else (most // 2,)
    return [each for each in {most, *halves} if each]


def _checked(layer: Layer, room: Room, hints: dict[str, int]) -> dict[str, int]:
    """Return the hints; raises UnsupportedFunction for one that no tile can have."""
    limits = {"rows": (1, room.rows), "blocks": (1, room.blocks), "buffers": (1, MAX_BUFFERS)}
    limits |= {"outputs": (1, MAX_BUFFERS), "depth_blocks": (1, room.depth_blocks)}
    limits |= {"lines": (1, room.lines), "rows_outside": (0, 1)}
    limits |= {"flat": (0, int(room.window.can_be_flat))}
    if layer.product is None:
        hints.pop("depth_blocks", None)
    for name, value in hints.items():
        least, most = limits[name]
        if not least <= value <= most:
            raise UnsupportedFunction(
                f"function {layer.function.name} on ea: hint ea.{name} is {value}; use {least} to {most}"
            )
    return hints


def _why_none_fits(layer: Layer, room: Room, wanted: Mapping[str, int]) -> str:
    """Return why not even the smallest tile that the hints allow fits."""
    name = layer.function.name
    sizes_of = [each.name for each in fields(Shape) if each.name not in ("flat", "rows_outside")]
    least = {name: wanted.get(name, 1) for name in sizes_of}
    if layer.product is None:
        least["depth_blocks"] = 0
    why = room.problem(Shape(**least, flat=bool(wanted.get("flat")), rows_outside=False))
    if not wanted:
        reads = f"; its smallest tile {why}" if why else ""
        return (
            f"function {name} on ea: its expression needs {room.vectors} vectors and "
            f"{1 + room.inputs + room.temporaries} matrices at once, more than {room.config.acc_rows} accumulator rows "
            f"hold{reads}; split it, or place it on the CPU"
        )
    return (
        f"function {name} on ea: a tile of {least['rows']} rows, {least['blocks']} blocks of columns and "
        f"{least['depth_blocks']} of depth {why or 'does not fit'}; choose smaller hints"
    )
