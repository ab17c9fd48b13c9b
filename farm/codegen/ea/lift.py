"""Lifting: from loops back to what they compute, one product and one element-wise expression.

Owns: recognising products and element-wise stages, and saying why something else is refused.
Does not own: whether the machine has an operation (`epilogue`) or room (`tiling`).

Invariant: a `Layer` stands for exactly what its function computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from farm.errors import UnsupportedFunction
from farm.ir import Buffer, DType, Function, Role
from farm.ir.expr import Binary, BinaryOp, Cast, Const, Expr, Load, Var, map_children
from farm.ir.source import Source
from farm.ir.stmt import Block, For, Stmt, Store, nests, walk

HINT = "ea."
"""How annotations begin that are for this code generator."""
HINTS = ("rows", "blocks", "depth_blocks", "buffers", "outputs", "rows_outside")


@dataclass(frozen=True, slots=True)
class Product:
    """``C[i, j] = sum over k of A[i, k] * W[k, j]``, int8 in, int32 out.

    Attributes
    ----------
    result
        The buffer that the function's text stores it in.
    """

    a: Buffer
    w: Buffer
    result: Buffer
    depth: int


@dataclass(frozen=True, slots=True)
class Layer:
    """What a function computes: ``out[row, column] = value``.

    Attributes
    ----------
    row
        None for a vector, which counts as one row.
    value
        In terms of `row`, `column`, the product's result and parameters.
    hints
        The loops' annotations that begin with `HINT`, without it.
    """

    function: Function
    product: Product | None
    out: Buffer
    row: Var | None
    column: Var
    value: Expr
    hints: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Return the number of rows of the output."""
        return self.out.shape[0] if self.row is not None else 1

    @property
    def columns(self) -> int:
        """Return the number of columns of the output."""
        return self.out.shape[-1]


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


class _Lifting:
    """The stages of one function, in order."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.outputs = [p.buffer for p in function.params if p.role is not Role.INPUT]
        self.product: Product | None = None
        self.stages: dict[str, tuple[tuple[Var, ...], Expr]] = {}

    def refuse(self, why: str) -> UnsupportedFunction:
        """Make the error that says why the accelerator cannot run this function."""
        return UnsupportedFunction(
            f"function {self.function.name} on ea: {why}; place it on the CPU"
        )

    def nest(self, nest: Stmt) -> None:
        """Take one loop nest: a product, or an element-wise stage."""
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
                self.reduction(buffer, variables, first, inner)
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

    def reduction(
        self, buffer: Buffer, variables: tuple[Var, ...], first: Expr, inner: For
    ) -> None:
        """Take a reduction, which must be the one product."""
        match inner.body:
            case Store(target, indices, Binary(BinaryOp.ADD, Load(read, again), term)) if (
                target == read == buffer and indices == again == variables and len(variables) == 2
            ):
                operands = _factors(term, *variables, inner.var)
            case _:
                operands = None
        if operands is None or buffer.dtype is not DType.INT32 or first != Const(0, DType.INT32):
            raise self.refuse(
                f"{buffer.name} is reduced, but not as int32 sum of int8 A[i, k] * W[k, j] from 0"
            )
        if self.product is not None:
            raise self.refuse("it has two products")
        inputs = [p.buffer for p in self.function.params if p.role is Role.INPUT]
        if any(operand not in inputs for operand in operands):
            raise self.refuse("the operands of its product are not both inputs")
        self.product = Product(*operands, result=buffer, depth=inner.extent)

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
        if out.name not in self.stages:  # the product itself, or nothing at all
            if self.product is None or self.product.result != out:
                raise self.refuse("it stores nothing")
            row, column = Var("row"), Var("column")
            return Layer(self.function, self.product, out, row, column, Load(out, (row, column)))
        variables, value = self.stages[out.name]
        if not 1 <= len(variables) <= 2 or out.dtype not in (DType.INT8, DType.INT32):
            raise self.refuse(
                f"{out.name} is {out.dtype} of rank {len(variables)}, not int8 or int32 of 1 or 2"
            )
        if self.product is not None and self.product.result.shape != out.shape:
            raise self.refuse(f"{out.name} has not all of {self.product.result.name}, or more")
        row_var = variables[0] if len(variables) == 2 else None
        return Layer(self.function, self.product, out, row_var, variables[-1], value)


def _factors(term: Expr, i: Var, j: Var, k: Var) -> tuple[Buffer, Buffer] | None:
    """Return A and W if `term` is the product of widened int8 ``A[i, k]`` and ``W[k, j]``, in either order."""
    match term:
        case Binary(
            BinaryOp.MUL,
            Cast(DType.INT32, Load(left, left_at)),
            Cast(DType.INT32, Load(right, right_at)),
        ) if left.dtype is right.dtype is DType.INT8:
            if (left_at, right_at) == ((i, k), (k, j)):
                return left, right
            if (left_at, right_at) == ((k, j), (i, k)):
                return right, left
    return None


def substitute(expr: Expr, values: dict[Var, Expr]) -> Expr:
    """Return an expression with variables replaced."""
    if isinstance(expr, Var):
        return values.get(expr, expr)
    return map_children(expr, lambda child: substitute(child, values))
