"""The same function in float64, as a reference for numbers.

Owns: the change of types. Does not own: computing it, or how far from it results may be.

Invariant: integers and booleans stay; every float becomes float64, so that nothing is rounded to a narrower one on
the way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from farm.errors import UnsupportedFunction
from farm.ir.buffer import Buffer, Scope
from farm.ir.dtype import DType
from farm.ir.expr import Cast, Const, Expr, Load, map_children
from farm.ir.function import FastMath, Function
from farm.ir.source import Source
from farm.ir.stmt import Allocate, Block, Call, For, If, Stmt, Store


def widened(function: Function) -> Function:
    """Return a function that computes the same in float64; float parameters become float64 too.

    Raises
    ------
    UnsupportedFunction
        Its body is C or LLVM IR, or calls other functions.

    Examples
    --------
    >>> from farm import te
    >>> x = te.placeholder((4,), "float32", name="x")
    >>> y = te.compute((4,), lambda i: x[i] * 2.0, name="y")
    >>> [param.buffer.dtype.value for param in widened(te.function("twice", [x, y])).params]
    ['float64', 'float64']
    """
    change = _Widening(function.name)
    params = tuple(replace(it, buffer=_wide(it.buffer)) for it in function.params)
    body = change.stmt(function.body)
    return replace(function, params=params, body=body, target=None, fast_math=FastMath())


def _wide(buffer: Buffer) -> Buffer:
    """Return the buffer in float64; larger, it may no longer fit into a scope."""
    if not buffer.dtype.is_float or buffer.dtype is DType.FLOAT64:
        return buffer
    align = max(buffer.align_bytes, DType.FLOAT64.size_bytes)
    return replace(buffer, dtype=DType.FLOAT64, align_bytes=align, scope=Scope.GLOBAL)


@dataclass(frozen=True, slots=True)
class _Widening:
    name: str

    def stmt(self, stmt: Stmt) -> Stmt:
        match stmt:
            case For(body=body):
                return replace(stmt, body=self.stmt(body))
            case Store(buffer, indices, value):
                wide = self.expr(value)
                return replace(
                    stmt,
                    buffer=_wide(buffer),
                    indices=tuple(map(self.expr, indices)),
                    value=wide,
                )
            case If(condition, then_body, else_body):
                other = self.stmt(else_body) if else_body is not None else None
                return replace(
                    stmt,
                    condition=self.expr(condition),
                    then_body=self.stmt(then_body),
                    else_body=other,
                )
            case Block(stmts):
                return replace(stmt, stmts=tuple(map(self.stmt, stmts)))
            case Allocate(buffer, body):
                return replace(stmt, buffer=_wide(buffer), body=self.stmt(body))
            case Source() | Call():
                raise UnsupportedFunction(
                    f"{self.name}: a body of another language, or that calls functions, has no form in float64; "
                    "pass an artifact as the reference"
                )
            case _:
                raise AssertionError(f"unknown statement {type(stmt).__name__}")

    def expr(self, expr: Expr) -> Expr:
        match expr:
            case Const(value, dtype):
                return Const(value, DType.FLOAT64) if dtype.is_float else expr
            case Load(buffer, indices):
                return Load(_wide(buffer), tuple(map(self.expr, indices)))
            case Cast(dtype, value):
                wide = self.expr(value)
                to = DType.FLOAT64 if dtype.is_float else dtype
                return wide if wide.dtype is to else Cast(to, wide)
            case _:
                return map_children(expr, self.expr)
