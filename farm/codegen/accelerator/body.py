"""Reading the body of an intrinsic: from a Python function of plain loops to a function of the IR.

Owns: which Python is plain enough, and saying why other Python is not. Does not own: what is done with the result.

Invariant: the function that is returned computes what the Python function computes on arrays.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping

from farm.accel import Intrinsic
from farm.errors import InvalidInput
from farm.ir import Buffer, Function, Param, Role, as_dtype
from farm.ir.dtype import DType
from farm.ir.expr import Binary, BinaryOp, Cast, Const, Expr, Load, Var
from farm.ir.stmt import For, Stmt, Store

_OPERATORS = {ast.Add: BinaryOp.ADD, ast.Sub: BinaryOp.SUB, ast.Mult: BinaryOp.MUL}
_CALLS = {"min": BinaryOp.MIN, "max": BinaryOp.MAX}


def function_of(intrinsic: Intrinsic, name: str) -> Function:
    """Return an intrinsic's body as a function of the IR.

    Raises
    ------
    InvalidInput
        The body is not plain loops around one assignment; the message shows the line.
    """
    return _Reading(intrinsic).function(name)


class _Reading:
    """One body."""

    def __init__(self, intrinsic: Intrinsic) -> None:
        self.intrinsic = intrinsic
        try:
            source = textwrap.dedent(inspect.getsource(intrinsic.body))
            self.node = ast.parse(source).body[0]
        except (OSError, TypeError, SyntaxError, IndexError) as error:
            raise InvalidInput(
                f"intrinsic {intrinsic.name}: its body has no source to read ({error}); write it in a file, with def"
            ) from error
        self.buffers = {
            it.name: Buffer(it.name, as_dtype(it.dtype), it.shape, as_dtype(it.dtype).size_bytes)
            for it in intrinsic.operands
        }
        self.loops: dict[str, Var] = {}

    def refuse(self, node: ast.AST, why: str) -> InvalidInput:
        """Make the error about a place in the body."""
        shown = ast.unparse(node)[:80].splitlines()[0]
        return InvalidInput(f"intrinsic {self.intrinsic.name}: {shown!r}: {why}")

    def function(self, name: str) -> Function:
        """Return the function."""
        node = self.node
        if not isinstance(node, ast.FunctionDef):
            raise self.refuse(node, "write the body as a function with def")
        given = [arg.arg for arg in node.args.args]
        if given != list(self.buffers):
            raise self.refuse(
                node,
                f"parameters {', '.join(given)}; use those of operands, {', '.join(self.buffers)}",
            )
        rest = [it for it in node.body if not _is_docstring(it)]
        if len(rest) != 1:
            raise self.refuse(node, "more than one statement; write loops around one assignment")
        body = self.statement(rest[0])
        last = list(self.buffers)[-1]
        roles = {each: Role.INOUT if each == last else Role.INPUT for each in self.buffers}
        params = tuple(Param(buffer, roles[each]) for each, buffer in self.buffers.items())
        return Function(name, params, body)

    def statement(self, node: ast.stmt) -> Stmt:
        """Return a loop, or the assignment inside."""
        match node:
            case ast.For(ast.Name(variable), ast.Call(ast.Name("range"), [bound], []), [inner], []):
                var = self.loops[variable] = Var(variable)
                return For(var, self.number(bound), self.statement(inner))
            case ast.AugAssign(ast.Subscript() as place, operator, value):
                target = self.element(place)
                op = _OPERATORS.get(type(operator))
                if op is None:
                    raise self.refuse(node, "unknown operator; use +=")
                whole = Binary(op, target, self.expression(value))
                return self.stored(node, target, whole)
            case ast.Assign([ast.Subscript() as place], value):
                target = self.element(place)
                return self.stored(node, target, self.expression(value))
            case _:
                raise self.refuse(
                    node, "write for NAME in range(NUMBER), and out[...] += ... inside"
                )

    def stored(self, node: ast.stmt, target: Load, value: Expr) -> Stmt:
        """Return a store, which may only go to the last operand."""
        if target.buffer.name != list(self.buffers)[-1]:
            raise self.refuse(
                node, f"writes {target.buffer.name}; only the last operand is written"
            )
        if value.dtype is not target.buffer.dtype:
            raise self.refuse(node, f"gives {value.dtype} to {target.buffer.dtype}; cast it")
        return Store(target.buffer, target.indices, value)

    def number(self, node: ast.expr) -> int:
        """Return a constant, also one that the module names."""
        match node:
            case ast.Constant(int() as value):
                return value
            case ast.Name(name) if isinstance(self.intrinsic.body.__globals__.get(name), int):
                return int(self.intrinsic.body.__globals__[name])
        raise self.refuse(node, "no constant")

    def element(self, node: ast.Subscript) -> Load:
        """Return an element of an operand."""
        if not isinstance(node.value, ast.Name) or node.value.id not in self.buffers:
            raise self.refuse(node, f"no operand; there are {', '.join(self.buffers)}")
        buffer = self.buffers[node.value.id]
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(parts) != len(buffer.shape):
            raise self.refuse(node, f"{len(parts)} indices; the operand has {len(buffer.shape)}")
        return Load(buffer, tuple(self.index(part) for part in parts))

    def index(self, node: ast.expr) -> Expr:
        """Return an index: sums and products of loop variables and constants."""
        match node:
            case ast.Name(name) if name in self.loops:
                return self.loops[name]
            case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS:
                return Binary(_OPERATORS[type(operator)], self.index(left), self.index(right))
            case _:
                return Const(self.number(node), DType.INT64)

    def expression(self, node: ast.expr) -> Expr:
        """Return a value."""
        match node:
            case ast.Subscript():
                return self.element(node)
            case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS:
                a, b = self.expression(left), self.expression(right)
                if a.dtype is not b.dtype:
                    raise self.refuse(
                        node, f"{a.dtype} and {b.dtype}; cast one, such as int32(...)"
                    )
                return Binary(_OPERATORS[type(operator)], a, b)
            case ast.Call(ast.Name(name), [a, b], []) if name in _CALLS:
                return Binary(_CALLS[name], self.expression(a), self.expression(b))
            case ast.Call(ast.Name(name) | ast.Attribute(attr=name), [value], []):
                return Cast(self.type(node, name), self.expression(value))
            case _:
                raise self.refuse(
                    node, "use elements of operands, + - *, min, max, and casts such as int32(...)"
                )

    def type(self, node: ast.AST, name: str) -> DType:
        """Return the type of a cast."""
        try:
            return as_dtype(name)
        except InvalidInput as error:
            raise self.refuse(node, "no cast to a type that there is") from error


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def names_of(function: Function) -> Mapping[str, int]:
    """Return the loops of a body with their extents, outermost first."""
    found: dict[str, int] = {}
    stmt = function.body
    while isinstance(stmt, For):
        found[stmt.var.name] = stmt.extent
        stmt = stmt.body
    return found
