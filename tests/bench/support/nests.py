"""Scheduled loop nests, written out by hand: what the generated code of a tuned schedule can reach.

Owns: the nests. Does not own: how they are measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from farm import te
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


COLUMNS = 16  # of a tile: two registers of eight float32


def matmul_f32(n: int, *, depth: int = 512, block: int = 28, threads: bool = False) -> Function:
    """Return ``c = a @ b`` of squares of 512 or a multiple.

    b is packed in panels of 16 columns, of which `depth` rows at a time stay in the first cache; `block` tiles of 6
    rows of a stay in the second. 6 x 16 results are in registers, 4 x 16 in the last rows.
    """
    a, b, c = (buffer(name, "float32", (n, n)) for name in "abc")
    tiles = n // (6 * block) * block
    rest = (n - tiles * 6) // 4
    panels = buffer("panels", "float32", (n // COLUMNS, n, COLUMNS))
    outer = P if threads else S
    pi, pk, pj = Var("pi"), Var("pk"), Var("pj")
    packed = store(panels, (pi, pk, pj), load(b, pk, pi * COLUMNS + pj))
    pack = loop("pi", n // COLUMNS, loop("pk", n, loop("pj", COLUMNS, packed, V)), outer)

    def tile(name: str, rows: int, top: Expr, panel: Expr, at: Expr | int) -> Stmt:
        acc = buffer(f"{name}acc", "float32", (rows, COLUMNS), Scope.REGISTER)
        k = Var(f"{name}k")

        def each(stage: str, make) -> Stmt:
            r, v = Var(f"{name}{stage}r"), Var(f"{name}{stage}v")
            return loop(r.name, rows, loop(v.name, COLUMNS, make(r, v), V), U)

        def target(r: Expr, v: Expr) -> tuple[Expr, Expr]:
            return top + r, panel * COLUMNS + v

        def product(r: Expr, v: Expr) -> Expr:
            return load(a, top + r, k + at) * load(panels, panel, k + at, v)

        def begin(r: Expr, v: Expr) -> Expr:
            return zero("float32") if at == 0 else load(c, *target(r, v))

        start = each("i", lambda r, v: store(acc, (r, v), begin(r, v)))
        step = each("m", lambda r, v: store(acc, (r, v), load(acc, r, v) + product(r, v)))
        end = each("o", lambda r, v: store(c, target(r, v), load(acc, r, v)))
        return Allocate(acc, Block((start, loop(k.name, depth, step), end)))

    def part(name: str, at: Expr | int) -> list[Stmt]:
        """Return the loops over all tiles, for the rows of b from `at` on."""
        ib, jo, io, je, ie = (Var(f"{name}{v}") for v in ("ib", "jo", "io", "je", "ie"))
        main = loop(io.name, block, tile(f"{name}t", 6, (ib * block + io) * 6, jo, at))
        edge = loop(ie.name, rest, tile(f"{name}e", 4, ie * 4 + tiles * 6, je, at))
        return [
            loop(ib.name, tiles // block, loop(jo.name, n // COLUMNS, main, outer)),
            loop(je.name, n // COLUMNS, edge, outer),
        ]

    work = [pack, *part("f", 0)]
    if n > depth:
        again = Block(tuple(part("g", Var("ko") * depth + depth)))
        work.append(loop("ko", n // depth - 1, again))
    return function(f"matmul_{n}", [a, b], c, Allocate(panels, Block(tuple(work))))


def matmul_i8(n: int, *, rows: int = 4, columns: int = 16) -> Function:
    """Return int32 ``c = a @ b`` of int8 squares, both packed as pairs of int16 whose products are summed at once."""
    a, b = (buffer(name, "int8", (n, n)) for name in "ab")
    c = buffer("c", "int32", (n, n))
    left = buffer("left", "int16", (n // rows, n // 2, rows, 2))
    panels = buffer("panels", "int16", (n // columns, n // 2, columns, 2))
    pj, pk, pc, ph = Var("pj"), Var("pk"), Var("pc"), Var("ph")
    source = load(b, pk * 2 + ph, pj * columns + pc).astype("int16")
    lanes = loop("pc", columns, store(panels, (pj, pk, pc, ph), source), V)
    pack = loop("pj", n // columns, loop("pk", n // 2, loop("ph", 2, lanes, U)))
    qi, qk, qr, qh = Var("qi"), Var("qk"), Var("qr"), Var("qh")
    source = load(a, qi * rows + qr, qk * 2 + qh).astype("int16")
    body: Stmt = loop("qh", 2, store(left, (qi, qk, qr, qh), source), U)
    pack_left = loop("qi", n // rows, loop("qk", n // 2, loop("qr", rows, body, U)))
    acc = buffer("acc", "int32", (rows, columns), Scope.REGISTER)
    panel, tile, k = Var("jo"), Var("io"), Var("k")

    def each(stage: str, make) -> Stmt:
        r, v = Var(f"{stage}r"), Var(f"{stage}v")
        return loop(r.name, rows, loop(v.name, columns, make(r, v), V), U)

    def product(r: Expr, v: Expr, half: int) -> Expr:
        return load(left, tile, k, r, half).astype("int32") * load(
            panels, panel, k, v, half
        ).astype("int32")

    start = each("i", lambda r, v: store(acc, (r, v), zero("int32")))
    step = each(
        "m",
        lambda r, v: store(acc, (r, v), load(acc, r, v) + (product(r, v, 0) + product(r, v, 1))),
    )
    end = each("o", lambda r, v: store(c, (tile * rows + r, panel * columns + v), load(acc, r, v)))
    inner = Allocate(acc, Block((start, loop("k", n // 2, step), end)))
    nest = loop("jo", n // columns, loop("io", n // rows, inner))
    whole = Allocate(left, Allocate(panels, Block((pack, pack_left, nest))))
    return function(f"matmul_i8_{n}", [a, b], c, whole)


def conv3x3(channels: int = 64, size: int = 56) -> Function:
    """Return a convolution of ``[channels, size, size]``, padded by 1, with as many 3x3 filters.

    The input is padded and the weights are packed by 16 filters first; tiles of 6 or 4 columns x 16 filters are in
    registers; a row of tiles is turned round when it is stored.
    """
    x, y = (buffer(name, "float32", (channels, size, size)) for name in "xy")
    w = buffer("w", "float32", (channels, channels, 3, 3))
    padded = buffer("padded", "float32", (channels, size + 2, size + 8))
    packed = buffer("packed", "float32", (channels // 16, channels, 3, 3, 16))
    line = buffer("line", "float32", (16, size), Scope.STACK)
    block, row = Var("ko"), Var("h")

    wo, wc, wy, wx, wk = (Var(name) for name in ("wo", "wc", "wy", "wx", "wk"))
    pack: Stmt = store(packed, (wo, wc, wy, wx, wk), load(w, wo * 16 + wk, wc, wy, wx))
    for var, extent in ((wk, 16), (wx, 3), (wy, 3), (wc, channels), (wo, channels // 16)):
        pack = loop(var.name, extent, pack, V if var is wk else S)

    def tiles(name: str, width: int, count: int, first: int) -> Stmt:
        acc = buffer(f"{name}acc", "float32", (width, 16), Scope.REGISTER)
        tile, c, dy, dx = (Var(f"{name}{part}") for part in ("t", "c", "y", "x"))

        def each(stage: str, make) -> Stmt:
            r, v = Var(f"{name}{stage}r"), Var(f"{name}{stage}v")
            return loop(r.name, width, loop(v.name, 16, make(r, v), V), U)

        def product(r: Expr, v: Expr) -> Expr:
            pixel = load(padded, c, row + dy, tile * width + first + r + dx)
            return pixel * load(packed, block, c, dy, dx, v)

        start = each("i", lambda r, v: store(acc, (r, v), zero("float32")))
        step = each("m", lambda r, v: store(acc, (r, v), load(acc, r, v) + product(r, v)))
        taps = loop(c.name, channels, loop(dy.name, 3, loop(dx.name, 3, step, U), U))
        end = each("o", lambda r, v: store(line, (v, tile * width + first + r), load(acc, r, v)))
        return loop(tile.name, count, Allocate(acc, Block((start, taps, end))))

    left = size // 6 - (size % 6 > 0)
    while (size - left * 6) % 4:
        left -= 1
    k, j = Var("ok"), Var("oj")
    out = loop("ok", 16, loop("oj", size, store(y, (block * 16 + k, row, j), load(line, k, j)), V))
    work = [tiles("t", 6, left, 0), tiles("e", 4, (size - left * 6) // 4, left * 6), out]
    nest = loop("ko", channels // 16, loop("h", size, Allocate(line, Block(tuple(work)))))
    whole = Block((_padding(x, padded, channels, size), pack, nest))
    return function("conv3x3", [x, w], y, Allocate(padded, Allocate(packed, whole)))


def _padding(x: Buffer, padded: Buffer, channels: int, size: int) -> Stmt:
    c, h, j, zc, zh, zj = (Var(f"p{name}") for name in ("c", "h", "j", "zc", "zh", "zj"))
    width = padded.shape[2]
    clear = store(padded, (zc, zh, zj), zero("float32"))
    copy = store(padded, (c, h + 1, j + 1), load(x, c, h, j))
    return Block(
        (
            loop(zc.name, channels, loop(zh.name, size + 2, loop(zj.name, width, clear, V))),
            loop(c.name, channels, loop(h.name, size, loop(j.name, size, copy, V))),
        )
    )


def depthwise3x3(channels: int = 64, size: int = 56) -> Function:
    """Return a depthwise 3x3 convolution of ``[channels, size, size]``, padded by 1: rows of a channel in registers."""
    x, y = (buffer(name, "float32", (channels, size, size)) for name in "xy")
    w = buffer("w", "float32", (channels, 3, 3))
    padded = buffer("padded", "float32", (1, size + 2, size + 8), Scope.STACK)
    acc = buffer("acc", "float32", (size,), Scope.REGISTER)
    c, h, dy, dx = (Var(name) for name in ("c", "h", "dy", "dx"))
    zh, zj, ph, pj = (Var(name) for name in ("zh", "zj", "ph", "pj"))
    i, m, o = Var("i"), Var("m"), Var("o")
    clear = store(padded, (0, zh, zj), zero("float32"))
    copy = store(padded, (0, ph + 1, pj + 1), load(x, c, ph, pj))
    product = load(padded, 0, h + dy, m + dx) * load(w, c, dy, dx)
    step = loop("m", size, store(acc, (m,), load(acc, m) + product), V)
    line = Block(
        (
            loop("i", size, store(acc, (i,), zero("float32")), V),
            loop("dy", 3, loop("dx", 3, step, U), U),
            loop("o", size, store(y, (c, h, o), load(acc, o)), V),
        )
    )
    body = Block(
        (
            loop("zh", size + 2, loop("zj", size + 8, clear, V)),
            loop("ph", size, loop("pj", size, copy, V)),
            loop("h", size, Allocate(acc, line)),
        )
    )
    return function("depthwise3x3", [x, w], y, loop("c", channels, Allocate(padded, body)))


def _reduction(name: str, lanes: int, first: Expr, more, chunks: int, scalar: Buffer, add) -> Stmt:
    """Return code that folds `more(chunk, lane)` over a row into ``scalar[0]``: lane by lane, then over the lanes."""
    part = buffer(f"{name}part", "float32", (lanes,), Scope.REGISTER)
    i, c, j, o = (Var(f"{name}{letter}") for letter in ("i", "c", "j", "o"))
    step = store(part, (j,), add(load(part, j), more(c, j)))
    fold = store(scalar, (0,), add(load(scalar, 0), load(part, o)))
    return Allocate(
        part,
        Block(
            (
                loop(i.name, lanes, store(part, (i,), first), V),
                loop(c.name, chunks, loop(j.name, lanes, step, V)),
                store(scalar, (0,), first),
                loop(o.name, lanes, fold, U),
            )
        ),
    )


def softmax(rows: int, columns: int, lanes: int = 32) -> Function:
    """Return the softmax of each row."""
    x, y = (buffer(name, "float32", (rows, columns)) for name in "xy")
    top, total = (buffer(n, "float32", (1,), Scope.REGISTER) for n in ("top", "total"))
    r, c, j, s, k = (Var(name) for name in ("r", "ec", "ej", "sc", "sj"))
    chunks = columns // lanes
    lowest = const(-3.4028234663852886e38, "float32")
    exp = te.exp(load(x, r, c * lanes + j) - load(top, 0))
    body = [
        _reduction(
            "m", lanes, lowest, lambda c, j: load(x, r, c * lanes + j), chunks, top, te.maximum
        ),
        loop("ec", chunks, loop("ej", lanes, store(y, (r, c * lanes + j), exp), V)),
        _reduction(
            "t",
            lanes,
            zero("float32"),
            lambda c, j: load(y, r, c * lanes + j),
            chunks,
            total,
            lambda a, b: a + b,
        ),
        store(total, (0,), const(1.0, "float32") / load(total, 0)),
        loop(
            "sc",
            chunks,
            loop(
                "sj",
                lanes,
                store(y, (r, s * lanes + k), load(y, r, s * lanes + k) * load(total, 0)),
                V,
            ),
        ),
    ]
    nest = loop("r", rows, Allocate(top, Allocate(total, Block(tuple(body)))))
    return function("softmax", [x], y, nest)


def layer_norm(rows: int, columns: int, lanes: int = 32) -> Function:
    """Return ``(x - mean) / sqrt(variance + 1e-5) * gamma + beta`` of each row."""
    x, y = (buffer(name, "float32", (rows, columns)) for name in "xy")
    gamma, beta = (buffer(name, "float32", (columns,)) for name in ("gamma", "beta"))
    mean, scale = (buffer(n, "float32", (1,), Scope.REGISTER) for n in ("mean", "scale"))
    r, c, j = Var("r"), Var("oc"), Var("oj")
    chunks, inverse = columns // lanes, const(1.0 / columns, "float32")

    def centred(c: Expr, j: Expr) -> Expr:
        return load(x, r, c * lanes + j) - load(mean, 0)

    def add(a: Expr, b: Expr) -> Expr:
        return a + b

    variance = load(scale, 0) * inverse + const(1e-5, "float32")
    out = centred(c, j) * load(scale, 0) * load(gamma, c * lanes + j) + load(beta, c * lanes + j)
    body = [
        _reduction(
            "m", lanes, zero("float32"), lambda c, j: load(x, r, c * lanes + j), chunks, mean, add
        ),
        store(mean, (0,), load(mean, 0) * inverse),
        _reduction(
            "v",
            lanes,
            zero("float32"),
            lambda c, j: centred(c, j) * centred(c, j),
            chunks,
            scale,
            add,
        ),
        store(scale, (0,), const(1.0, "float32") / te.sqrt(variance)),
        loop("oc", chunks, loop("oj", lanes, store(y, (r, c * lanes + j), out), V)),
    ]
    nest = loop("r", rows, Allocate(mean, Allocate(scale, Block(tuple(body)))))
    return function("layer_norm", [x, gamma, beta], y, nest)
