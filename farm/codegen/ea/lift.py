"""Lifting: from loops back to what they compute, one product or pool and one element-wise expression.

Owns: recognising stages, and saying why something else is refused. Does not own: what indices of a reduction mean
(`reduction`), whether the machine has an operation (`epilogue`) or room (`tiling`).

Invariant: a `Layer` stands for exactly what its function computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from farm.codegen.ea.geometry import Window, matrix
from farm.codegen.ea.reduction import (
    Loops,
    NoReductionError,
    Pool,
    Product,
    Reduction,
    pool_of,
    product_of,
)
from farm.codegen.padding import Padding, axes_of, padding_of, plain, substitute
from farm.ea.isa import VecOp
from farm.errors import UnsupportedFunction
from farm.ir import Buffer, DType, Function, Role
from farm.ir.expr import Binary, BinaryOp, Cast, Const, Expr, Load, Var, map_children
from farm.ir.printer import print_expr
from farm.ir.source import Source
from farm.ir.stmt import Block, For, Stmt, Store, nests, walk

HINT = "ea."
"""How annotations begin that are for this code generator."""
HINTS = ("rows", "lines", "flat", "blocks", "depth_blocks", "buffers", "outputs", "rows_outside")
_REDUCERS = {BinaryOp.ADD: VecOp.ADD, BinaryOp.MAX: VecOp.MAX, BinaryOp.MIN: VecOp.MIN}


@dataclass(frozen=True, slots=True)
class Layer:
    """What a function computes: ``out[axes] = value``.

    Attributes
    ----------
    axes
        A variable for each axis of `out`; 0 where it has one element.
    value
        In terms of `axes`, the reduction's result and parameters.
    window
        The result as an image: its pixels are rows, one for each element of all axes but the last, the columns.
    hints
        The loops' annotations that begin with `HINT`, without it.
    """

    function: Function
    reduction: Reduction | None
    out: Buffer
    axes: tuple[Expr, ...]
    extents: Mapping[Var, int]
    value: Expr
    window: Window
    hints: Mapping[str, int] = field(default_factory=dict)

    @property
    def columns(self) -> int:
        """Return the number of columns of the output."""
        return self.out.shape[-1]

    @property
    def product(self) -> Product | None:
        """The reduction if it is a product."""
        return self.reduction if isinstance(self.reduction, Product) else None

    @property
    def pool(self) -> Pool | None:
        """The reduction if it is a pool."""
        return self.reduction if isinstance(self.reduction, Pool) else None

    @property
    def group_columns(self) -> int:
        """Return how many columns one tile may have at most: those that are of the same channels."""
        return self.columns if self.product is None else self.product.group_columns


def lift(function: Function) -> Layer:
    """Return what a function computes.

    Raises
    ------
    UnsupportedFunction
        It is none that this accelerator can run; the message says why.
    """
    lifting = _Lifting(function)
    if isinstance(function.body, Source):
        raise lifting.refuse(f"its body is {function.body.language.value}")
    for nest in nests(function.body):
        lifting.nest(nest)
    return replace(lifting.layer(), hints=lifting.hints())


@dataclass(frozen=True, slots=True)
class _Stage:
    """An element-wise stage.

    Attributes
    ----------
    own
        What it stores as its text says, if that is a value around something else.
    """

    axes: tuple[Expr, ...]
    extents: Mapping[Var, int]
    value: Expr
    own: Padding | None


class _Lifting:
    """The stages of one function, in order."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.inputs = [p.buffer for p in function.params if p.role is Role.INPUT]
        self.outputs = [p.buffer for p in function.params if p.role is not Role.INPUT]
        self.reduced: tuple[Reduction, Loops] | None = None
        self.stages: dict[str, _Stage] = {}

    def refuse(self, why: str) -> UnsupportedFunction:
        """Make the error that says why the accelerator cannot run this function."""
        return UnsupportedFunction(
            f"function {self.function.name} on ea: {why}; place it on the CPU"
        )

    def nest(self, nest: Stmt) -> None:
        """Take one loop nest: a reduction, or an element-wise stage."""
        loops: list[For] = []
        while isinstance(nest, For):
            loops.append(nest)
            nest = nest.body
        match nest:
            case Store(buffer, indices, value):
                self.check_cover(buffer, indices, loops)
                extents = {loop.var: loop.extent for loop in loops}
                axes, value = axes_of(loops), plain(value, extents)
                own = padding_of(buffer.shape, axes, value)
                self.stages[buffer.name] = _Stage(axes, extents, self.inline(value), own)
            case Block((Store(buffer, indices, first), For() as inner)):
                self.check_cover(buffer, indices, loops)
                self.reduction(buffer, loops, first, inner)
            case _:
                raise self.refuse(f"cannot tell what a {type(nest).__name__.lower()} computes")

    def check_cover(self, buffer: Buffer, indices: tuple[Expr, ...], loops: list[For]) -> None:
        """Refuse stores that do not write each element exactly once, in the loops' order."""
        extents = {loop.var: loop.extent for loop in loops}
        found = tuple(plain(index, extents) for index in indices)
        if found != axes_of(loops) or buffer.shape != tuple(loop.extent for loop in loops):
            raise self.refuse(f"{buffer.name} is not stored element by element over its own shape")
        if buffer.name in self.stages or (self.reduced and self.reduced[0].result == buffer):
            raise self.refuse(f"{buffer.name} is stored twice")

    def reduction(self, buffer: Buffer, loops: list[For], first: Expr, inner: For) -> None:
        """Take a reduction, of which there may be one."""
        taken = [inner]
        body = inner.body
        while isinstance(body, For):
            taken.append(body)
            body = body.body
        extents = {loop.var: loop.extent for loop in (*loops, *taken)}
        axes = axes_of(loops)
        match body:
            case Store(target, indices, Binary(op, Load(read, again), term)) if (
                target == read == buffer
                and op in _REDUCERS
                and all(tuple(plain(i, extents) for i in at) == axes for at in (indices, again))
            ):
                pass
            case _:
                raise self.refuse(f"{buffer.name} is reduced in a way that it does not know")
        if self.reduced is not None:
            raise self.refuse("it has two products or reductions")
        if not axes:
            raise self.refuse(f"{buffer.name} is reduced to one number")
        variables = tuple(loop.var for loop in taken if loop.extent > 1)
        reduction = Loops(axes, variables, extents)
        try:
            made = self.read(buffer, reduction, op, first, self.inline(plain(term, extents)))
        except NoReductionError as error:
            raise self.refuse(
                f"{buffer.name} is reduced, but not as int32 sum of int8 A[i, k] * W[k, j] from 0, nor over windows "
                f"of int8 pixels: {error}"
            ) from None
        self.reduced = (made, reduction)

    def read(
        self, result: Buffer, loops: Loops, op: BinaryOp, first: Expr, term: Expr
    ) -> Reduction:
        """Return what is reduced; raises NoReductionError."""
        neutral = {BinaryOp.ADD: 0, BinaryOp.MAX: result.dtype.min, BinaryOp.MIN: result.dtype.max}
        if not result.dtype.is_integer or first != Const(int(neutral[op]), result.dtype):
            raise NoReductionError(f"it begins with {print_expr(first)}")
        match term:
            case Binary(
                BinaryOp.MUL, Cast(DType.INT32, Load() as a), Cast(DType.INT32, Load() as b)
            ):
                if op is not BinaryOp.ADD:
                    raise NoReductionError("products are not summed up")
                return self.product(result, loops, a, b)
            case Cast(DType.INT32, Load() as load) | (Load() as load):
                if result.dtype is not DType.INT32 and op is BinaryOp.ADD:
                    raise NoReductionError(f"the sum is {result.dtype}, not int32")
                x, padding = self.source(load)
                return pool_of(loops, result, x, padding, _REDUCERS[op])
            case _:
                raise NoReductionError("it is neither of products of two inputs nor of one")

    def product(self, result: Buffer, loops: Loops, a: Load, b: Load) -> Reduction:
        """Return a sum of products, whichever factor has the pixels."""
        reasons = []
        for left, right in ((a, b), (b, a)):
            try:
                x, padding = self.source(left)
                w, around = self.source(right)
                return product_of(loops, result, x, padding, w, around)
            except NoReductionError as error:
                reasons.append(str(error))
        raise NoReductionError(reasons[0])

    def source(self, load: Load) -> tuple[Load, Padding | None]:
        """Return a load of an int8 input, or of one with a value around it."""
        stage = self.stages.get(load.buffer.name)
        padding = None if stage is None else stage.own
        buffer = load.buffer if padding is None else padding.source
        if buffer not in self.inputs or buffer.dtype is not DType.INT8:
            raise NoReductionError(f"{buffer.name} is not an int8 input")
        return load, padding

    def inline(self, expr: Expr) -> Expr:
        """Replace loads of earlier element-wise stages by what they hold, but for values around inputs."""
        match expr:
            case Load(buffer, indices) if buffer.name in self.stages:
                stage = self.stages[buffer.name]
                if stage.own is not None:
                    return map_children(expr, self.inline)
                moved = zip(stage.axes, map(self.inline, indices), strict=True)
                return substitute(stage.value, {a: i for a, i in moved if isinstance(a, Var)})
            case _:
                return map_children(expr, self.inline)

    def hints(self) -> dict[str, int]:
        """Return the loops' hints."""
        found: dict[str, int] = {}
        for stmt in walk(self.function.body):
            for key, value in stmt.annotations if isinstance(stmt, For) else ():
                name = key.removeprefix(HINT)
                if name == key:
                    continue
                if name not in HINTS or not isinstance(value, int):
                    known = ", ".join(HINT + each for each in HINTS)
                    raise self.refuse(
                        f"no hint {key}={value!r} is known; give one of {known} a number"
                    )
                if found.setdefault(name, value) != value:
                    raise self.refuse(f"two loops have different hints {key}")
        return found

    def layer(self) -> Layer:
        """Return the whole, once all nests were taken."""
        if len(self.outputs) != 1:
            raise self.refuse(f"it has {len(self.outputs)} outputs, not one")
        out = self.outputs[0]
        if any(p.role is Role.INOUT for p in self.function.params):
            raise self.refuse(f"{out.name} is both read and written")
        reduction, loops = self.reduced or (None, None)
        if out.name in self.stages:
            stage = self.stages[out.name]
            axes, extents, value = stage.axes, stage.extents, stage.value
        elif reduction is not None and loops is not None and reduction.result == out:
            axes, extents, value = loops.axes, loops.extents, Load(out, loops.axes)
        else:
            raise self.refuse("it stores nothing")
        if not out.shape or out.dtype not in (DType.INT8, DType.INT32):
            raise self.refuse(
                f"{out.name} is {out.dtype} of rank {len(out.shape)}, not int8 or int32 of 1 or more"
            )
        window = matrix(math.prod(out.shape[:-1]))
        if reduction is not None:
            whole = reduction.result.shape
            if math.prod(whole) != math.prod(out.shape) or whole[-1] != out.shape[-1]:
                raise self.refuse(f"{out.name} has not all of {reduction.result.name}, or more")
            window = reduction.window
        return Layer(self.function, reduction, out, axes, extents, value, window)
