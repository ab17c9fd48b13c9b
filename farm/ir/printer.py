"""The text form of functions, for people, error messages and golden files.

Owns: that form. Does not own: reading it back (functions travel as `farm.ir.wire`).

Invariant: every operation has its own parentheses and every constant its type; of what a function is, only source
positions and the nesting of blocks do not show.
"""

from __future__ import annotations

from collections.abc import Iterator

from farm.ir.buffer import Buffer, Scope
from farm.ir.dtype import DType
from farm.ir.expr import Binary, BinaryOp, Cast, Compare, Const, Expr, Load, Math, Select, Var
from farm.ir.function import FastMath, Function
from farm.ir.source import Source
from farm.ir.stmt import Allocate, Block, Call, For, If, LoopKind, Stmt, Store

INFIX = {
    BinaryOp.ADD: "+",
    BinaryOp.SUB: "-",
    BinaryOp.MUL: "*",
    BinaryOp.DIV: "/",
    BinaryOp.FLOORDIV: "//",
    BinaryOp.FLOORMOD: "%",
    BinaryOp.AND: "&",
    BinaryOp.OR: "|",
    BinaryOp.XOR: "^",
    BinaryOp.SHL: "<<",
    BinaryOp.SHR: ">>",
}
_BITCODE = ("(bitcode)",)
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def print_function(function: Function) -> str:
    """Return the text of a function, ending with a newline.

    Examples
    --------
    >>> import farm.te as te
    >>> a = te.placeholder((4,), "int32", name="a")
    >>> b = te.compute((4,), lambda i: a[i] + 1, name="b")
    >>> print(te.function("inc", [a, b]), end="")
    func inc(a: int32[4] input, b: int32[4] output) {
      for i in 4 {
        b[i] = (a[i] + int32(1))
      }
    }
    """
    params = ", ".join(f"{print_buffer(p.buffer)} {p.role.value}" for p in function.params)
    private = "private " if function.private else ""
    place = f" on {function.target!r}" if function.target else ""
    fast = _print_fast_math(function.fast_math)
    lines = [
        f"{private}func {function.name}({params}){fast}{place} {{",
        *_lines(function.body, 1),
        "}",
        "",
    ]
    return "\n".join(lines)


def line_numbers(function: Function) -> dict[int, int]:
    """Return the line of each statement in the printed function, the first being 1, by the statement's `id`."""
    found: dict[int, int] = {}
    _number(function.body, 2, found)
    return found


def _number(stmt: Stmt, line: int, found: dict[int, int]) -> int:
    """Note the lines of a statement that begins at a line, and of all below it; return the line after it."""
    match stmt:
        case Block(stmts):
            for inner in stmts:
                line = _number(inner, line, found)
            return line
        case If(_, then_body, else_body):
            found[id(stmt)] = line
            line = _number(then_body, line + 1, found)
            return line + 1 if else_body is None else _number(else_body, line + 1, found) + 1
        case For() | Allocate():
            found[id(stmt)] = line
            return _number(stmt.body, line + 1, found) + 1
        case _:
            found[id(stmt)] = line
            return line + 1


def print_buffer(buffer: Buffer) -> str:
    """Return ``name: dtype[extents]``, with the alignment where it is not the element's size."""
    text = f"{buffer.name}: {buffer.dtype}[{', '.join(map(str, buffer.shape))}]"
    if buffer.align_bytes != buffer.dtype.size_bytes:
        text += f" align {buffer.align_bytes}"
    if buffer.scope is not Scope.GLOBAL:
        text += f" {buffer.scope.value}"
    return text


def _print_fast_math(allowed: FastMath) -> str:
    names = [name for name in ("contract", "reassociate") if getattr(allowed, name)]
    return f" fast({', '.join(names)})" if names else ""


def print_loop(loop: For) -> str:
    """Return ``for var in extent``, with kind and annotations where there are any."""
    text = f"for {loop.var.name} in {loop.extent}"
    if loop.kind is not LoopKind.SERIAL:
        text += f" {loop.kind.value}"
    if loop.annotations:
        text += f" [{', '.join(f'{key}={value!r}' for key, value in loop.annotations)}]"
    return text


def print_expr(expr: Expr) -> str:
    """Return the text of an expression; every operation has its own parentheses, every constant its type."""
    match expr:
        case Const(value, dtype):
            return _print_const(value, dtype)
        case Var(name):
            return name
        case Load(buffer, indices):
            return _print_element(buffer, indices)
        case Binary(op, a, b) if op in INFIX:
            return f"({print_expr(a)} {INFIX[op]} {print_expr(b)})"
        case Compare(compare, a, b):
            return f"({print_expr(a)} {COMPARE[compare.value]} {print_expr(b)})"
        case Cast(dtype, value):
            return f"cast({dtype}, {print_expr(value)})"
        case Select():
            name = "select"
        case Binary(op) | Math(op):
            name = op.value
        case _:
            raise AssertionError(f"unknown expression {type(expr).__name__}")
    return f"{name}({', '.join(map(print_expr, expr.children()))})"


def _print_const(value: object, dtype: DType) -> str:
    if dtype is DType.INT64:
        return str(value)
    if dtype is DType.BOOL:
        return "true" if value else "false"
    return f"{dtype}({value!r})"


def _print_element(buffer: Buffer, indices: tuple[Expr, ...]) -> str:
    return f"{buffer.name}[{', '.join(map(print_expr, indices))}]"


def _lines(stmt: Stmt, depth: int) -> Iterator[str]:
    pad = "  " * depth
    match stmt:
        case For():
            yield f"{pad}{print_loop(stmt)} {{"
            yield from _lines(stmt.body, depth + 1)
            yield f"{pad}}}"
        case Allocate(buffer, body):
            yield f"{pad}alloc {print_buffer(buffer)} {{"
            yield from _lines(body, depth + 1)
            yield f"{pad}}}"
        case Store(buffer, indices, value):
            yield f"{pad}{_print_element(buffer, indices)} = {print_expr(value)}"
        case If(condition, then_body, else_body):
            yield f"{pad}if {print_expr(condition)} {{"
            yield from _lines(then_body, depth + 1)
            if else_body is not None:
                yield f"{pad}}} else {{"
                yield from _lines(else_body, depth + 1)
            yield f"{pad}}}"
        case Block(stmts):
            for inner in stmts:
                yield from _lines(inner, depth)
        case Source(language, text, options):
            said = f" {' '.join(options)}" if options else ""
            yield f"{pad}source {language.value}{said} {{"
            lines = _BITCODE if b"\0" in text else text.decode(errors="replace").splitlines()
            yield from (f"{pad}  {line}".rstrip() for line in lines)
            yield f"{pad}}}"
        case Call(callee, buffers):
            yield f"{pad}call {callee}({', '.join(buffer.name for buffer in buffers)})"
        case _:
            raise AssertionError(f"unknown statement {type(stmt).__name__}")
