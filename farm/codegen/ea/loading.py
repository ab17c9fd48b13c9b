"""Loads of a program: what the engines need of each tile, from memory to the chip.

Owns: the program being written with its semaphores, and all that LD does. Does not own: when something is loaded, and
what the other engines do with it (`schedule`).

Invariant: a region is loaded again only after a token says that it is free.
"""

from __future__ import annotations

from collections.abc import Iterator

from farm.codegen.ea.epilogue import Epilogue
from farm.codegen.ea.geometry import Run
from farm.codegen.ea.lift import Layer
from farm.codegen.ea.reduction import Product
from farm.codegen.ea.tiles import Tile, tiles
from farm.codegen.ea.tiling import Tiling
from farm.ea.builder import ProgramBuilder, acc, spad
from farm.ea.config import MachineConfig
from farm.ea.isa import Engine
from farm.ir import Buffer, DType


class Loading:
    """A program, as far as it loads."""

    def __init__(
        self, layer: Layer, epilogue: Epilogue, tiling: Tiling, config: MachineConfig
    ) -> None:
        self.layer, self.epilogue, self.tiling, self.config = layer, epilogue, tiling, config
        self.program = ProgramBuilder(config)
        self.args = {
            param.buffer.name: self.program.arg(param.buffer.name, param.buffer.size_bytes)
            for param in layer.function.params
        }
        self.operands = self.program.semaphore("operands")
        self.operands_free = self.program.semaphore("operands_free")
        self.inputs = self.program.semaphore("inputs")
        self.inputs_free = self.program.semaphore("inputs_free")
        self.vectors = self.program.semaphore("vectors")
        self.vectors_free = self.program.semaphore("vectors_free")
        self.product = self.program.semaphore("product")
        self.result = self.program.semaphore("result")
        self.output_free = self.program.semaphore("output_free")
        self.tiles = tiles(layer, tiling, config)
        self.steps = 0  # products that were given to GE
        self.weights = self.matrices = -1  # how often each operand was loaded, counted from 0

    @property
    def buffers(self) -> int:
        """How many places there are for each operand."""
        return len(self.tiling.a)

    def load_inputs(self, tile: Tile) -> None:
        """Load matrices for the vector engine."""
        wait = [self.inputs_free] if tile.waits else []
        apart, blocks = self.tiling.height, self.config.blocks(tile.columns)
        loads = [
            (buffer, self.tiling.inputs[index][tile.place], run)
            for index, buffer in enumerate(self.epilogue.inputs)
            for run in tile.runs
        ]
        for places in self.tiling.inputs:
            for start, rows in tile.gaps:  # read with all rows, and used for nothing
                self.program.fill(
                    acc(places[tile.place] + start),
                    rows=rows,
                    cols=blocks * self.config.dim,
                    lstride=apart,
                    wait=wait,
                )
                wait = []
        for number, (buffer, at, run) in enumerate(loads):
            size = buffer.dtype.size_bytes
            self.program.load(
                acc(at + run.place),
                self.args[buffer.name],
                rows=run.count,
                cols=tile.columns,
                dstride=self.layer.columns * size if run.count > 1 else 0,
                offset=(run.pixel * self.layer.columns + tile.column) * size,
                lstride=apart,
                widen=buffer.dtype is DType.INT8,
                wait=wait if number == 0 else [],
                post=[self.inputs] if number == len(loads) - 1 else [],
            )

    def needs_vectors(self, tile: Tile) -> bool:
        """Tell whether a tile needs vectors or tables that the one before did not."""
        tables = tile.number == 0 and bool(self.epilogue.tables)
        return tables or (bool(self.tiling.vectors_of_block) and tile.new_columns)

    def load_vectors(self, tile: Tile) -> None:
        """Load vectors and tables, if a tile needs new ones."""
        if not self.needs_vectors(tile):
            return
        loads = list(self.vectors_of(tile))
        if tile.number == 0:
            dim, rows = self.config.dim, self.config.lut_rows
            for index, buffer in enumerate(self.epilogue.tables):
                at = self.tiling.tables + index * rows
                loads.append((at, buffer, rows, dim, dim, 0, 0))
        for number, (at, buffer, rows, columns, step, start, apart) in enumerate(loads):
            size = buffer.dtype.size_bytes
            self.program.load(
                acc(at),
                self.args[buffer.name],
                rows=rows,
                cols=columns,
                dstride=step * size,
                offset=start * size,
                lstride=apart,
                widen=buffer.dtype is DType.INT8,
                wait=[self.vectors_free] if number == 0 and tile.number else [],
                post=[self.vectors] if number == len(loads) - 1 else [],
            )

    def vectors_of(self, tile: Tile) -> Iterator[tuple[int, Buffer, int, int, int, int, int]]:
        """Yield what is one row, or one for each tap, for all rows of some columns.

        A row, a buffer, rows and columns, elements from one row to the next, the first, and rows between blocks.
        """
        at, apart = self.tiling.vectors, self.tiling.vectors_of_block
        for buffer in self.epilogue.vectors:
            yield at, buffer, 1, tile.columns, 0, tile.column, apart
            at += 1
        pool = self.layer.pool
        if pool is not None and pool.w is not None:
            taps = self.layer.window.right.kernel
            for line in range(self.layer.window.down.kernel):
                start = line * pool.tap_strides[0] + tile.column
                step = pool.tap_strides[1] if taps > 1 else 0
                yield at, pool.w, taps, tile.columns, step, start, apart
                at += taps

    def load_source(
        self, tile: Tile, x: Buffer, channels: int, channel: int, count: int, wait: list[int]
    ) -> None:
        """Load what a tile's windows read of some channels; around the image there is zero, but for pools."""
        self.matrices += 1
        pool, source = self.layer.pool, tile.source
        at, blocks = self.tiling.a[self.matrices % self.buffers], self.config.blocks(count)
        gaps = source.gaps if pool is None or not pool.fill else ()
        step = self.layer.window.right.step * channels
        parts: list[Run | tuple[int, int]] = [*gaps, *source.runs]
        for number, part in enumerate(parts):
            waits = wait if number == 0 else []
            posts = [self.operands] if number == len(parts) - 1 else []
            if isinstance(part, Run):
                self.program.load(
                    spad(at + part.place),
                    self.args[x.name],
                    rows=part.count,
                    cols=count,
                    dstride=step if part.count > 1 else 0,
                    offset=part.pixel * channels + channel,
                    lstride=source.rows,
                    wait=waits,
                    post=posts,
                )
            else:
                self.program.fill(
                    spad(at + part[0]),
                    rows=part[1],
                    cols=blocks * self.config.dim,
                    lstride=source.rows,
                    wait=waits,
                    post=posts,
                )
        if not parts:  # all of it is beside the image, and not zero
            self.program.sync(Engine.LD, wait=wait, post=[self.operands])

    def load_weights(
        self,
        product: Product,
        tile: Tile,
        start: int,
        depth: int,
        wait: list[int],
        post: list[int],
    ) -> None:
        """Load a tile of weights; rows beyond the depth become zero, since GEMM reads whole blocks."""
        self.weights += 1
        dim, blocks = self.config.dim, self.config.blocks(tile.columns)
        between = self.config.blocks(depth) * dim
        window = self.layer.window
        for tap in range(window.taps):
            at = self.tiling.w[self.weights % self.buffers] + tap * blocks * between
            line, column = divmod(tap, window.right.kernel)
            first = line * product.tap_strides[0] + column * product.tap_strides[1]
            done = post if tap == window.taps - 1 else []
            self.program.load(
                spad(at),
                self.args[product.w.name],
                rows=depth,
                cols=tile.columns,
                dstride=product.depth_stride if depth > 1 else 0,
                offset=first + start * product.depth_stride + tile.column,
                lstride=between,
                wait=wait if tap == 0 else [],
                post=done if depth == between else [],
            )
            if depth < between:
                self.program.fill(
                    spad(at + depth),
                    rows=between - depth,
                    cols=blocks * dim,
                    lstride=between,
                    post=done,
                )
