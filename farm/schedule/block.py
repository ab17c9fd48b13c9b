"""Blocks: the statements that a schedule moves, apart from the loops around them.

Owns: the node that stands for one computation. Does not own: the tree around it (`tree`), or how functions become
blocks (`lift`) and back (`lower`).

Invariant: a block's definition speaks of its own iterators only; loops reach it through its bindings alone. So loops
can be split, fused, replaced and moved without touching what is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from farm.ir.buffer import Buffer
from farm.ir.expr import Binary, BinaryOp, Expr, Load, Var, map_children, walk
from farm.ir.stmt import Stmt


@dataclass(frozen=True, slots=True)
class Iter:
    """An iterator of a block, in ``[0, extent)``.

    Attributes
    ----------
    reduce
        Whether the block combines over it. All others are spatial: each value computes its own element.
    """

    var: Var
    extent: int
    reduce: bool = False


@dataclass(frozen=True, slots=True)
class Reduction:
    """How a block combines.

    Attributes
    ----------
    init
        What an element starts from, stored before the first reduction step; None if another block stores it.
    """

    op: BinaryOp
    init: Expr | None


@dataclass(frozen=True, slots=True)
class Leaf(Stmt):
    """One computation: ``buffer[indices] = value``, or ``buffer[indices] = op(buffer[indices], value)``.

    Attributes
    ----------
    iters
        The iterators in which indices, value and initial value are written.
    bindings
        One expression of loop variables for each iterator.
    guards
        Conditions on loop variables that keep bindings inside their extents.
    conditions
        Conditions on loop variables that the function itself had.
    """

    name: str
    iters: tuple[Iter, ...]
    bindings: tuple[Expr, ...]
    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    reduction: Reduction | None = None
    guards: tuple[Expr, ...] = ()
    conditions: tuple[Expr, ...] = ()

    @property
    def bound(self) -> dict[Var, Expr]:
        """What each iterator is, in loop variables."""
        return {each.var: value for each, value in zip(self.iters, self.bindings, strict=True)}

    def at(self) -> tuple[Expr, ...]:
        """Return the indices that are stored to, in loop variables."""
        bound = self.bound
        return tuple(substitute(index, bound) for index in self.indices)

    def reads(self) -> list[Load]:
        """Return the loads of the value, in order, in iterators."""
        return [node for node in walk(self.value) if isinstance(node, Load)]

    def vars_of(self, *, reduce: bool) -> frozenset[Var]:
        """Return the loop variables that the reduction (or spatial) iterators are bound to."""
        return frozenset(
            var
            for each, value in zip(self.iters, self.bindings, strict=True)
            if each.reduce is reduce
            for var in variables(value)
        )

    def buffers_read(self) -> set[str]:
        """Return the names of buffers that it reads; its own if it updates without an initial value."""
        names = {load.buffer.name for load in self.reads()}
        if self.reduction is not None and self.reduction.init is None:
            names.add(self.buffer.name)
        return names


def substitute(expr: Expr, values: Mapping[Var, Expr]) -> Expr:
    """Return an expression with variables replaced, all at once."""

    def change(part: Expr) -> Expr:
        return values.get(part, part) if isinstance(part, Var) else map_children(part, change)

    return change(expr) if values else expr


def variables(expr: Expr) -> Iterator[Var]:
    """Yield the variables of an expression, with repeats."""
    return (node for node in walk(expr) if isinstance(node, Var))


def update_value(leaf: Leaf) -> Expr:
    """Return what a block stores, in its iterators."""
    if leaf.reduction is None:
        return leaf.value
    return Binary(leaf.reduction.op, Load(leaf.buffer, leaf.indices), leaf.value)


def replace_buffer(expr: Expr, old: str, new: Buffer) -> Expr:
    """Return an expression that loads from `new` wherever it loaded from the buffer named `old`."""
    if isinstance(expr, Load) and expr.buffer.name == old:
        return Load(new, tuple(replace_buffer(index, old, new) for index in expr.indices))
    return map_children(expr, lambda child: replace_buffer(child, old, new))
