"""Functions as protobuf, and the digest of their canonical form.

Owns: the messages of `ir.proto` and the functions behind them. Does not own: the canonical form (`canonical`), rules
(`verifier`).

Invariant: `from_proto(to_proto(f)) == f` for every function that verifies; bytes from outside are verified.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError

from farm.api.v1 import ir_pb2 as pb
from farm.core.digest import Digest, digest_of
from farm.errors import InvalidFunction
from farm.ir.buffer import Buffer, Scope
from farm.ir.canonical import canonicalise
from farm.ir.dtype import DType, Kind, as_dtype
from farm.ir.expr import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Load,
    Math,
    MathOp,
    Select,
    Var,
    const,
)
from farm.ir.function import FastMath, Function, Param, Role
from farm.ir.source import Language, Source
from farm.ir.stmt import Allocate, Annotations, Block, Call, For, If, LoopKind, Span, Stmt, Store
from farm.ir.verifier import MAX_DEPTH, MAX_NODES, verify

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

MAX_BYTES = 16 << 20

_ROLES = {Role.INPUT: pb.ROLE_INPUT, Role.OUTPUT: pb.ROLE_OUTPUT, Role.INOUT: pb.ROLE_INOUT}
_ROLES_BACK = {value: role for role, value in _ROLES.items()}
# The defaults are 0, so that what uses none of these has the bytes that it had before they were there.
_KINDS = {
    LoopKind.SERIAL: pb.LOOP_KIND_UNSPECIFIED,
    LoopKind.PARALLEL: pb.LOOP_KIND_PARALLEL,
    LoopKind.VECTORIZED: pb.LOOP_KIND_VECTORIZED,
    LoopKind.UNROLLED: pb.LOOP_KIND_UNROLLED,
}
_KINDS_BACK = {value: kind for kind, value in _KINDS.items()}
_SCOPES = {
    Scope.GLOBAL: pb.SCOPE_UNSPECIFIED,
    Scope.STACK: pb.SCOPE_STACK,
    Scope.REGISTER: pb.SCOPE_REGISTER,
}
_SCOPES_BACK = {value: scope for scope, value in _SCOPES.items()}


def serialise(function: Function) -> bytes:
    """Return the canonical form of a function as bytes: equal functions give equal bytes."""
    return to_proto(canonicalise(function)).SerializeToString(deterministic=True)


def function_digest(function: Function) -> Digest:
    """Return the digest of the canonical form: what content-addresses a function."""
    return digest_of(serialise(function))


def parse(data: bytes) -> Function:
    """Read and verify a function from bytes.

    Raises
    ------
    InvalidFunction
        The bytes are no function, are too large, or the function breaks a rule of the IR.
    """
    if len(data) > MAX_BYTES:
        raise InvalidFunction(f"function: {len(data)} bytes; use at most {MAX_BYTES}")
    try:
        message = pb.Function.FromString(data)
    except DecodeError as error:
        raise InvalidFunction(
            f"function: not a farm.api.v1.Function ({error}); send its bytes"
        ) from None
    function = from_proto(message)
    verify(function)
    return function


def to_proto(function: Function) -> pb.Function:
    """Return the message of a function, spans included."""
    message = pb.Function(
        name=function.name,
        params=[pb.Param(buffer=_buffer(p.buffer), role=_ROLES[p.role]) for p in function.params],
        target=function.target or "",
        private=function.private,
        span=_span(function.span),
        fast_math=_fast_math(function.fast_math),
    )
    _write_stmt(function.body, message.body)
    return message


def from_proto(message: pb.Function) -> Function:
    """Return the function of a message, well typed but not verified.

    Raises
    ------
    InvalidFunction
        A name, type or operation is unknown, or an expression is ill typed.
    """
    params = []
    for param in message.params:
        if param.role not in _ROLES_BACK:
            raise InvalidFunction(
                f"parameter: unknown role ({param.role}); use input, output or inout"
            )
        params.append(Param(_buffer_back(param.buffer), _ROLES_BACK[param.role]))
    scope = {param.buffer.name: param.buffer for param in params}
    return Function(
        name=message.name,
        params=tuple(params),
        body=_Reader(scope).stmt(message.body, 0),
        target=message.target or None,
        private=message.private,
        span=_span_back(message.span),
        fast_math=FastMath(message.fast_math.contract, message.fast_math.reassociate),
    )


def _fast_math(allowed: FastMath) -> pb.FastMath | None:
    if allowed == FastMath():
        return None
    return pb.FastMath(contract=allowed.contract, reassociate=allowed.reassociate)


def _span(span: Span | None) -> pb.Span | None:
    return pb.Span(file=span.file, line=span.line) if span else None


def _span_back(message: pb.Span) -> Span | None:
    return Span(message.file, message.line) if message.line else None


def _buffer(buffer: Buffer) -> pb.Buffer:
    natural = buffer.align_bytes == buffer.dtype.size_bytes
    return pb.Buffer(
        name=buffer.name,
        dtype=str(buffer.dtype),
        shape=buffer.shape,
        align_bytes=0 if natural else buffer.align_bytes,
        scope=_SCOPES[buffer.scope],
    )


def _buffer_back(message: pb.Buffer) -> Buffer:
    dtype = as_dtype(message.dtype)
    if message.scope not in _SCOPES_BACK:
        raise InvalidFunction(
            f"buffer {message.name[:80]}: unknown scope ({message.scope}); update the farm"
        )
    return Buffer(
        message.name,
        dtype,
        tuple(message.shape),
        message.align_bytes or dtype.size_bytes,
        _SCOPES_BACK[message.scope],
    )


def _annotations_back(message: pb.For) -> Annotations:
    found: list[tuple[str, int | str]] = []
    for each in message.annotations:
        match each.WhichOneof("value"):
            case "text":
                found.append((each.key, each.text))
            case "number":
                found.append((each.key, each.number))
            case _:
                raise InvalidFunction(
                    f"loop {message.var[:80]}: annotation {each.key[:80]!r} without a value; give one"
                )
    return tuple(found)


# Statements and expressions are written into the message that holds them: one that is made apart is copied into its
# parent with all that is below it, once for each level.


def _write_stmt(stmt: Stmt, message: pb.Stmt) -> None:
    if stmt.span:
        message.span.file, message.span.line = stmt.span.file, stmt.span.line
    match stmt:
        case For():
            _write_loop(stmt, message.for_loop)
        case Store(buffer, indices, value):
            store = message.store
            store.buffer = buffer.name
            _write_all(indices, store.indices)
            _write_expr(value, store.value)
        case If():
            _write_if(stmt, message.if_then)
        case Block(stmts):
            message.block.SetInParent()  # also if it is empty
            for inner in stmts:
                _write_stmt(inner, message.block.stmts.add())
        case Allocate(buffer, body):
            message.allocate.buffer.CopyFrom(_buffer(buffer))
            _write_stmt(body, message.allocate.body)
        case Source(language, text, options):
            source = pb.Source(language=language.value, text=text, options=options)
            message.source.CopyFrom(source)
        case Call(callee, buffers):
            message.call.CopyFrom(pb.Call(callee=callee, buffers=[b.name for b in buffers]))
        case _:
            raise AssertionError(f"unknown statement {type(stmt).__name__}")


def _write_if(stmt: If, message: pb.If) -> None:
    _write_expr(stmt.condition, message.condition)
    _write_stmt(stmt.then_body, message.then_body)
    if stmt.else_body is not None:
        _write_stmt(stmt.else_body, message.else_body)


def _write_loop(loop: For, message: pb.For) -> None:
    message.var, message.extent, message.kind = loop.var.name, loop.extent, _KINDS[loop.kind]
    for key, value in loop.annotations:
        if isinstance(value, str):
            message.annotations.add(key=key, text=value)
        else:
            message.annotations.add(key=key, number=value)
    _write_stmt(loop.body, message.body)


def _write_all(exprs: Iterable[Expr], messages: RepeatedCompositeFieldContainer[pb.Expr]) -> None:
    for expr in exprs:
        _write_expr(expr, messages.add())


def _write_expr(expr: Expr, message: pb.Expr) -> None:
    match expr:
        case Const():
            _write_const(expr, message.const)
        case Var(name):
            message.var = name
        case Load(buffer, indices):
            load = message.load
            load.buffer = buffer.name
            _write_all(indices, load.indices)
        case Binary(op, a, b):
            binary = message.binary
            binary.op = op.value
            _write_expr(a, binary.a)
            _write_expr(b, binary.b)
        case Compare(op, a, b):
            compare = message.compare
            compare.op = op.value
            _write_expr(a, compare.a)
            _write_expr(b, compare.b)
        case Select(condition, a, b):
            select = message.select
            _write_expr(condition, select.condition)
            _write_expr(a, select.if_true)
            _write_expr(b, select.if_false)
        case Cast(dtype, value):
            message.cast.dtype = str(dtype)
            _write_expr(value, message.cast.value)
        case Math(function, value):
            message.math.op = function.value
            _write_expr(value, message.math.value)
        case _:
            raise AssertionError(f"unknown expression {type(expr).__name__}")


def _write_const(expr: Const, message: pb.Const) -> None:
    message.dtype = str(expr.dtype)
    if expr.dtype.is_float:
        message.float_value = float(expr.value)
    elif expr.dtype.kind is Kind.UINT:
        message.uint_value = int(expr.value)
    else:
        message.int_value = int(expr.value)


class _Reader:
    """Reads statements and expressions, resolving buffer names in scope."""

    def __init__(self, scope: dict[str, Buffer]) -> None:
        self.scope = scope
        self.nodes = 0

    def count(self, depth: int) -> None:
        """Count one node against the verifier's limits, before it is made."""
        self.nodes += 1
        if depth > MAX_DEPTH or self.nodes > MAX_NODES:
            raise InvalidFunction(
                f"function: too large (over {MAX_NODES} nodes or nested over {MAX_DEPTH} deep); split it"
            )

    def buffer(self, name: str) -> Buffer:
        """Return the buffer that a name stands for here."""
        if name not in self.scope:
            raise InvalidFunction(f"buffer {name[:80]!r}: not in scope; declare it around its use")
        return self.scope[name]

    def stmt(self, message: pb.Stmt, depth: int) -> Stmt:
        """Read one statement."""
        self.count(depth)
        span = _span_back(message.span)
        match message.WhichOneof("kind"):
            case "for_loop":
                return self._loop(message.for_loop, span, depth)
            case "store":
                store = message.store
                indices = tuple(self.expr(index, depth + 1) for index in store.indices)
                return Store(
                    self.buffer(store.buffer), indices, self.expr(store.value, depth + 1), span=span
                )
            case "if_then":
                return self._if(message.if_then, span, depth)
            case "block":
                stmts = tuple(self.stmt(inner, depth + 1) for inner in message.block.stmts)
                return Block(stmts, span=span)
            case "allocate":
                return self._allocate(message.allocate, span, depth)
            case "call":
                buffers = tuple(self.buffer(name) for name in message.call.buffers)
                return Call(message.call.callee, buffers, span=span)
            case "source":
                source = message.source
                language = _enum(Language, source.language)
                return Source(language, source.text, tuple(source.options), span=span)
            case _:
                raise InvalidFunction("statement: empty or of an unknown kind; update the farm")

    def _loop(self, message: pb.For, span: Span | None, depth: int) -> For:
        if message.kind not in _KINDS_BACK:
            raise InvalidFunction(
                f"loop {message.var[:80]}: unknown kind ({message.kind}); update the farm"
            )
        return For(
            Var(message.var),
            message.extent,
            self.stmt(message.body, depth + 1),
            _KINDS_BACK[message.kind],
            _annotations_back(message),
            span=span,
        )

    def _if(self, message: pb.If, span: Span | None, depth: int) -> If:
        otherwise = (
            self.stmt(message.else_body, depth + 1) if message.HasField("else_body") else None
        )
        return If(
            self.expr(message.condition, depth + 1),
            self.stmt(message.then_body, depth + 1),
            otherwise,
            span=span,
        )

    def _allocate(self, message: pb.Allocate, span: Span | None, depth: int) -> Allocate:
        buffer = _buffer_back(message.buffer)
        outer = self.scope.get(buffer.name)
        self.scope[buffer.name] = buffer
        body = self.stmt(message.body, depth + 1)
        if outer is None:
            del self.scope[buffer.name]
        else:
            self.scope[buffer.name] = outer
        return Allocate(buffer, body, span=span)

    def expr(self, message: pb.Expr, depth: int) -> Expr:
        """Read one expression."""
        self.count(depth)
        match message.WhichOneof("kind"):
            case "const":
                return _const_back(message.const)
            case "var":
                return Var(message.var)
            case "load":
                load = message.load
                indices = tuple(self.expr(index, depth + 1) for index in load.indices)
                return Load(self.buffer(load.buffer), indices)
            case "select":
                sides = (message.select.if_true, message.select.if_false)
                a, b = (self.expr(side, depth + 1) for side in sides)
                return Select(self.expr(message.select.condition, depth + 1), a, b)
            case "cast":
                return Cast(as_dtype(message.cast.dtype), self.expr(message.cast.value, depth + 1))
            case "math":
                function = _enum(MathOp, message.math.op)
                return Math(function, self.expr(message.math.value, depth + 1))
            case "binary":
                return Binary(
                    _enum(BinaryOp, message.binary.op), *self._sides(message.binary, depth)
                )
            case "compare":
                return Compare(
                    _enum(CompareOp, message.compare.op), *self._sides(message.compare, depth)
                )
            case _:
                raise InvalidFunction("expression: empty or of an unknown kind; update the farm")

    def _sides(self, message: pb.Binary | pb.Compare, depth: int) -> tuple[Expr, Expr]:
        return self.expr(message.a, depth + 1), self.expr(message.b, depth + 1)


def _const_back(message: pb.Const) -> Const:
    dtype: DType = as_dtype(message.dtype)
    field = (
        "float_value"
        if dtype.is_float
        else "uint_value"
        if dtype.kind is Kind.UINT
        else "int_value"
    )
    if message.WhichOneof("value") != field:
        raise InvalidFunction(f"constant: {dtype} without {field}; fill it")
    return const(getattr(message, field), dtype)


_Op = TypeVar("_Op", BinaryOp, CompareOp, MathOp, Language)


def _enum(kind: type[_Op], name: str) -> _Op:
    try:
        return kind(name)
    except ValueError:
        known = ", ".join(member.value for member in kind)
        raise InvalidFunction(f"operation: unknown ({name[:80]!r}); use one of {known}") from None
