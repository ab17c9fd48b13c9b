"""Recognising layers: from loops back to one sum of products and an element-wise rest.

Owns: what a function computes in terms that libraries and code generators have: a matrix product or a convolution with
its sizes, and the expression around it. Does not own: what any accelerator can do.

Invariant: a `Layer` stands for exactly what its function computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm import ops, te
from farm.errors import UnsupportedFunction
from farm.ir import Buffer, Function, Role
from farm.ir.affine import affine
from farm.ir.expr import Binary, BinaryOp, Cast, Const, Expr, Load, Select, Var, map_children
from farm.ir.source import Source
from farm.ir.stmt import Allocate, Block, For, Stmt, Store


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
    axes: tuple[Var, ...]
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
    axes: tuple[Var, ...]
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
    for nest in _nests(function.body):
        reading.nest(nest)
    return reading.layer()


def _nests(stmt: Stmt) -> list[Stmt]:
    match stmt:
        case Allocate(_, body):
            return _nests(body)
        case Block(stmts):
            return [nest for inner in stmts for nest in _nests(inner)]
        case _:
            return [stmt]


class _Reading:
    """The stages of one function, in order."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.inputs = [p.buffer for p in function.params if p.role is Role.INPUT]
        self.product: Product | None = None
        self.stages: dict[str, tuple[tuple[Var, ...], Expr]] = {}

    def refuse(self, why: str) -> UnsupportedFunction:
        """Make the error that says why it is no layer."""
        return UnsupportedFunction(f"function {self.function.name}: no layer: {why}")

    def nest(self, nest: Stmt) -> None:
        """Take one loop nest: the product, or an element-wise stage."""
        loops: list[For] = []
        while isinstance(nest, For):
            loops.append(nest)
            nest = nest.body
        variables = tuple(loop.var for loop in loops)
        match nest:
            case Store(buffer, indices, value):
                self.check_cover(buffer, indices, loops)
                self.stages[buffer.name] = (variables, self.inline(value))
            case Block((Store(buffer, indices, first), For() as inner)):
                self.check_cover(buffer, indices, loops)
                self.reduction(buffer, loops, first, inner)
            case _:
                raise self.refuse(f"cannot tell what a {type(nest).__name__.lower()} computes")

    def check_cover(self, buffer: Buffer, indices: tuple[Expr, ...], loops: list[For]) -> None:
        """Refuse stores that do not write each element exactly once, in the loops' order."""
        if indices != tuple(loop.var for loop in loops) or buffer.shape != tuple(
            loop.extent for loop in loops
        ):
            raise self.refuse(f"{buffer.name} is not stored element by element over its own shape")
        if buffer.name in self.stages or (self.product and self.product.result == buffer):
            raise self.refuse(f"{buffer.name} is stored twice")

    def reduction(self, buffer: Buffer, loops: list[For], first: Expr, inner: For) -> None:
        """Take a reduction, which must be the one sum of products."""
        axes = tuple(loop.var for loop in loops)
        reduced = [inner]
        body = inner.body
        while isinstance(body, For):
            reduced.append(body)
            body = body.body
        factors = None
        match body:
            case Store(target, indices, Binary(BinaryOp.ADD, Load(read, again), term)) if (
                target == read == buffer and indices == again == axes
            ):
                factors = _factors(term)
        if factors is None or not isinstance(first, Const) or first.value != 0:
            raise self.refuse(f"{buffer.name} is reduced, but not as a sum of products from 0")
        if self.product is not None:
            raise self.refuse("it has two sums of products")
        extents = {loop.var: loop.extent for loop in (*loops, *reduced)}
        made = [
            Product(
                *(self.source(x.buffer)[0], w.buffer, buffer, axes),
                tuple(loop.var for loop in reduced),
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
        variables, value = self.stages.get(buffer.name, ((), None))
        if isinstance(value, Select) and isinstance(value.if_true, Load):
            inner = value.if_true
            around = _around(buffer, inner, variables)
            if inner.buffer in self.inputs and around is not None:
                axes = dict(zip(variables, _axes(len(variables)), strict=True))
                if _padded(inner.buffer, around) == substitute(value, axes):
                    return inner.buffer, around
        raise self.refuse(
            f"the factor {buffer.name} is no input, nor an input with zeros around it"
        )

    def inline(self, expr: Expr) -> Expr:
        """Replace loads of earlier element-wise stages by what they hold."""
        match expr:
            case Load(buffer, indices) if buffer.name in self.stages:
                variables, value = self.stages[buffer.name]
                return substitute(
                    value, dict(zip(variables, map(self.inline, indices), strict=True))
                )
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


def _axes(rank: int) -> tuple[Var, ...]:
    return tuple(Var(f"axis{number}") for number in range(rank))


def _around(
    buffer: Buffer, inner: Load, variables: tuple[Var, ...]
) -> tuple[tuple[int, int], ...] | None:
    """Return how far each dimension of a padded buffer reaches beyond the one inside, as far as indices tell."""
    found = []
    extents = dict(zip(variables, buffer.shape, strict=True))
    for outer, size, index in zip(buffer.shape, inner.buffer.shape, inner.indices, strict=True):
        form = affine(index, extents)
        before = -1 if form is None else -form.constant
        if before < 0 or outer - size - before < 0:
            return None
        found.append((before, outer - size - before))
    return tuple(found)


def _padded(source: Buffer, around: Sequence[tuple[int, int]]) -> Expr:
    """Return what `farm.ops.pad` computes of a buffer, at `_axes`."""
    x = te.placeholder(source.shape, source.dtype, name=source.name)
    nest = te.function("padded", [x, ops.pad(x, around)]).body
    variables = []
    while isinstance(nest, For):
        variables.append(nest.var)
        nest = nest.body
    assert isinstance(nest, Store)
    return substitute(nest.value, dict(zip(variables, _axes(len(variables)), strict=True)))


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
    if len(it.axes) != 2 or len(it.reduced) != 1:
        return None
    (i, j), (k,) = it.axes, it.reduced
    if it.x_at != (i, k) or it.w_at not in ((k, j), (j, k)):
        return None
    m, n, depth = (it.extents[each] for each in (i, j, k))
    if it.x.shape != (m, depth) or any(map(any, it.around)):
        return None
    return "dense", {"m": m, "n": n, "k": depth, "transposed": int(it.w_at == (j, k))}


def _conv2d(it: Product, *, nhwc: bool) -> tuple[str, dict[str, int]] | None:
    if len(it.axes) != 4 or len(it.x_at) != 4 or len(it.w_at) != 4 or len(it.reduced) != 3:
        return None
    b, i, j, o = it.axes if nhwc else (it.axes[0], it.axes[2], it.axes[3], it.axes[1])
    at = it.w_at if nhwc else (it.w_at[2], it.w_at[3], it.w_at[1], it.w_at[0])
    r, s, c, column = at
    inner = (r, s, c)
    if column != o or any(each not in it.reduced for each in inner) or len({*inner}) != 3:
        return None
    row, col, channel = it.x_at[1:] if nhwc else (it.x_at[2], it.x_at[3], it.x_at[1])
    if not _same(it.x_at[0], b, it.extents) or not _same(channel, c, it.extents):
        return None
    assert isinstance(r, Var)
    assert isinstance(s, Var)
    assert isinstance(c, Var)
    down, right = _steps(row, (i, r), it.extents), _steps(col, (j, s), it.extents)
    if down is None or right is None:
        return None
    n, oh, ow, outputs, kh, kw, channels = (it.extents[v] for v in (b, i, j, o, r, s, c))
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


def _same(index: Expr, variable: Expr, extents: Mapping[Var, int]) -> bool:
    form = affine(index, extents)
    return form is not None and form == affine(variable, extents)


def _steps(
    index: Expr, variables: Sequence[Var], extents: Mapping[Var, int]
) -> tuple[int, int] | None:
    """Return the coefficients of two variables in an index that has no other terms; 1 where a variable is always 0."""
    form = affine(index, extents)
    if form is None or form.constant:
        return None
    steps = dict.fromkeys(variables, 1)
    for digit, factor in form.terms:
        if digit.var not in steps or digit.lower != 1 or not digit.is_top or factor < 1:
            return None
        steps[digit.var] = factor
    missing = {v for v in variables if extents[v] > 1} - {digit.var for digit, _ in form.terms}
    return None if missing else (steps[variables[0]], steps[variables[1]])


def _loads(expr: Expr) -> list[Load]:
    found = [expr] if isinstance(expr, Load) else []
    return [*found, *(load for child in expr.children() for load in _loads(child))]


def substitute(expr: Expr, values: Mapping[Var, Expr]) -> Expr:
    """Return an expression with variables replaced."""
    if isinstance(expr, Var):
        return values.get(expr, expr)
    return map_children(expr, lambda child: substitute(child, values))
