"""The tensorize way: the loops of a layer become calls of intrinsics of the hardware.

Owns: padded sizes, which loops an intrinsic takes, where operands lie, the order of the calls, and the program's form.
Does not own: matching (`farm.schedule`), which also says what differs; the intrinsics; running (`farm.runtime.plugin`).

Invariant: a program's calls compute what the layer computes, on memory that holds its inputs with zeros around them.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from farm import te
from farm.accel import Intrinsic, Loaded, Place, guard
from farm.codegen.accelerator.body import function_of, names_of
from farm.codegen.accelerator.knobs import chosen_knobs
from farm.codegen.accelerator.layer import Layer, layer_of
from farm.core.digest import canonical_json
from farm.errors import InvalidInput, ScheduleError, UnsupportedFunction
from farm.ir import Buffer, Function
from farm.ir.affine import affine
from farm.ir.expr import Expr, Load, Var, walk
from farm.ir.stmt import For, Store
from farm.ir.stmt import walk as statements
from farm.schedule import Schedule
from farm.schedule.tensorize import TensorIntrin, register_intrin

MARK = "accel.intrinsic"
"""Annotation of the loops that an intrinsic takes."""
ALIGN_BYTES = 64
MAX_CALLS = 1 << 20
MAX_ORDERS = 24
MAX_REASONS = 3
"""Ways to lay an intrinsic over a layer whose mismatch is shown."""


@dataclass(frozen=True, slots=True)
class Padded:
    """A layer at sizes that an intrinsic divides.

    Attributes
    ----------
    origin
        For x, how many zeros stand before each dimension.
    """

    function: Function
    origin: tuple[int, ...]

    @property
    def work(self) -> int:
        """How often its innermost statement runs."""
        loops = [it for it in statements(self.function.body) if isinstance(it, For)]
        return math.prod(it.extent for it in loops)


@dataclass(frozen=True, slots=True)
class Region:
    """Where a parameter lies in the device's memory, in its padded shape."""

    arg: int
    buffer: Buffer
    address: int
    origin: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensorized:
    """A layer whose loops are calls of one intrinsic.

    Attributes
    ----------
    outer
        The loops around the calls, outermost first.
    """

    intrinsic: Intrinsic
    padded: Padded
    outer: tuple[For, ...]
    nest: For
    orders: tuple[str, ...]


def compile_tensorized(loaded: Loaded, function: Function, config: object) -> tuple[str, bytes]:
    """Return the format and the bytes of a program; raises as `compile_accelerator`."""
    name = loaded.accelerator.name
    layer = _layer(loaded, function)
    found = list(_matches(loaded, layer))
    knobs = chosen_knobs(name, function, _space(found))
    chosen = next(it for it in found if it.intrinsic.name == knobs["intrinsic"])
    return f"{name}-intrinsics", _program(loaded, layer, chosen, str(knobs["order"]), config)


def space_of_tensorized(
    loaded: Loaded, function: Function, config: object
) -> dict[str, tuple[int | str, ...]]:
    """Return the choices of `compile_tensorized`, which raises the same."""
    del config
    return _space(list(_matches(loaded, _layer(loaded, function))))


def _layer(loaded: Loaded, function: Function) -> Layer:
    layer = layer_of(function)
    if layer.kind not in ("dense", "conv2d") or not layer.is_plain:
        raise UnsupportedFunction(
            f"function {function.name} on {loaded.accelerator.name}: it is {layer.kind} with something around it; "
            "intrinsics take plain products and convolutions"
        )
    return layer


def _space(found: Sequence[Tensorized]) -> dict[str, tuple[int | str, ...]]:
    """Return which of the intrinsics that match, and the order of the loops around it."""
    orders = dict.fromkeys(itertools.chain.from_iterable(it.orders for it in found))
    return {"intrinsic": tuple(it.intrinsic.name for it in found), "order": tuple(orders)}


def _matches(loaded: Loaded, layer: Layer) -> Iterator[Tensorized]:
    """Yield the layer by each intrinsic that matches; raises with what differs if none does."""
    reasons = []
    some = False
    for intrinsic in loaded.accelerator.intrinsics:
        try:
            found = _tensorized(loaded, layer, intrinsic)
        except (ScheduleError, InvalidInput) as error:
            reasons.append(f"{intrinsic.name}: {error.message}")
            continue
        some = True
        yield found
    if not some:
        raise UnsupportedFunction(
            f"function {layer.function.name} on {loaded.accelerator.name}: no intrinsic matches "
            f"({'; '.join(reasons)}); place it on the CPU"
        )


def _tensorized(loaded: Loaded, layer: Layer, intrinsic: Intrinsic) -> Tensorized:
    who = loaded.accelerator.name
    body = function_of(intrinsic, "intrinsic")
    extents = list(names_of(body).values())
    registered = _registered(who, intrinsic, body)
    reasons: dict[str, None] = {}
    made = [
        (loops, _padded(layer, dict(zip(loops, extents, strict=True))))
        for loops in _candidates(layer, body)
    ]
    for loops, padded in sorted(made, key=lambda it: it[1].work):  # those that pad least first
        try:
            placed = _placed(intrinsic, padded, loops, extents, registered)
            _operands(placed, _regions(layer, padded)[0])
        except (ScheduleError, UnsupportedFunction) as error:
            reasons[error.message.rpartition(": ")[2]] = None
        else:
            return placed
    shown = [*reasons][:MAX_REASONS]
    more = [f"{len(reasons) - len(shown)} more"] if len(reasons) > len(shown) else []
    raise ScheduleError("; or ".join((*shown, *more)) or "it has other loops than this layer")


def _registered(who: str, intrinsic: Intrinsic, body: Function) -> str:
    """Make the body known to schedules, marked; return the name that it has there."""
    assert isinstance(body.body, For)
    text = hashlib.sha256(str(body).encode()).hexdigest()[:12]
    name = f"{who}.{intrinsic.name}.{text}"
    marked = replace(body, body=replace(body.body, annotations=((MARK, intrinsic.name),)))
    register_intrin(TensorIntrin(name, body, marked))
    return name


_DENSE = {"i": ("x", "out"), "j": ("w", "out"), "k": ("x", "w")}
_CONVOLUTION = {
    "b": ("x", "out"),
    "i": ("x", "out"),
    "j": ("x", "out"),
    "o": ("w", "out"),
    "r": ("x", "w"),
    "s": ("x", "w"),
    "c": ("x", "w"),
}
"""The loops of layers, and which of their arrays each moves over."""


def _candidates(layer: Layer, body: Function) -> Iterator[tuple[str, ...]]:
    """Yield which loops of the layer an intrinsic's could be, by the arrays that they move over; inner ones first."""
    loops = _DENSE if layer.kind == "dense" else _CONVOLUTION
    stores = [it for it in statements(body.body) if isinstance(it, Store)]
    loads = [it for it in walk(stores[0].value) if isinstance(it, Load)]
    out = stores[0].buffer.name
    read = list(dict.fromkeys(it.buffer.name for it in loads if it.buffer.name != out))
    if len(read) != 2:
        raise ScheduleError(f"it reads {len(read)} arrays besides its result, a layer two")
    for x, w in (read, read[::-1]):
        roles = {x: "x", w: "w", out: "out"}
        wanted = []
        for name in names_of(body):
            used = {
                roles[it.buffer.name]
                for it in (*loads, Load(stores[0].buffer, stores[0].indices))
                if any(Var(name) in list(walk(index)) for index in it.indices)
            }
            wanted.append([loop for loop, moves in reversed(loops.items()) if set(moves) == used])
        yield from (
            choice for choice in itertools.product(*wanted) if len({*choice}) == len(choice)
        )


def _padded(layer: Layer, multiples: Mapping[str, int]) -> Padded:
    """Return a layer with extents rounded up to multiples, and arrays that its loops then reach."""
    s = layer.sizes

    def up(loop: str, extent: int) -> int:
        step = multiples.get(loop, 1)
        return -(-extent // step) * step

    if layer.kind == "dense":
        m, n, depth = up("i", s["m"]), up("j", s["n"]), up("k", s["k"])
        x = te.placeholder((m, depth), _type(layer, "x"), name="x")
        w = te.placeholder(
            (n, depth) if s["transposed"] else (depth, n), _type(layer, "w"), name="w"
        )
        k = te.reduce_axis(depth, "k")
        wide = _type(layer, "out")
        out = te.compute(
            (m, n),
            lambda i, j: te.sum(
                x[i, k].astype(wide) * (w[j, k] if s["transposed"] else w[k, j]).astype(wide), k
            ),
            name="out",
        )
        padded = te.function("padded", [x, w, out])
        return Padded(replace(padded, fast_math=layer.function.fast_math), (0, 0))
    return _padded_convolution(layer, up)


def _padded_convolution(layer: Layer, up: Callable[[str, int], int]) -> Padded:
    s, wide = layer.sizes, _type(layer, "out")
    n, oh, ow, o = up("b", s["n"]), up("i", s["oh"]), up("j", s["ow"]), up("o", s["o"])
    kh, kw, c = up("r", s["kh"]), up("s", s["kw"]), up("c", s["c"])
    height = max((oh - 1) * s["sh"] + (kh - 1) * s["dh"] + 1, s["h"] + s["top"])
    width = max((ow - 1) * s["sw"] + (kw - 1) * s["dw"] + 1, s["w"] + s["left"])
    last = s["nhwc"]
    x = te.placeholder(
        (n, height, width, c) if last else (n, c, height, width), _type(layer, "x"), name="x"
    )
    w = te.placeholder((kh, kw, c, o) if last else (o, c, kh, kw), _type(layer, "w"), name="w")
    r, q, k = te.reduce_axis(kh, "r"), te.reduce_axis(kw, "s"), te.reduce_axis(c, "c")
    axes = tuple((r, q, k)[number] for number in _order_of_sums(layer))

    def value(b: Expr, i: Expr, j: Expr, column: Expr) -> Expr:
        row, col = i * s["sh"] + r * s["dh"], j * s["sw"] + q * s["dw"]
        pixel = x[b, row, col, k] if last else x[b, k, row, col]
        weight = w[r, q, k, column] if last else w[column, k, r, q]
        return te.sum(pixel.astype(wide) * weight.astype(wide), axes)

    if last:
        out = te.compute((n, oh, ow, o), lambda b, i, j, o: value(b, i, j, o), name="out")
        origin = (0, s["top"], s["left"], 0)
    else:
        out = te.compute((n, o, oh, ow), lambda b, o, i, j: value(b, i, j, o), name="out")
        origin = (0, 0, s["top"], s["left"])
    padded = te.function("padded", [x, w, out])
    return Padded(replace(padded, fast_math=layer.function.fast_math), origin)


def _order_of_sums(layer: Layer) -> list[int]:
    """Return in which order a convolution sums over its kernel's rows, columns and channels, as their numbers.

    That of the layer, since floats round otherwise in another; where that is allowed, channels come last.
    """
    product = layer.product
    assert product is not None
    if product.result.dtype.is_integer or layer.function.fast_math.reassociate:
        return [0, 1, 2]
    places = [product.w_at[at] for at in ((0, 1, 2) if layer.sizes["nhwc"] else (2, 3, 1))]
    ranks = {var: rank for rank, var in enumerate(product.reduced)}
    last = len(ranks)  # of what has one step
    return sorted(
        range(3), key=lambda n: ranks.get(it, last) if isinstance(it := places[n], Var) else last
    )


def _type(layer: Layer, name: str) -> str:
    buffer = layer.function.params[layer.sizes[f"arg_{name}"]].buffer
    return str(buffer.dtype.value)


def _placed(
    intrinsic: Intrinsic,
    padded: Padded,
    loops: Sequence[str],
    extents: Sequence[int],
    registered: str,
) -> Tensorized:
    """Split and order a layer's loops for an intrinsic and let it take the inner ones; raises ScheduleError."""
    sch = Schedule(padded.function)
    block = sch.block_names()[0]
    names = sch.get_loops(block)
    sch.decompose_reduction(block, names[0])
    inner, outer = {}, []
    for loop in names:
        if loop in loops:
            first, inner[str(loop)] = sch.split(loop, [None, extents[list(loops).index(loop)]])
            outer.append(first)
        else:
            outer.append(loop)
    ordered = [inner[loop] for loop in loops]
    sch.reorder(*outer, *ordered)
    sch.tensorize(ordered[0], registered)
    return _read(intrinsic, padded, sch.function)


def _read(intrinsic: Intrinsic, padded: Padded, function: Function) -> Tensorized:
    """Return what a schedule made: the loops around the calls, and the nest of one call."""
    found: list[tuple[tuple[For, ...], For]] = []

    def look(stmt: object, around: tuple[For, ...]) -> None:
        if isinstance(stmt, For) and (MARK, intrinsic.name) in stmt.annotations:
            found.append((around, stmt))
            return
        inside = (*around, stmt) if isinstance(stmt, For) else around
        for child in stmt.children():  # type: ignore[attr-defined]
            look(child, inside)

    look(function.body, ())
    ((outer, nest),) = found
    moving = [loop.var for loop in outer if loop.extent > 1]
    fixed = [] if function.fast_math.reassociate else _summed_in_order(nest, moving)
    orders = (
        ".".join(var.name for var in order)
        for order in itertools.permutations(moving)
        if [var for var in order if var in fixed] == fixed
    )
    return Tensorized(intrinsic, padded, outer, nest, tuple(itertools.islice(orders, MAX_ORDERS)))


def _summed_in_order(nest: For, moving: Sequence[Var]) -> list[Var]:
    """Return the loops around a call that have to keep their order: floats are summed in one, integers in any."""
    stmt: object = nest
    while isinstance(stmt, For):
        stmt = stmt.body
    assert isinstance(stmt, Store)
    stored = {var for index in stmt.indices for var in walk(index)}
    return [var for var in moving if var not in stored and stmt.buffer.dtype.is_float]


def _program(loaded: Loaded, layer: Layer, chosen: Tensorized, order: str, config: object) -> bytes:
    """Return the program: where parameters lie, and the instructions of all calls in an order."""
    regions, size = _regions(layer, chosen.padded)
    calls = math.prod(loop.extent for loop in chosen.outer)
    name = loaded.accelerator.name
    if calls > MAX_CALLS:
        raise UnsupportedFunction(
            f"function {layer.function.name} on {name}: {calls} calls of {chosen.intrinsic.name}, more than "
            f"{MAX_CALLS}; split it, or place it on the CPU"
        )
    operands = _operands(chosen, regions)
    names = [loop.var for loop in chosen.outer]
    wanted = [it for it in order.split(".") if it in {var.name for var in names}]
    rank = {var: wanted.index(var.name) if var.name in wanted else -1 for var in names}
    ordered = sorted(chosen.outer, key=lambda loop: rank[loop.var])
    code = []
    hook = f"{chosen.intrinsic.name}.emit"
    for values in itertools.product(*(range(loop.extent) for loop in ordered)):
        at = dict(zip((loop.var for loop in ordered), values, strict=True))
        places = {
            operand: Place(base + sum(step * at[var] for var, step in steps.items()), strides)
            for operand, (base, steps, strides) in operands.items()
        }
        emitted = guard.call(loaded.who, hook, chosen.intrinsic.emit, places, config)
        if not isinstance(emitted, bytes):
            raise guard.nonsense(loaded.who, hook, emitted, "instructions as bytes")
        code.append(emitted)
    head = {
        "memory_bytes": size,
        "regions": [
            {
                "arg": it.arg,
                "address": it.address,
                "dtype": it.buffer.dtype.value,
                "shape": list(it.buffer.shape),
                "origin": list(it.origin),
            }
            for it in regions.values()
        ],
    }
    return canonical_json(head) + b"\n" + b"".join(code)


def _regions(layer: Layer, padded: Padded) -> tuple[dict[str, Region], int]:
    """Return the region of each parameter by its name in the padded function, and the bytes of memory."""
    regions, at = {}, 0
    for param in padded.function.params:
        buffer = param.buffer
        origin = padded.origin if buffer.name == "x" else (0,) * len(buffer.shape)
        regions[buffer.name] = Region(layer.sizes[f"arg_{buffer.name}"], buffer, at, origin)
        at += -(-buffer.size_bytes // ALIGN_BYTES) * ALIGN_BYTES
    return regions, at


Moves = tuple[int, dict[Var, int], tuple[int, ...]]
"""First byte, bytes by which each outer loop moves it, strides of the operand's dimensions."""


def _operands(chosen: Tensorized, regions: Mapping[str, Region]) -> dict[str, Moves]:
    """Return how each operand of the intrinsic lies and moves."""
    body = function_of(chosen.intrinsic, "intrinsic")
    inner: list[For] = []
    stmt: object = chosen.nest
    while isinstance(stmt, For):
        inner.append(stmt)
        stmt = stmt.body
    assert isinstance(stmt, Store)
    theirs = next(it for it in statements(body.body) if isinstance(it, Store))
    ours = [Load(stmt.buffer, stmt.indices), *_loads(stmt.value)]
    described = [Load(theirs.buffer, theirs.indices), *_loads(theirs.value)]
    variables = dict(zip(names_of(body), (loop.var for loop in inner), strict=True))
    extents = {loop.var: loop.extent for loop in (*chosen.outer, *inner)}
    found: dict[str, Moves] = {}
    for own, other in zip(ours, described, strict=True):
        region = regions[own.buffer.name]
        base, steps = _moves(own, region, extents)
        strides = tuple(
            steps.get(variables[index.name], 0) if isinstance(index, Var) else 0
            for index in other.indices
        )
        if strides[-1] not in (0, region.buffer.dtype.size_bytes):
            raise UnsupportedFunction(
                f"intrinsic {chosen.intrinsic.name}: neighbours in the last dimension of {other.buffer.name} lie apart"
            )
        outer = {loop.var: steps.get(loop.var, 0) for loop in chosen.outer}
        found[other.buffer.name] = (base, outer, strides)
    return {it.name: found[it.name] for it in chosen.intrinsic.operands if it.name in found}


def _loads(value: Expr) -> list[Load]:
    return [it for it in walk(value) if isinstance(it, Load)]


def _moves(load: Load, region: Region, extents: Mapping[Var, int]) -> tuple[int, dict[Var, int]]:
    """Return an element's first byte and how far each variable moves it, in bytes."""
    size = region.buffer.dtype.size_bytes
    at, steps = region.address, dict[Var, int]()
    for position, index in enumerate(load.indices):
        stride = math.prod(region.buffer.shape[position + 1 :]) * size
        form = affine(index, extents)
        if form is None or any(not it.is_top or it.lower != 1 for it, _ in form.terms):
            raise UnsupportedFunction(f"index {position} of {load.buffer.name} is not affine")
        at += form.constant * stride
        for digit, factor in form.terms:
            steps[digit.var] = steps.get(digit.var, 0) + factor * stride
    return at, steps
