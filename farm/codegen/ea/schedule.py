"""The program: tiles in order, with the semaphores that order the engines.

Owns: loops over tiles, products, vector code, stores, and who waits for whom. Does not own: loads (`loading`), the
choice of tiles (`tiling`, `tiles`) or of vector operations (`epilogue`).

Invariant: each memory region has one writer at a time. The semaphores are, by producer and consumer:

- ``operands`` LD to GE (VE for a pool): what windows read, and W, are loaded; ``operands_free`` back: it is used up;
- ``inputs`` LD to VE: matrices for the vector engine are loaded, ``vectors`` LD to VE: vectors and tables are;
  ``inputs_free`` and ``vectors_free`` VE to LD;
- ``product`` GE to VE: all depth is summed up; ``result`` VE to ST; ``output_free`` ST to who writes the output next.

The one dispatcher stops at a full queue: so what the next tile needs is handed out before the vector code of a tile,
where there are places for both.
"""

from __future__ import annotations

from collections.abc import Iterator

from farm.codegen.ea.epilogue import (
    Epilogue,
    Matrix,
    Operand,
    Operation,
    Place,
    Scalar,
    ScalarPair,
    Table,
    Vector,
)
from farm.codegen.ea.lift import Layer
from farm.codegen.ea.loading import Loading
from farm.codegen.ea.reduction import Pool, Product
from farm.codegen.ea.tiles import Tile
from farm.codegen.ea.tiling import Tiling
from farm.ea import builder as asm
from farm.ea.builder import Imm, acc, spad
from farm.ea.config import MachineConfig
from farm.ea.isa import Engine, VecOp
from farm.ea.program import Program
from farm.ir import DType


def schedule(layer: Layer, epilogue: Epilogue, tiling: Tiling, config: MachineConfig) -> Program:
    """Return the program of a layer; its arguments are the function's parameters in order."""
    emission = _Emission(layer, epilogue, tiling, config)
    emission.all()
    return emission.program.build()


class _Emission(Loading):
    """The program so far."""

    @property
    def runs_ahead(self) -> bool:
        """Whether the next tile can be begun before a tile is done: whether both have places."""
        two = len(self.tiling.outputs) > 1
        ahead = two or (self.layer.product is None and not self.epilogue.inputs)
        return ahead and (self.layer.pool is None or self.buffers > 1)

    def all(self) -> None:
        """Compute all tiles."""
        begun = 0
        self.load_vectors(self.tiles[0])
        for number, tile in enumerate(self.tiles):
            for other in self.tiles[begun : number + 1 + self.runs_ahead]:
                self.begin(other)
                begun += 1
            self.vector_code(tile)
            if number + 1 < len(self.tiles):
                self.load_vectors(self.tiles[number + 1])
            self.store(tile)

    def begin(self, tile: Tile) -> None:
        """Load what a tile needs, and multiply."""
        self.load_inputs(tile)
        match self.layer.reduction:
            case Product() as product:
                self.multiply(tile, product)
            case Pool() as pool:
                wait = [self.operands_free] if tile.number >= self.buffers else []
                self.load_source(tile, pool.x, pool.channels, tile.channel, tile.columns, wait)
            case None:
                pass

    def multiply(self, tile: Tile, product: Product) -> None:
        """Sum up the product of one tile over all depth and taps."""
        step = self.tiling.shape.depth_blocks * self.config.dim
        whole_depth = step >= product.depth  # then operands stay while the next tiles need them
        count = len(self.tiles) * -(-product.depth // step)
        for start in range(0, product.depth, step):
            depth = min(step, product.depth - start)
            wait = [self.operands_free] if self.steps >= self.buffers else []
            new_source = not whole_depth or tile.new_source
            if not whole_depth or tile.new_columns:
                post = [] if new_source else [self.operands]
                self.load_weights(product, tile, start, depth, wait, post)
                wait = []
            if new_source:
                channel = tile.channel + start
                self.load_source(tile, product.x, product.channels, channel, depth, wait)
            is_last = start + depth == product.depth
            free_output = [self.output_free] if start == 0 and tile.waits else []
            self.steps += 1
            gemms = self.gemms(tile, depth)
            for number, (c, a, w, rows) in enumerate(gemms):
                posts = [
                    *([self.operands_free] if self.steps + self.buffers <= count else []),
                    *([self.product] if is_last else []),
                ]
                self.program.gemm(
                    acc(c),
                    spad(a),
                    spad(w),
                    m=rows,
                    nt=self.config.blocks(tile.columns),
                    kt=self.config.blocks(depth),
                    aks=tile.source.rows,
                    cns=self.tiling.height,
                    astep=self.layer.window.right.stride,
                    accumulate=start > 0 or w > gemms[0][2],
                    wait=[self.operands, *free_output] if number == 0 else [],
                    post=posts if number == len(gemms) - 1 else [],
                )

    def gemms(self, tile: Tile, depth: int) -> list[tuple[int, int, int, int]]:
        """Return for each tap, and each line if need be, the rows of C, A and W and how many rows are computed."""
        a = self.tiling.a[self.matrices % self.buffers]
        w = self.tiling.w[self.weights % self.buffers]
        weights = self.config.blocks(depth) * self.config.blocks(tile.columns) * self.config.dim
        return [
            (tile.output + line, a + row, w + tap * weights, rows)
            for tap, line, row, rows in self.taps(tile)
        ]

    def is_one_sequence(self, tile: Tile) -> bool:
        """Tell whether what a tap reads, and its results, go on from one line to the next."""
        down, right = self.layer.window.down, self.layer.window.right
        return down.stride * tile.source.pitch == right.stride * tile.pitch

    def taps(self, tile: Tile) -> Iterator[tuple[int, int, int, int]]:
        """Yield taps in order: number, first row of results, of what the windows read, and how many rows."""
        down, right = self.layer.window.down, self.layer.window.right
        pitch = tile.source.pitch
        for tap in range(self.layer.window.taps):
            row, column = divmod(tap, right.kernel)
            first = row * down.dilation * pitch + column * right.dilation
            if self.is_one_sequence(tile):
                yield tap, 0, first, tile.height
                continue
            for line in range(tile.area.lines):
                read = first + line * down.stride * pitch
                yield tap, line * tile.pitch, read, tile.area.pixels

    def vector_code(self, tile: Tile) -> None:
        """Run the pool and the operations on each block of columns."""
        pool, number = self.layer.pool, tile.number
        waits = [self.vectors] if self.needs_vectors(tile) else []
        waits += [self.inputs] if self.epilogue.inputs else []
        if self.layer.product is not None:
            waits.append(self.product)
        elif tile.waits:
            waits.append(self.output_free)
        self.sync(wait=waits)
        blocks = range(self.config.blocks(tile.columns))
        if pool is not None:
            self.sync(wait=[self.operands])
            for block in blocks:
                self.pool(pool, block, tile)
            if number + self.buffers < len(self.tiles):
                self.sync(post=[self.operands_free])
        for block in blocks:
            for operation in self.epilogue.operations:
                self.operation(operation, block, tile)
        posts = [self.result]
        if self.epilogue.inputs and tile.frees:
            posts.append(self.inputs_free)
        if number + 1 < len(self.tiles) and self.needs_vectors(self.tiles[number + 1]):
            posts.append(self.vectors_free)
        self.sync(post=posts)

    def sync(self, *, wait: list[int] | None = None, post: list[int] | None = None) -> None:
        """Let VE wait and post; an instruction has two of each at most."""
        waits, posts = wait or [], post or []
        for first in range(0, max(len(waits), len(posts)), 2):
            pair = slice(first, first + 2)
            self.program.sync(Engine.VE, wait=waits[pair], post=posts[pair])

    def pool(self, pool: Pool, block: int, tile: Tile) -> None:
        """Pool one block of columns."""
        start = self.tiling.a[tile.number % self.buffers] + block * tile.source.rows
        if pool.fill:
            for first, rows in tile.source.gaps:
                at = spad(start + first)
                self.program.vec(VecOp.SPLAT, at, None, Imm(pool.fill), rows=rows)
        out = tile.output + block * self.tiling.height
        window, area = self.layer.window, tile.area
        times = 1 if self.is_one_sequence(tile) else area.lines
        if pool.goes_by_pixels(window, area.lines, area.pixels, tile.height, times):
            self.pool_pixels(pool, tile, out, start)
            return
        step = window.right.stride
        weights = self.tiling.vectors + block * self.tiling.vectors_of_block
        for tap, line, row, rows in self.taps(tile):
            source, to = spad(start + row), acc(out + line)
            if pool.w is not None:
                weight = acc(weights + len(self.epilogue.vectors) + tap)
                product = to if tap == 0 else acc(self.tiling.temporaries[0] + line)
                self.program.vec(VecOp.MUL, product, source, weight, rows=rows, sinc=step)
                if tap:
                    self.program.vec(VecOp.ADD, to, product, to, rows=rows, s2inc=1)
            elif tap == 0:
                self.program.vec(VecOp.MOV, to, source, rows=rows, sinc=step)
            else:
                self.program.vec(pool.op, to, source, to, rows=rows, sinc=step, s2inc=1)

    def pool_pixels(self, pool: Pool, tile: Tile, out: int, start: int) -> None:
        """Pool each window by itself: its lines, or all of it, row after row into one."""
        down, right = self.layer.window.down, self.layer.window.right
        self.program.vec(VecOp.SPLAT, acc(out), None, Imm(pool.neutral), rows=tile.height)
        pitch = tile.source.pitch
        whole = pitch == right.kernel * right.dilation and down.dilation == 1
        lines, rows = (1, self.layer.window.taps) if whole else (down.kernel, right.kernel)
        for line in range(tile.area.lines):
            for pixel in range(tile.area.pixels):
                to = acc(out + line * tile.pitch + pixel)
                first = start + line * down.stride * pitch + pixel * right.stride
                for tap in range(lines):
                    source = spad(first + tap * down.dilation * pitch)
                    step = right.dilation
                    self.program.vec(pool.op, to, source, to, rows=rows, dinc=0, sinc=step)

    def operation(self, operation: Operation, block: int, tile: Tile) -> None:
        """Emit one operation for one block of columns."""
        first, second = operation.first, operation.second
        self.program.vec(
            operation.op,
            self.place(operation.to, block, tile),
            None if first is None else self.place(first, block, tile),
            self.second(second, block, tile),
            rows=tile.height,
            sinc=0 if isinstance(first, Vector) else 1,
            s2inc=1 if isinstance(second, Matrix) else 0,
        )

    def second(self, operand: Operand | None, block: int, tile: Tile) -> asm.Operand | None:
        """Return an instruction's second operand."""
        match operand:
            case None:
                return None
            case Scalar(value):
                return self.program.constant(value)
            case ScalarPair(multiplier, shift):
                return self.program.constant_pair(multiplier, shift)
            case Table(index):
                return acc(self.tiling.tables + index * self.config.lut_rows)
            case _:
                return self.place(operand, block, tile)

    def place(self, operand: Matrix | Vector, block: int, tile: Tile) -> asm.Row:
        """Return the first row of an operand in one block of columns."""
        tiling = self.tiling
        match operand:
            case Vector(index):
                return acc(tiling.vectors + block * tiling.vectors_of_block + index)
            case Matrix(Place.TEMPORARY, index):
                return acc(tiling.temporaries[index])
            case Matrix(Place.INPUT, index):
                return acc(tiling.inputs[index][tile.place] + block * tiling.height)
            case _:
                return acc(tile.output + block * tiling.height)

    def store(self, tile: Tile) -> None:
        """Store one tile; int8 outputs are in range, so saturation changes nothing."""
        out = self.layer.out
        size = out.dtype.size_bytes
        for number, run in enumerate(tile.runs):
            is_last = number == len(tile.runs) - 1
            self.program.store(
                self.args[out.name],
                acc(tile.output + run.place),
                rows=run.count,
                cols=tile.columns,
                dstride=self.layer.columns * size if run.count > 1 else 0,
                offset=(run.pixel * self.layer.columns + tile.column) * size,
                lstride=self.tiling.height,
                saturate=out.dtype is DType.INT8,
                wait=[self.result] if number == 0 else [],
                post=[self.output_free] if is_last and tile.frees else [],
            )
