"""The program: tiles in order, with the semaphores that order the engines.

Owns: loops over tiles, loads, products, vector code, stores, and who waits for whom.
Does not own: the choice of tiles (`tiling`) or of vector operations (`epilogue`).

Invariant: each memory region has one writer at a time. The semaphores are, by producer and consumer:

- ``operands`` LD to GE: a tile of A and W is loaded; ``operands_free`` GE to LD: it is used up;
- ``extras`` LD to VE: vectors and matrices for the vector engine are loaded; ``extras_free`` VE to LD;
- ``product`` GE to VE: all depth is summed up; ``result`` VE to ST; ``output_free`` ST to who writes the output next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from farm.codegen.ea.epilogue import (
    Epilogue,
    Matrix,
    Operand,
    Operation,
    Place,
    Scalar,
    ScalarPair,
    Vector,
)
from farm.codegen.ea.lift import Layer
from farm.codegen.ea.tiling import Tiling
from farm.ea import builder as asm
from farm.ea.builder import ProgramBuilder, acc, spad
from farm.ea.config import MachineConfig
from farm.ea.isa import Engine
from farm.ea.program import Program
from farm.ir import Buffer, DType


@dataclass(frozen=True, slots=True)
class _Tile:
    """One tile of the output.

    Attributes
    ----------
    output
        Its first row in the accumulator.
    waits, frees
        Whether an earlier tile was there before, and whether a later one will be.
    """

    row: int
    rows: int
    column: int
    columns: int
    first: bool
    new_rows: bool
    new_columns: bool
    output: int
    waits: bool
    frees: bool


def schedule(layer: Layer, epilogue: Epilogue, tiling: Tiling, config: MachineConfig) -> Program:
    """Return the program of a layer; its arguments are the function's parameters in order."""
    emission = _Emission(layer, epilogue, tiling, config)
    tiles = list(emission.tiles())
    for tile, following in zip(tiles, [*tiles[1:], None], strict=True):
        emission.tile(tile, following)
    return emission.program.build()


class _Emission:
    """The program so far."""

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
        self.extras = self.program.semaphore("extras")
        self.extras_free = self.program.semaphore("extras_free")
        self.product = self.program.semaphore("product")
        self.result = self.program.semaphore("result")
        self.output_free = self.program.semaphore("output_free")
        self.tile_count = len(list(self.tiles()))
        self.products = 0  # that were given to GE
        self.weights = self.matrices = -1  # how often each operand was loaded, counted from 0

    def tiles(self) -> Iterator[_Tile]:
        """Yield the tiles: by default blocks of columns outside, so that vectors are loaded rarely."""
        layer, width, height = self.layer, self.tiling.blocks * self.config.dim, self.tiling.rows
        columns, rows = range(0, layer.columns, width), range(0, layer.rows, height)
        if self.tiling.rows_outside:
            order = [(row, column) for row in rows for column in columns]
        else:
            order = [(row, column) for column in columns for row in rows]
        before, places = (-1, -1), len(self.tiling.outputs)
        for number, (row, column) in enumerate(order):
            yield _Tile(
                row,
                min(height, layer.rows - row),
                column,
                min(width, layer.columns - column),
                first=(row, column) == order[0],
                new_rows=row != before[0],
                new_columns=column != before[1],
                output=self.tiling.outputs[number % places],
                waits=number >= places,
                frees=number + places < len(order),
            )
            before = (row, column)

    @property
    def buffers(self) -> int:
        """How many places there are for each operand of GE."""
        return len(self.tiling.a)

    def tile(self, tile: _Tile, following: _Tile | None) -> None:
        """Compute one tile of the output."""
        has_extras = self.load_extras(tile)
        if self.layer.product is not None:
            self.multiply(tile)
        self.vector_code(tile, has_extras, frees=following is not None and self.needs(following))
        self.store(tile)

    def needs(self, tile: _Tile) -> bool:
        """Tell whether a tile loads anything for the vector engine."""
        return bool(self.epilogue.inputs) or (bool(self.epilogue.vectors) and tile.new_columns)

    def load_extras(self, tile: _Tile) -> bool:
        """Load vectors and matrices for the vector engine, if this tile needs new ones."""
        if not self.needs(tile):
            return False
        loads = [
            (buffer, self.tiling.inputs[i], True) for i, buffer in enumerate(self.epilogue.inputs)
        ]
        if tile.new_columns:
            vectors = enumerate(self.epilogue.vectors)
            loads += [(buffer, self.tiling.vectors + i, False) for i, buffer in vectors]
        for number, (buffer, at, is_matrix) in enumerate(loads):
            size = buffer.dtype.size_bytes
            start = tile.column + (tile.row * self.layer.columns if is_matrix else 0)
            self.program.load(
                acc(at),
                self.args[buffer.name],
                rows=tile.rows if is_matrix else 1,
                cols=tile.columns,
                dstride=self.layer.columns * size if is_matrix and tile.rows > 1 else 0,
                offset=start * size,
                lstride=self.tiling.rows if is_matrix else len(self.epilogue.vectors),
                widen=buffer.dtype is DType.INT8,
                wait=[self.extras_free] if number == 0 and not tile.first else [],
                post=[self.extras] if number == len(loads) - 1 else [],
            )
        return True

    def multiply(self, tile: _Tile) -> None:
        """Sum up the product of one tile over all depth."""
        product, dim = self.layer.product, self.config.dim
        assert product is not None
        step = self.tiling.depth_blocks * dim
        whole_depth = step >= product.depth  # then operands stay while the next tiles need them
        count = self.tile_count * -(-product.depth // step)
        for start in range(0, product.depth, step):
            depth = min(step, product.depth - start)
            wait = [self.operands_free] if self.products >= self.buffers else []
            new_rows = not whole_depth or tile.new_rows
            if not whole_depth or tile.new_columns:
                post = [] if new_rows else [self.operands]
                self.load_weights(product.w, tile, start, depth, wait, post)
                wait = []
            if new_rows:
                self.matrices += 1
                self.program.load(
                    spad(self.tiling.a[self.matrices % self.buffers]),
                    self.args[product.a.name],
                    rows=tile.rows,
                    cols=depth,
                    dstride=product.depth if tile.rows > 1 else 0,
                    offset=tile.row * product.depth + start,
                    lstride=self.tiling.rows,
                    wait=wait,
                    post=[self.operands],
                )
            is_last = start + depth == product.depth
            free_output = [self.output_free] if start == 0 and tile.waits else []
            self.products += 1
            self.program.gemm(
                acc(tile.output),
                spad(self.tiling.a[self.matrices % self.buffers]),
                spad(self.tiling.w[self.weights % self.buffers]),
                m=tile.rows,
                nt=self.config.blocks(tile.columns),
                kt=self.config.blocks(depth),
                aks=self.tiling.rows,
                cns=self.tiling.rows,
                accumulate=start > 0,
                wait=[self.operands, *free_output],
                post=[
                    *([self.operands_free] if self.products + self.buffers <= count else []),
                    *([self.product] if is_last else []),
                ],
            )

    def load_weights(
        self, w: Buffer, tile: _Tile, start: int, depth: int, wait: list[int], post: list[int]
    ) -> None:
        """Load a tile of weights; rows beyond the depth become zero, since GEMM reads whole blocks."""
        self.weights += 1
        at = self.tiling.w[self.weights % self.buffers]
        dim, blocks = self.config.dim, self.config.blocks(tile.columns)
        between = self.config.blocks(depth) * dim
        self.program.load(
            spad(at),
            self.args[w.name],
            rows=depth,
            cols=tile.columns,
            dstride=self.layer.columns if depth > 1 else 0,
            offset=start * self.layer.columns + tile.column,
            lstride=between,
            wait=wait,
            post=post if depth == between else [],
        )
        if depth < between:
            self.program.fill(
                spad(at + depth),
                rows=between - depth,
                cols=blocks * dim,
                lstride=between,
                post=post,
            )

    def vector_code(self, tile: _Tile, has_extras: bool, frees: bool) -> None:
        """Run the operations on each block of columns."""
        wait = [self.extras] if has_extras else []
        if self.layer.product is not None:
            wait.append(self.product)
        elif tile.waits:
            wait.append(self.output_free)
        engine = Engine.VE
        if wait:
            self.program.sync(engine, wait=wait)
        for block in range(self.config.blocks(tile.columns)):
            for operation in self.epilogue.operations:
                self.operation(operation, block, tile)
        self.program.sync(engine, post=[self.result, *([self.extras_free] if frees else [])])

    def operation(self, operation: Operation, block: int, tile: _Tile) -> None:
        """Emit one operation for one block of columns."""
        first, second = operation.first, operation.second
        self.program.vec(
            operation.op,
            self.place(operation.to, block, tile),
            None if first is None else self.place(first, block, tile),
            self.second(second, block, tile),
            rows=tile.rows,
            sinc=0 if isinstance(first, Vector) else 1,
            s2inc=1 if isinstance(second, Matrix) else 0,
        )

    def second(self, operand: Operand | None, block: int, tile: _Tile) -> asm.Operand | None:
        """Return an instruction's second operand."""
        match operand:
            case None:
                return None
            case Scalar(value):
                return self.program.constant(value)
            case ScalarPair(multiplier, shift):
                return self.program.constant_pair(multiplier, shift)
            case _:
                return self.place(operand, block, tile)

    def place(self, operand: Matrix | Vector, block: int, tile: _Tile) -> asm.Row:
        """Return the first row of an operand in one block of columns."""
        tiling = self.tiling
        match operand:
            case Vector(index):
                return acc(tiling.vectors + block * len(self.epilogue.vectors) + index)
            case Matrix(Place.TEMPORARY, index):
                return acc(tiling.temporaries[index])
            case Matrix(Place.INPUT, index):
                return acc(tiling.inputs[index] + block * tiling.rows)
            case _:
                return acc(tile.output + block * tiling.rows)

    def store(self, tile: _Tile) -> None:
        """Store one tile; int8 outputs are in range, so saturation changes nothing."""
        out = self.layer.out
        size = out.dtype.size_bytes
        self.program.store(
            self.args[out.name],
            acc(tile.output),
            rows=tile.rows,
            cols=tile.columns,
            dstride=self.layer.columns * size if tile.rows > 1 else 0,
            offset=(tile.row * self.layer.columns + tile.column) * size,
            lstride=self.tiling.rows,
            saturate=out.dtype is DType.INT8,
            wait=[self.result],
            post=[self.output_free] if tile.frees else [],
        )
