"""Statements: loops, stores and calls.

Owns: the node types, and walking over them. Does not own: rules (`farm.ir.verifier`) or meaning
(`farm.ir.interpreter`).

Invariant: nodes are immutable; spans never count in comparisons.
"""

from __future__ import annotations

import enum
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from farm.errors import InvalidFunction
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


class LoopKind(enum.Enum):
    """How a code generator should run a loop.

    No kind changes a result: iterations of parallel and vectorized loops depend on none of the others, so that any
    order, and any interleaving of their statements, gives what the serial loop gives.
    """

    SERIAL = "serial"
    PARALLEL = "parallel"  # iterations may run on several threads
    VECTORIZED = "vectorized"  # iterations are the lanes of vectors
    UNROLLED = "unrolled"  # the body is repeated, one copy an iteration


Annotations = tuple[tuple[str, int | str], ...]

MAX_ANNOTATIONS = 16
ANNOTATION_KEY = re.compile(r"[a-z][a-z0-9_.]{0,63}")
MAX_ANNOTATION_TEXT = 256


@dataclass(frozen=True, slots=True)
class For(Stmt):
    """``for var in [0, extent): body``.

    Attributes
    ----------
    annotations
        Hints as (key, value) pairs, each key once; a code generator ignores what it does not know.
    """

    var: Var
    extent: int
    body: Stmt
    kind: LoopKind = LoopKind.SERIAL
    annotations: Annotations = ()

    def __post_init__(self) -> None:
        if self.annotations:
            _check_annotations(self.var.name, self.annotations)

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


def _check_annotations(loop: str, annotations: Annotations) -> None:
    keys = [key for key, _ in annotations]
    for key, value in annotations:
        if not ANNOTATION_KEY.fullmatch(key) or keys.count(key) > 1:
            raise InvalidFunction(
                f"loop {loop[:80]}: annotation {key[:80]!r}; use each key once, of a-z, 0-9, _ and ."
            )
        fits = (
            len(value) <= MAX_ANNOTATION_TEXT
            if isinstance(value, str)
            else not isinstance(value, bool) and abs(value) < 1 << 63
        )
        if not fits:
            raise InvalidFunction(
                f"loop {loop[:80]}: annotation {key} is {str(value)[:80]!r}; use an integer of 64 bits or a text of "
                f"at most {MAX_ANNOTATION_TEXT} letters"
            )
    if len(keys) > MAX_ANNOTATIONS:
        raise InvalidFunction(
            f"loop {loop[:80]}: {len(keys)} annotations; use at most {MAX_ANNOTATIONS}"
        )


def walk(stmt: Stmt) -> Iterator[Stmt]:
    """Yield `stmt` and everything below it, parents first, in order."""
    yield stmt
    for child in stmt.children():
        yield from walk(child)


def nests(stmt: Stmt) -> list[Stmt]:
    """Return the statements in order that allocations and blocks hold: in a function's body, its loop nests."""
    match stmt:
        case Allocate(_, body):
            return nests(body)
        case Block(stmts):
            return [nest for inner in stmts for nest in nests(inner)]
        case _:
            return [stmt]


def map_children(stmt: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """Return `stmt` with each direct sub-statement replaced by what `change` makes of it; itself if nothing changed."""
    match stmt:
        case For(_, _, body) | Allocate(_, body):
            new = change(body)
            return stmt if new is body else replace(stmt, body=new)
        case If(_, then_body, else_body):
            then = change(then_body)
            otherwise = None if else_body is None else change(else_body)
            if then is then_body and otherwise is else_body:
                return stmt
            return replace(stmt, then_body=then, else_body=otherwise)
        case Block(stmts):
            parts = tuple(map(change, stmts))
            if all(map(operator.is_, parts, stmts)):
                return stmt
            return replace(stmt, stmts=parts)
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
