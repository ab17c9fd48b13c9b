"""The verifier: what a function must fulfil before anything is done with it.

Owns: every rule of the IR but the typing of single nodes (their constructors). Does not own: what a target can do
(`farm.codegen`), or rules between functions (`farm.building.references`).

Invariant: a function that passes never reads or writes outside a buffer, whatever its inputs hold; what a body in
another language does is its author's to answer for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from farm.core.recent import Recent
from farm.errors import InvalidFunction
from farm.ir.affine import affine_interval
from farm.ir.bounds import Facts, Interval, assume, interval
from farm.ir.buffer import Buffer, Scope, check_name
from farm.ir.concurrency import problems
from farm.ir.dtype import DType
from farm.ir.expr import Expr, Load, Select, Var
from farm.ir.function import Function, Role
from farm.ir.printer import print_expr
from farm.ir.source import Source
from farm.ir.stmt import Allocate, Block, Call, For, If, Stmt, Store

MAX_PARAMS = 64
MAX_DEPTH = (
    48  # a node is two messages on the wire, and protobuf reads at most 100 inside each other
)
MAX_NODES = 200_000
MAX_EXTENT = DType.INT64.max
MAX_TEXT = 300  # letters of an expression in a message


def verify(function: Function) -> None:
    """Check every rule of the IR; at once for a function that was checked lately, which cannot have changed.

    Raises
    ------
    InvalidFunction
        The message names the function, the place in the user's source if known, and the rule.
    """
    if _verified.get(id(function)) is None:
        _check(function)
        _verified.keep(id(function), function)


_verified: Recent[int, Function] = Recent(64)
"""Functions that passed, by identity."""


def _check(function: Function) -> None:
    if not 1 <= len(function.params) <= MAX_PARAMS:
        raise InvalidFunction(
            f"function {function.name}: {len(function.params)} parameters; use 1 to {MAX_PARAMS}"
        )
    if all(param.role is Role.INPUT for param in function.params):
        raise InvalidFunction(
            f"function {function.name}: no output parameter; list a computed buffer"
        )
    check = _Check(function)
    for param in function.params:
        if param.buffer.scope is not Scope.GLOBAL:
            raise InvalidFunction(
                f"function {function.name}: parameter {param.buffer.name} has scope "
                f"{param.buffer.scope.value}; only inner buffers have one"
            )
        check.declare(param.buffer.name)
        check.buffers[param.buffer.name] = param.buffer
        if param.role is not Role.OUTPUT:
            check.written.add(param.buffer.name)
    check.stmt(function.body, {}, 0)
    for param in function.params:
        if param.buffer.name not in check.written:
            raise InvalidFunction(
                f"function {function.name}: output {param.buffer.name} is never written; drop it or store to it"
            )


@dataclass
class _Check:
    """The walk over one function: names in scope and buffers written so far, in program order."""

    function: Function
    buffers: dict[str, Buffer] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    nodes: int = 0
    at: Stmt | None = None

    def fail(self, problem: str) -> InvalidFunction:
        """Make the error for a broken rule at the current statement."""
        where = f" at {self.at.span}" if self.at is not None and self.at.span else ""
        return InvalidFunction(f"function {self.function.name}{where}: {problem}")

    def declare(self, name: str) -> None:
        """Take a name for a buffer or variable, once in a function."""
        check_name("name", name)
        if name in self.names:
            raise self.fail(f"name {name} is declared twice; rename one")
        self.names.add(name)

    def count(self, depth: int) -> None:
        """Count one node against the limits."""
        self.nodes += 1
        if depth > MAX_DEPTH or self.nodes > MAX_NODES:
            raise self.fail(
                f"too large (over {MAX_NODES} nodes or nested over {MAX_DEPTH} deep); split it"
            )

    def stmt(self, stmt: Stmt, facts: Facts, depth: int) -> None:
        """Check one statement and all below it."""
        self.at = stmt
        self.count(depth)
        match stmt:
            case For(var, extent, body):
                self.loop(stmt)
                self.stmt(body, {**facts, var: Interval(0, extent - 1)}, depth + 1)
            case Store():
                self.store(stmt, facts, depth)
            case If():
                self.if_then(stmt, facts, depth)
            case Block(stmts):
                for inner in stmts:
                    self.stmt(inner, facts, depth + 1)
            case Allocate(buffer, body):
                self.declare(buffer.name)
                self.buffers[buffer.name] = buffer
                self.stmt(body, facts, depth + 1)
                del self.buffers[buffer.name]
            case Source():
                if depth > 0:
                    raise self.fail("source in another language is only part of the body; call it")
                self.written.update(self.buffers)
            case Call():
                self.call(stmt)
            case _:
                raise self.fail(f"unknown statement {type(stmt).__name__}")

    def loop(self, loop: For) -> None:
        """Check a loop but for its body: extent, name, kind."""
        name = loop.var.name
        if not 1 <= loop.extent <= MAX_EXTENT:
            raise self.fail(f"loop {name}: extent {loop.extent}; use 1 to {MAX_EXTENT}")
        self.declare(name)
        for problem in problems(loop):
            raise self.fail(f"loop {name} {problem}")

    def store(self, stmt: Store, facts: Facts, depth: int) -> None:
        """Check a store: scope, role, type, bounds."""
        self.access(stmt.buffer, stmt.indices, facts, depth)
        self.expr(stmt.value, facts, depth + 1)
        if stmt.value.dtype is not stmt.buffer.dtype:
            raise self.fail(
                f"{stmt.buffer.name} holds {stmt.buffer.dtype} but {stmt.value.dtype} is stored; "
                f"use .astype('{stmt.buffer.dtype}')"
            )
        self.write(stmt.buffer)

    def write(self, buffer: Buffer) -> None:
        """Note that a buffer is written; inputs must not be."""
        roles = {param.buffer.name: param.role for param in self.function.params}
        if roles.get(buffer.name) is Role.INPUT:
            raise self.fail(f"input {buffer.name} is written; make it an inout or store elsewhere")
        self.written.add(buffer.name)

    def if_then(self, stmt: If, facts: Facts, depth: int) -> None:
        """Check both branches under what the condition tells."""
        self.expr(stmt.condition, facts, depth + 1)
        if stmt.condition.dtype is not DType.BOOL:
            raise self.fail(f"if: condition is {stmt.condition.dtype}; compare something")
        self.stmt(stmt.then_body, assume(stmt.condition, facts), depth + 1)
        if stmt.else_body is not None:
            self.stmt(stmt.else_body, assume(stmt.condition, facts, holds=False), depth + 1)

    def call(self, stmt: Call) -> None:
        """Check a call: scope, no buffer twice (callees may assume that arguments do not overlap)."""
        check_name("callee", stmt.callee)
        names = [buffer.name for buffer in stmt.buffers]
        for buffer in stmt.buffers:
            self.in_scope(buffer)
        if len(set(names)) != len(names):
            raise self.fail(
                f"call {stmt.callee}: a buffer is passed twice ({', '.join(names)}); copy it first"
            )
        inputs = {param.buffer.name for param in self.function.params if param.role is Role.INPUT}
        self.written.update(name for name in names if name not in inputs)

    def in_scope(self, buffer: Buffer) -> None:
        """Refuse a buffer that is not declared around here, or differs from its declaration."""
        if self.buffers.get(buffer.name) != buffer:
            raise self.fail(
                f"buffer {buffer.name} is not in scope; list it in te.function's buffers"
            )

    def access(self, buffer: Buffer, indices: tuple[Expr, ...], facts: Facts, depth: int) -> None:
        """Check one element access: scope, rank, index type, bounds."""
        self.in_scope(buffer)
        if len(indices) != len(buffer.shape):
            raise self.fail(
                f"{buffer.name} has rank {len(buffer.shape)} but {len(indices)} indices"
            )
        for axis, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            self.expr(index, facts, depth + 1)
            if index.dtype is not DType.INT64:
                raise self.fail(
                    f"{buffer.name}: index {axis} is {index.dtype}; use .astype('int64')"
                )
            found, inside = interval(index, facts), Interval(0, extent - 1)
            if not found.within(inside):
                found = affine_interval(index, facts)
            if found.low <= found.high and not found.within(inside):
                raise self.fail(
                    f"{buffer.name}: index {axis} is {_short(index)}, from {found.low} to {found.high}, "
                    f"outside 0 to {extent - 1}; guard it with te.where, or clamp it"
                )

    def expr(self, expr: Expr, facts: Facts, depth: int) -> None:
        """Check one expression and all below it."""
        self.count(depth)
        match expr:
            case Var():
                if expr not in facts:
                    raise self.fail(f"variable {expr.name[:80]} is used outside its loop")
            case Load(buffer, indices):
                self.access(buffer, indices, facts, depth)
                if buffer.name not in self.written:
                    raise self.fail(f"{buffer.name} is read before anything is written to it")
            case Select(condition, a, b):
                self.expr(condition, facts, depth + 1)
                self.expr(a, assume(condition, facts), depth + 1)
                self.expr(b, assume(condition, facts, holds=False), depth + 1)
            case _:
                self.all(expr.children(), facts, depth + 1)

    def all(self, exprs: Iterable[Expr], facts: Facts, depth: int) -> None:
        """Check several expressions."""
        for expr in exprs:
            self.expr(expr, facts, depth)


def _short(expr: Expr) -> str:
    text = print_expr(expr)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
