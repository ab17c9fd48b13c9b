"""The compiled GEMM: packed operands, a block of rows in registers, pairwise multiply-add.

Owns the inner loop of the multiplier array. Does not own the other instructions
(`farm.runtime.ea.computing`).

Operands are widened to int16 and weights interleaved by pairs of k, so that ``sext * sext`` plus the
sum of neighbours becomes the multiply-add of pairs that x86 (pmaddwd) and others have; LLVM matches
it. A product of two int8 fits: 2 * 128 * 128 is far from 2**31, and sums wrap as they should.
"""

from __future__ import annotations

from llvmlite import ir

from farm.ea.config import MachineConfig
from farm.ea.isa import Gemm
from farm.runtime.ea.emit import I8, I16, I32, I64, Code, Int, Memory
from farm.runtime.ea.shared import Row

ROWS = 4
"""Rows of C kept in registers at once."""
MAX_LANES = 16
MAX_TILES = 63
"""Largest `kt`, of six bits."""


def scratch_bytes(config: MachineConfig) -> int:
    """Return the working memory that a GEMM needs: packed weights, and a block of rows of A."""
    return 2 * config.spad_bytes + ROWS * MAX_TILES * config.dim * 2


class MatmulKernel:
    """The function that executes a GEMM.

    ``void matmul(spad, acc, packed_w, packed_a, m, nt, kt, a, w, c, aks, cns, astep, accumulate)``
    """

    def __init__(self, module: ir.Module, config: MachineConfig) -> None:
        self._config = config
        self._lanes = min(config.dim, MAX_LANES)
        pointers = [I8.as_pointer(), I32.as_pointer(), I16.as_pointer(), I16.as_pointer()]
        kind = ir.FunctionType(I64, [*pointers, *[I64] * 10])
        self._function = ir.Function(module, kind, "matmul")
        self._function.linkage = "internal"
        for argument in self._function.args[:4]:
            argument.add_attribute("noalias")
        self._emit()

    def call(self, code: Code, row: Row, spad: Memory, acc: Memory, scratch: Memory) -> None:
        """Emit the call for one instruction."""
        names = ("m", "nt", "kt", "a", "w", "c", "aks", "cns", "astep")
        weights = code.builder.bitcast(scratch.raw, I16.as_pointer())
        rows = code.builder.bitcast(scratch.at(2 * self._config.spad_bytes).raw, I16.as_pointer())
        again = row.flag(Gemm, "accumulate").choose(1, 0)
        numbers = [*(row.field(Gemm, name).raw for name in names), again.raw]
        code.builder.call(self._function, [spad.raw, acc.raw, weights, rows, *numbers])

    def _emit(self) -> None:
        code = Code(self._function)
        spad, acc, packed_w, packed_a = (code.memory(each) for each in self._function.args[:4])
        m, nt, kt, a, w, c, aks, cns, astep, again = (
            Int(code, each) for each in self._function.args[4:]
        )
        self._pack_weights(code, spad, packed_w, w, nt * kt)
        whole = m // ROWS
        with code.repeat(whole) as block:
            self._block(
                code,
                ROWS,
                block * ROWS,
                spad,
                acc,
                packed_w,
                packed_a,
                (nt, kt, a, c, aks, cns, astep, again),
            )
        with code.repeat(m - whole * ROWS) as rest:
            self._block(
                code,
                1,
                whole * ROWS + rest,
                spad,
                acc,
                packed_w,
                packed_a,
                (nt, kt, a, c, aks, cns, astep, again),
            )
        code.leave(0)

    def _pack_weights(self, code: Code, spad: Memory, packed: Memory, w: Int, tiles: Int) -> None:
        """Write each pair of rows of W interleaved, in chunks of `lanes` columns, as int16."""
        dim, lanes, builder = self._config.dim, self._lanes, code.builder
        wide = ir.VectorType(I16, 2 * lanes)
        order = [index for lane in range(lanes) for index in (lane, lanes + lane)]
        zip_lanes = ir.Constant(ir.VectorType(I32, 2 * lanes), order)
        with code.repeat(tiles) as tile, code.repeat(dim // 2) as pair:
            row = (w + tile * dim + pair * 2) * dim
            for chunk in range(dim // lanes):
                first = spad.vector(row + chunk * lanes, lanes)
                second = spad.vector(row + dim + chunk * lanes, lanes)
                both = builder.sext(builder.shuffle_vector(first, second, zip_lanes), wide)
                place = (tile * (dim // lanes) + chunk) * (dim // 2) + pair
                packed.set_vector(place * (2 * lanes), both)

    def _block(
        self,
        code: Code,
        rows: int,
        first: Int,
        spad: Memory,
        acc: Memory,
        packed_w: Memory,
        packed_a: Memory,
        numbers: tuple[Int, ...],
    ) -> None:
        """Compute `rows` rows of C from `first` on, for all columns."""
        nt, kt, a, c, aks, cns, astep, again = numbers
        dim, lanes = self._config.dim, self._lanes
        wide = ir.VectorType(I16, dim)
        with code.repeat(kt) as tile:
            for row in range(rows):
                source = (a + tile * aks + (first + row) * astep) * dim
                values = code.builder.sext(spad.vector(source, dim), wide)
                packed_a.set_vector((tile * rows + row) * dim, values)
        with code.repeat(nt) as column, code.repeat(dim // lanes) as chunk:
            places = [(c + column * cns + first + row) * dim + chunk * lanes for row in range(rows)]
            with code.builder.goto_entry_block():
                kind = ir.VectorType(I32, lanes)
                sums = [Memory(code, code.builder.alloca(kind), I32) for _ in range(rows)]
            zero = ir.Constant(kind, None)
            for place, total in zip(places, sums, strict=True):
                old = code.builder.load(acc._vector_at(place, lanes), align=4)
                start = code.builder.select(again.differs(0).raw, old, zero)
                code.builder.store(start, total.raw)
            with code.repeat(kt) as tile:
                weights = packed_w.at(
                    ((column * kt + tile) * (dim // lanes) + chunk) * (dim * lanes)
                )
                self._tile(code, rows, packed_a.at(tile * (rows * dim)), weights, sums)
            for place, total in zip(places, sums, strict=True):
                acc.set_vector(place, code.builder.load(total.raw))

    def _tile(self, code: Code, rows: int, a: Memory, w: Memory, sums: list[Memory]) -> None:
        dim, lanes, builder = self._config.dim, self._lanes, code.builder
        pairs = code.builder.bitcast(a.raw, I32.as_pointer())
        two = Memory(code, pairs, I32)
        for pair in range(dim // 2):
            weights = w.vector(pair * 2 * lanes, 2 * lanes)
            for row in range(rows):
                scalar = builder.load(two.at(row * (dim // 2) + pair).raw, align=4)
                values = builder.bitcast(_splat(builder, scalar, lanes), weights.type)
                total = builder.load(sums[row].raw)
                builder.store(builder.add(total, _dot(builder, values, weights)), sums[row].raw)


def _splat(builder: ir.IRBuilder, scalar: ir.Value, lanes: int) -> ir.Value:
    kind = ir.VectorType(scalar.type, lanes)
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
    return builder.shuffle_vector(first, undefined, zeros)


def _dot(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return sums of the products of neighbours: int16 pairs to int32."""
    count = a.type.count
    wide = ir.VectorType(I32, count)
    products = builder.mul(builder.sext(a, wide), builder.sext(b, wide))
    even, odd = (
        builder.shuffle_vector(products, products, _every_second(start, count // 2))
        for start in (0, 1)
    )
    return builder.add(even, odd)


def _every_second(start: int, count: int) -> ir.Constant:
    numbers = [start + 2 * index for index in range(count)]
    return ir.Constant(ir.VectorType(I32, count), numbers)
