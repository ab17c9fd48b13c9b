"""Scheduled loop nests, written out by hand: what the generated code of a tuned schedule can reach.

Owns: the nests. Does not own: how they are measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from farm.ir import Buffer, DType, FastMath, Function, LoopKind, Param, Role, Scope, verify
from farm.ir.expr import Const, Expr, Load, Var, const
from farm.ir.stmt import Allocate, Block, For, Stmt, Store

V, U, P, S = LoopKind.VECTORIZED, LoopKind.UNROLLED, LoopKind.PARALLEL, LoopKind.SERIAL
FAST = FastMath(contract=True)


def buffer(
    name: str, dtype: str, shape: Sequence[int], scope: Scope = Scope.GLOBAL, align: int = 64
) -> Buffer:
    """Return a buffer aligned to a cache line."""
    return Buffer(name, DType(dtype), tuple(shape), align, scope)


def loop(name: str, extent: int, body: Stmt, kind: LoopKind = S) -> For:
    """Return a loop over a variable of this name."""
    return For(Var(name), extent, body, kind)


def load(source: Buffer, *indices: Expr | int) -> Load:
    """Return an element; Python integers are constants."""
    return Load(source, tuple(_index(index) for index in indices))


def store(target: Buffer, indices: Sequence[Expr | int], value: Expr) -> Store:
    """Return a store; Python integers are constants."""
    return Store(target, tuple(_index(index) for index in indices), value)


def _index(index: Expr | int) -> Expr:
    return const(index, "int64") if isinstance(index, int) else index


def zero(dtype: str) -> Const:
    """Return 0 of a type."""
    return const(0.0 if dtype.startswith("float") else 0, dtype)


def function(name: str, inputs: Sequence[Buffer], output: Buffer, body: Stmt) -> Function:
    """Return a verified function that may fuse multiplications and additions."""
    params = [Param(b, Role.INPUT) for b in inputs] + [Param(output, Role.OUTPUT)]
    made = Function(name, tuple(params), body, fast_math=FAST)
    verify(made)
    return made


def matmul_f32(n: int, *, rows: int = 6, columns: int = 16, threads: bool = False) -> Function:
    """Return ``c = a @ b`` of squares: b packed in panels, tiles of `rows` x `columns` in registers."""
    a, b, c = (buffer(name, "float32", (n, n)) for name in "abc")
    panels = buffer("panels", "float32", (n // columns, n, columns))
    jo, k, j = Var("p_jo"), Var("p_k"), Var("p_j")
    packed = store(panels, (jo, k, j), load(b, k, jo * columns + j))
    pack = loop(
        "p_jo", n // columns, loop("p_k", n, loop("p_j", columns, packed, V)), P if threads else S
    )

    def tile(prefix: str, first: Expr | int, rows: int, panel: Expr) -> Stmt:
        acc = buffer(f"{prefix}acc", "float32", (rows, columns), Scope.REGISTER)

        def each(stage: str, make) -> Stmt:
            r, v = Var(f"{prefix}{stage}r"), Var(f"{prefix}{stage}v")
            inner = loop(v.name, columns, make(r, v), V)
            return loop(r.name, rows, inner, U)

        kk = Var(f"{prefix}k")
        start = each("i", lambda r, v: store(acc, (r, v), zero("float32")))
        step = each(
            "m",
            lambda r, v: store(
                acc, (r, v), load(acc, r, v) + load(a, r + first, kk) * load(panels, panel, kk, v)
            ),
        )
        end = each("o", lambda r, v: store(c, (r + first, panel * columns + v), load(acc, r, v)))
        return Allocate(acc, Block((start, loop(kk.name, n, step), end)))

    jo2, io = Var("jo"), Var("io")
    tiles = n // rows
    if n % rows == 0:
        body: Stmt = loop("io", tiles, tile("t", io * rows, rows, jo2))
    else:
        while (n - tiles * rows) % 4:
            tiles -= 1
        left = (n - tiles * rows) // 4
        last = Var("it")
        body = Block(
            (
                loop("io", tiles, tile("t", io * rows, rows, jo2)),
                loop("it", left, tile("e", last * 4 + tiles * rows, 4, jo2)),
            )
        )
    nest = loop("jo", n // columns, body, P if threads else S)
    return function(f"matmul_{n}", [a, b], c, Allocate(panels, Block((pack, nest))))
