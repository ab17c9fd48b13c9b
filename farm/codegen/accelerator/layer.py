"""Recognising layers: from loops back to one sum of products and an element-wise rest.

Owns: what a function computes in terms that libraries and code generators have: a matrix product or a convolution with
its sizes, and the expression around it. Does not own: what any accelerator can do.

Invariant: a `Layer` stands for exactly what its function computes. A variable that is always 0 stands as 0 in it, so
that functions that were scheduled read as those that were not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm.codegen.padding import axes_of, padding_of, plain, substitute
from farm.errors import UnsupportedFunction
from farm.ir import Buffer, Function, Role
from farm.ir.affine import affine
from farm.ir.dtype import DType
from farm.ir.expr import Binary, BinaryOp, Cast, Const, Expr, Load, Var, map_children
from farm.ir.source import Source
from farm.ir.stmt import Block, For, Stmt, Store, nests


@dataclass(frozen=True, slots=True)
class Product:
    """``result[axes] = sum over reduced of x[x_at] * w[w_at]``; both factors are widened to the result's type.

    Attributes
    ----------
    extents
        Of every variable, those of the axes too.
    around
        Of each dimension of `x`: how many zeros stand before and after it; `x_at` counts them.
    """

    x: Buffer
    w: Buffer
    result: Buffer
    axes: tuple[Expr, ...]
    reduced: tuple[Var, ...]
    extents: Mapping[Var, int]
    x_at: tuple[Expr, ...]
    w_at: tuple[Expr, ...]
    around: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """``out[axes] = value``, where the product stands as a load of its result at the axes.

    Attributes
    ----------
    kind
        ``dense``: out[m, n] = sum x[m, k] * w, w being [k, n], or [n, k] where sizes["transposed"] is 1. ``conv2d``:
        a convolution, in NHWC (weights r, s, c, o) where sizes["nhwc"] is 1, else NCHW (o, c, r, s).
        ``other``: any other sum of products. ``elementwise``: no product.
    sizes
        dense: m n k transposed. conv2d: n h w c o oh ow kh kw, strides sh sw, dilations dh dw, zeros around top bottom
        left right, nhwc. For all with a product: which parameters of the function they are, arg_x arg_w; arg_out for
        all.
    """

    function: Function
    kind: str
    sizes: Mapping[str, int]
    product: Product | None
    out: Buffer
    axes: tuple[Expr, ...]
    value: Expr

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing around the product."""
        return self.product is not None and self.value == Load(self.product.result, self.axes)


def layer_of(function: Function) -> Layer:
    """Return what a function computes.

    Raises
    ------
    UnsupportedFunction
        It is no such layer; the message says why.
    """
    if isinstance(function.body, Source):
        raise UnsupportedFunction(
            f"function {function.name}: its body is {function.body.language.value}, no loops; place it on a CPU"
        )
    reading = _Reading(function)
    for nest in nests(function.body):
        reading.nest(nest)
    return reading.layer()


class _Reading:
    """The stages of one function, in order."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.inputs = [p.buffer for p in function.params if p.role is Role.INPUT]
        self.product: Product | None = None
        self.stages: dict[str, tuple[tuple[Expr, ...], Expr]] = {}

    def refuse(self, why: str) -> UnsupportedFunction:
        """Make the error that says why it is no layer."""
        return UnsupportedFunction(f"function {self.function.name}: no layer: {why}")

    def nest(self, nest: Stmt) -> None:
        """Take one loop nest: the product, or an element-wise stage."""
        loops: list[For] = []
        while isinstance(nest, For):
            loops.append(nest)
            nest = nest.body
        match nest:
            case Store(buffer, indices, value):
                self.check_cover(buffer, indices, loops)
                value = plain(value, {loop.var: loop.extent for loop in loops})
                self.stages[buffer.name] = (axes_of(loops), self.inline(value))
            case Block((Store(buffer, indices, first), For() as inner)):
                self.check_cover(buffer, indices, loops)
                self.reduction(buffer, loops, first, inner)
            case _:
                raise self.refuse(f"cannot tell what a {type(nest).__name__.lower()} computes")

    def check_cover(self, buffer: Buffer, indices: tuple[Expr, ...], loops: list[For]) -> None:
        """Refuse stores that do not write each element exactly once, in the loops' order."""
        found = _plains(indices, {loop.var: loop.extent for loop in loops})
        if found != axes_of(loops) or buffer.shape != tuple(loop.extent for loop in loops):
            raise self.refuse(f"{buffer.name} is not stored element by element over its own shape")
        if buffer.name in self.stages or (self.product and self.product.result == buffer):
            raise self.refuse(f"{buffer.name} is stored twice")

    def reduction(self, buffer: Buffer, loops: list[For], first: Expr, inner: For) -> None:
        """Take a reduction, which must be the one sum of products."""
        axes = axes_of(loops)
        reduced = [inner]
        body = inner.body
        while isinstance(body, For):
            reduced.append(body)
            body = body.body
        factors = None
        extents = {loop.var: loop.extent for loop in (*loops, *reduced)}
        match body:
            case Store(target, indices, Binary(BinaryOp.ADD, Load(read, again), term)) if (
                target == read == buffer
                and all(_plains(at, extents) == axes for at in (indices, again))
            ):
                factors = _factors(plain(term, extents))
        if factors is None or not isinstance(first, Const) or first.value != 0:
            raise self.refuse(f"{buffer.name} is reduced, but not as a sum of products from 0")
        if self.product is not None:
            raise self.refuse("it has two sums of products")
        made = [
            Product(
                *(self.source(x.buffer)[0], w.buffer, buffer, axes),
                tuple(loop.var for loop in reduced if loop.extent > 1),
                *(extents, x.indices, w.indices, self.source(x.buffer)[1]),
            )
            for x, w in (factors, factors[::-1])
            if w.buffer in self.inputs
        ]
        if not made:
            raise self.refuse("neither factor of its products is an input")
        self.product = next(filter(_recognised, made), made[0])

    def source(self, buffer: Buffer) -> tuple[Buffer, tuple[tuple[int, int], ...]]:
        """Return the input that a factor is, and the zeros around it."""
        if buffer in self.inputs:
            return buffer, ((0, 0),) * len(buffer.shape)
        if buffer.name in self.stages:
            found = padding_of(buffer.shape, *self.stages[buffer.name])
            if found is not None and found.source in self.inputs and found.value == 0:
                return found.source, found.around
        raise self.refuse(
            f"the factor {buffer.name} is no input, nor an input with zeros around it"
        )

    def inline(self, expr: Expr) -> Expr:
        """Replace loads of earlier element-wise stages by what they hold."""
        match expr:
            case Load(buffer, indices) if buffer.name in self.stages:
                axes, value = self.stages[buffer.name]
                moved = zip(axes, map(self.inline, indices), strict=True)
                return substitute(value, {it: index for it, index in moved if isinstance(it, Var)})
            case _:
                return map_children(expr, self.inline)

    def layer(self) -> Layer:
        """Return the whole, once all nests were taken."""
        outputs = [p.buffer for p in self.function.params if p.role is not Role.INPUT]
        if len(outputs) != 1 or any(p.role is Role.INOUT for p in self.function.params):
            raise self.refuse("it has not exactly one output that is only written")
        out, product = outputs[0], self.product
        if product is not None and product.result == out:
            whole = Load(out, product.axes)
            return Layer(self.function, *self.kind_of(product), product, out, product.axes, whole)
        if out.name not in self.stages:
            raise self.refuse("it stores nothing")
        axes, value = self.stages[out.name]
        if product is None:
            position = {"arg_out": self.position(out)}
            return Layer(self.function, "elementwise", position, None, out, axes, value)
        for load in _loads(value):
            if load.buffer == product.result and load.indices != axes:
                raise self.refuse(f"{product.result.name} is used at another place than it is at")
        if product.result.shape != out.shape:
            raise self.refuse(f"{out.name} has not all of {product.result.name}, or more")
        kind, sizes = self.kind_of(product)
        sizes = {**sizes, "arg_out": self.position(out)}
        return Layer(self.function, kind, sizes, product, out, axes, value)

    def kind_of(self, product: Product) -> tuple[str, dict[str, int]]:
        """Return the kind of layer, and its sizes."""
        found = _recognised(product) or ("other", {})
        positions = {"arg_x": self.position(product.x), "arg_w": self.position(product.w)}
        if product.result.name in {p.buffer.name for p in self.function.params}:
            positions["arg_out"] = self.position(product.result)
        return found[0], {**found[1], **positions}

    def position(self, buffer: Buffer) -> int:
        """Return which parameter a buffer is."""
        names = [param.buffer.name for param in self.function.params]
        return names.index(buffer.name)


def _plains(indices: Sequence[Expr], extents: Mapping[Var, int]) -> tuple[Expr, ...]:
    return tuple(plain(index, extents) for index in indices)


def _factors(term: Expr) -> tuple[Load, Load] | None:
    """Return the two loads that a term multiplies, casts to the sum's type aside."""
    if not isinstance(term, Binary) or term.op is not BinaryOp.MUL:
        return None
    sides = [
        side.value if isinstance(side, Cast) and side.dtype is term.dtype else side
        for side in (term.a, term.b)
    ]
    left, right = sides
    return (left, right) if isinstance(left, Load) and isinstance(right, Load) else None


def _recognised(product: Product) -> tuple[str, dict[str, int]] | None:
    return _dense(product) or _conv2d(product, nhwc=True) or _conv2d(product, nhwc=False)


def _dense(it: Product) -> tuple[str, dict[str, int]] | None:
    if len(it.axes) != 2 or len(it.reduced) > 1 or len(it.x.shape) != 2 or len(it.w.shape) != 2:
        return None
    i, j = it.axes
    k = it.reduced[0] if it.reduced else Const(0, DType.INT64)
    (m, n), depth = it.result.shape, it.x.shape[1]
    ways = {0: ((k, j), (depth, n)), 1: ((j, k), (n, depth))}
    found = [way for way, (at, shape) in ways.items() if (it.w_at, it.w.shape) == (at, shape)]
    whole = it.x.shape[0] == m and depth == (it.extents[k] if isinstance(k, Var) else 1)
    if it.x_at != (i, k) or not found or not whole or any(map(any, it.around)):
        return None
    return "dense", {"m": m, "n": n, "k": depth, "transposed": found[0]}


def _conv2d(it: Product, *, nhwc: bool) -> tuple[str, dict[str, int]] | None:
    if len(it.axes) != 4 or len(it.x_at) != 4 or len(it.w_at) != 4:
        return None
    b, i, j, o = it.axes if nhwc else (it.axes[0], it.axes[2], it.axes[3], it.axes[1])
    order = (0, 1, 2, 3) if nhwc else (2, 3, 1, 0)
    r, s, c, column = (it.w_at[position] for position in order)
    moving = [each for each in (r, s, c) if isinstance(each, Var)]
    if column != o or len({*moving}) != len(moving) or {*moving} != {*it.reduced}:
        return None
    if any(each not in (*moving, Const(0, DType.INT64)) for each in (r, s, c)):
        return None
    row, col, channel = it.x_at[1:] if nhwc else (it.x_at[2], it.x_at[3], it.x_at[1])
    if it.x_at[0] != b or channel != c:
        return None
    down, right = _steps(row, (i, r), it.extents), _steps(col, (j, s), it.extents)
    if down is None or right is None:
        return None
    n, oh, ow, outputs = (it.result.shape[at] for at in ((0, 1, 2, 3) if nhwc else (0, 2, 3, 1)))
    kh, kw, channels, last = (it.w.shape[position] for position in order)
    extents = [it.extents[each] if isinstance(each, Var) else 1 for each in (r, s, c)]
    if extents != [kh, kw, channels] or last != outputs:
        return None
    height, width = it.x.shape[1:3] if nhwc else it.x.shape[2:]
    rows, columns = it.around[1:3] if nhwc else it.around[2:]
    given = it.x.shape[3] if nhwc else it.x.shape[1]
    if (
        given != channels
        or it.x.shape[0] != n
        or sum(map(sum, it.around)) != sum((*rows, *columns))
    ):
        return None
    names = [
        "n",
        "h",
        "w",
        "c",
        "o",
        "oh",
        "ow",
        "kh",
        "kw",
        "sh",
        "dh",
        "sw",
        "dw",
        "top",
        "bottom",
        "left",
        "right",
        "nhwc",
    ]
    sizes = (n, height, width, channels, outputs, oh, ow, kh, kw, *down, *right, *rows, *columns)
    return "conv2d", dict(zip(names, (*sizes, int(nhwc)), strict=True))


def _steps(
    index: Expr, variables: tuple[Expr, Expr], extents: Mapping[Var, int]
) -> tuple[int, int] | None:
    """Return the coefficients of two variables in an index that has no other terms; 1 where a variable is always 0."""
    form = affine(index, extents)
    if form is None or form.constant:
        return None
    steps = {it: 1 for it in variables if isinstance(it, Var)}
    missing = set(steps)
    for digit, factor in form.terms:
        if digit.var not in steps or digit.lower != 1 or not digit.is_top or factor < 1:
            return None
        steps[digit.var] = factor
        missing.discard(digit.var)
    first, second = (steps[it] if isinstance(it, Var) else 1 for it in variables)
    return None if missing else (first, second)


def _loads(expr: Expr) -> list[Load]:
    found = [expr] if isinstance(expr, Load) else []
    return [*found, *(load for child in expr.children() for load in _loads(child))]
