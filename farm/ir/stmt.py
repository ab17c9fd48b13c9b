"""Statements: loops, stores and calls.

Owns: the node types, and walking over them. Does not own: rules (`farm.ir.verifier`) or meaning
(`farm.ir.interpreter`).

Invariant: nodes are immutable; spans never count in comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from farm.ir.buffer import Buffer
from farm.ir.expr import Expr, Var


@dataclass(frozen=True, slots=True)
class Span:
    """Where in the user's source a node was made."""

    file: str
    line: int

    def __str__(self) -> str:
        """Return ``file:line``."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Stmt:
    """Base of all statements. Spans never count in comparisons or digests."""

    span: Span | None = field(default=None, compare=False, kw_only=True)

    def children(self) -> tuple[Stmt, ...]:
        """Return the direct sub-statements in order."""
        return ()


@dataclass(frozen=True, slots=True)
class For(Stmt):
    """``for var in [0, extent): body``."""

    var: Var
    extent: int
    body: Stmt

    def children(self) -> tuple[Stmt, ...]:
        """Return the body."""
        return (self.body,)


@dataclass(frozen=True, slots=True)
class Store(Stmt):
    """``buffer[indices] = value``."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class If(Stmt):
    """Run one of two statements."""

    condition: Expr
    then_body: Stmt
    else_body: Stmt | None = None

    def children(self) -> tuple[Stmt, ...]:
        """Return the branches that exist."""
        return (self.then_body,) if self.else_body is None else (self.then_body, self.else_body)


@dataclass(frozen=True, slots=True)
class Block(Stmt):
    """Statements in order."""

    stmts: tuple[Stmt, ...]

    def children(self) -> tuple[Stmt, ...]:
        """Return the statements."""
        return self.stmts


@dataclass(frozen=True, slots=True)
class Allocate(Stmt):
    """A buffer that lives during `body`; its content starts undefined."""

    buffer: Buffer
    body: Stmt

    def children(self) -> tuple[Stmt, ...]:
        """Return the body."""
        return (self.body,)


@dataclass(frozen=True, slots=True)
class Call(Stmt):
    """Call another function with whole buffers, in the order of its parameters."""

    callee: str
    buffers: tuple[Buffer, ...]


def walk(stmt: Stmt) -> Iterator[Stmt]:
    """Yield `stmt` and everything below it, parents first, in order."""
    yield stmt
    for child in stmt.children():
        yield from walk(child)


def map_children(stmt: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """Return `stmt` with each direct sub-statement replaced by what `change` makes of it."""
    match stmt:
        case For(_, _, body) | Allocate(_, body):
            return replace(stmt, body=change(body))
        case If(_, then_body, else_body):
            otherwise = None if else_body is None else change(else_body)
            return replace(stmt, then_body=change(then_body), else_body=otherwise)
        case Block(stmts):
            return replace(stmt, stmts=tuple(map(change, stmts)))
        case _:
            return stmt


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """Return the expressions that stand directly in `stmt`."""
    match stmt:
        case Store():
            return (*stmt.indices, stmt.value)
        case If():
            return (stmt.condition,)
        case _:
            return ()
