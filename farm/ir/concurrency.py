"""Rules of parallel, vectorized and unrolled loops.

Owns: what such loops may hold, and conflicts between iterations that are certain. Does not own: proof that there are
none (`farm.schedule` gives a loop its kind only with one), nor finding them in a run (`farm.ir.conflicts`).

Invariant: nothing correct is refused for a conflict: two iterations really store to one element.
"""

from __future__ import annotations

from collections.abc import Iterator

from farm.ir.expr import Expr, Var, walk
from farm.ir.stmt import Allocate, Call, For, If, LoopKind, Stmt, Store

MAX_LANES = 1024
MAX_UNROLLED = 1024

_NOT_INSIDE = {
    LoopKind.VECTORIZED: ("a call", "a buffer", "a parallel loop", "a vectorized loop"),
    LoopKind.PARALLEL: ("a call", "a parallel loop"),
}


def problems(loop: For) -> Iterator[str]:
    """Yield what is wrong with a loop for its kind, in words that follow the loop's name."""
    if loop.kind is LoopKind.SERIAL:
        return
    most = {LoopKind.VECTORIZED: MAX_LANES, LoopKind.UNROLLED: MAX_UNROLLED}.get(loop.kind)
    if most is not None and loop.extent > most:
        yield f"is {loop.kind.value} with extent {loop.extent}; use at most {most}: split it first"
    forbidden = _NOT_INSIDE.get(loop.kind, ())
    for inner in _below(loop.body):
        if (what := _kind_of(inner)) in forbidden:
            yield f"is {loop.kind.value} but has {what} inside; move it out, or make the loop serial"
    if loop.kind is not LoopKind.UNROLLED and loop.extent > 1:
        for store in _same_element(loop.body, loop.var, frozenset()):
            yield (
                f"is {loop.kind.value} but each iteration stores to the same elements of {store.buffer.name}; "
                f"make it serial, or give each iteration its own elements"
            )


def _below(stmt: Stmt) -> Iterator[Stmt]:
    yield stmt
    for child in stmt.children():
        yield from _below(child)


def _kind_of(stmt: Stmt) -> str | None:
    match stmt:
        case Call():
            return "a call"
        case Allocate():
            return "a buffer"
        case For(kind=LoopKind.PARALLEL | LoopKind.VECTORIZED as kind):
            return f"a {kind.value} loop"
        case _:
            return None


def _same_element(stmt: Stmt, var: Var, private: frozenset[str]) -> Iterator[Store]:
    """Yield the stores that every iteration of `var` makes, each to the same elements."""
    match stmt:
        case Store(buffer, indices):
            if buffer.name not in private and not any(_mentions(i, var) for i in indices):
                yield stmt
        case If(condition) if _mentions(condition, var):
            return  # one iteration alone may get there
        case Allocate(buffer, body):
            yield from _same_element(body, var, private | {buffer.name})
        case _:
            for child in stmt.children():
                yield from _same_element(child, var, private)


def _mentions(expr: Expr, var: Var) -> bool:
    return any(node == var for node in walk(expr))
