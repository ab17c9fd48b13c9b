"""Tiles in order: which part of the output each one is, and what of it is new.

Owns: the order of tiles, and their places in the accumulator. Does not own: their sizes (`tiling`), or the program
(`schedule`).

Invariant: the tiles of a layer are its output, each element once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from farm.codegen.ea.geometry import Area, Patch, Run, patch, results
from farm.codegen.ea.lift import Layer
from farm.codegen.ea.shape import MAX_ROWS
from farm.codegen.ea.tiling import Tiling
from farm.ea.config import MachineConfig


@dataclass(frozen=True, slots=True)
class Tile:
    """One tile of the output.

    Attributes
    ----------
    source
        What its windows read.
    runs, gaps
        Where its pixels are, in rows of each block of columns and among all pixels; and the rows between them, which
        hold nothing.
    height, pitch
        Rows of one block of columns, and from one line to the next.
    column, columns
        Of the output.
    channel
        Of the source, the first that it needs.
    new_source, new_columns
        Whether the tile before needed other pixels or channels of the source, or other columns.
    output
        The first row of its place in the accumulator.
    place
        Which of the places for outputs, and for what has as many, it has.
    waits, frees
        Whether an earlier tile was there before, and whether a later one will be.
    """

    number: int
    area: Area
    source: Patch
    runs: tuple[Run, ...]
    gaps: tuple[tuple[int, int], ...]
    height: int
    pitch: int
    column: int
    columns: int
    channel: int
    new_source: bool
    new_columns: bool
    place: int
    output: int
    waits: bool
    frees: bool


def tiles(layer: Layer, tiling: Tiling, config: MachineConfig) -> list[Tile]:
    """Return the tiles: by default blocks of columns outside, so that vectors are loaded rarely."""
    areas, columns = list(_areas(layer, tiling)), list(_columns(layer, tiling, config))
    if tiling.shape.rows_outside:
        order = [(area, each) for area in areas for each in columns]
    else:
        order = [(area, each) for each in columns for area in areas]
    found: list[Tile] = []
    places = len(tiling.outputs)
    before: tuple[Area, tuple[int, int, int]] | None = None
    for number, (area, each) in enumerate(order):
        column, count, channel = each
        source = patch(layer.window, area, MAX_ROWS)
        pitch = source.pitch if tiling.shape.flat else area.pixels
        height = (area.lines - 1) * pitch + area.pixels
        runs = tuple(results(layer.window, area, pitch))
        found.append(
            Tile(
                *(
                    number,
                    area,
                    source,
                    runs,
                    _between(runs),
                    height,
                    pitch,
                    column,
                    count,
                    channel,
                ),
                new_source=before is None or before[0] != area or before[1][2] != channel,
                new_columns=before is None or before[1] != each,
                place=number % places,
                output=tiling.outputs[number % places],
                waits=number >= places,
                frees=number + places < len(order),
            )
        )
        before = (area, each)
    return found


def _areas(layer: Layer, tiling: Tiling) -> Iterator[Area]:
    window, shape = layer.window, tiling.shape
    for image in range(window.images):
        for line in range(0, window.down.out, shape.lines):
            lines = min(shape.lines, window.down.out - line)
            for pixel in range(0, window.right.out, shape.rows):
                yield Area(image, line, lines, pixel, min(shape.rows, window.right.out - pixel))


def _columns(layer: Layer, tiling: Tiling, config: MachineConfig) -> Iterator[tuple[int, int, int]]:
    """Yield columns, how many, and the first channel that they are of."""
    width, together = tiling.shape.blocks * config.dim, layer.group_columns
    for group, start in enumerate(range(0, layer.columns, together)):
        end = min(start + together, layer.columns)
        for column in range(start, end, width):
            channel = column if layer.product is None else group * layer.product.depth
            yield column, min(width, end - column), channel


def _between(runs: tuple[Run, ...]) -> tuple[tuple[int, int], ...]:
    """Return the rows between runs."""
    found, reached = [], 0
    for run in runs:
        if run.place > reached:
            found.append((reached, run.place - reached))
        reached = run.place + run.count
    return tuple(found)
