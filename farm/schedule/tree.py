"""The tree of loops and blocks: finding places in it and replacing them.

Owns: a schedule's state and its navigation by name. Does not own: any rule.

Invariant: loop variables, blocks and buffers each have names that are unique in a state; nothing is changed in place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from farm.errors import ScheduleError
from farm.ir.affine import simplified
from farm.ir.buffer import Buffer, Scope
from farm.ir.expr import Expr, Var
from farm.ir.function import Function
from farm.ir.stmt import Block, For, Stmt, map_children
from farm.schedule.block import Leaf, substitute


class Place(NamedTuple):
    """A node and the way to it.

    Attributes
    ----------
    loops
        The loops around the node, outermost first.
    path
        The position among the children at each step from the root; compares as program order.
    """

    node: Stmt
    loops: tuple[For, ...]
    path: tuple[int, ...]


@dataclass(frozen=True)
class State:
    """What a schedule has made of a function so far.

    Attributes
    ----------
    function
        Name, parameters and flags; its body is the original one.
    body
        Loops, sequences and leaves.
    inner
        The buffers allocated inside, by name, at their full shapes.
    scopes
        The memory that each inner buffer is to lie in; GLOBAL if it is not here.
    """

    function: Function
    body: Stmt
    inner: Mapping[str, Buffer] = field(default_factory=dict)
    scopes: Mapping[str, Scope] = field(default_factory=dict)

    @cached_property
    def _every(self) -> tuple[Place, ...]:
        return _places(self.body)

    @cached_property
    def _leaves(self) -> tuple[Place, ...]:
        return tuple(place for place in self._every if isinstance(place.node, Leaf))

    def places(self) -> Sequence[Place]:
        """Return every node, parents first, in program order."""
        return self._every

    def leaves(self) -> Sequence[Place]:
        """Return the blocks in program order."""
        return self._leaves

    def leaf(self, name: str) -> tuple[Leaf, Place]:
        """Return a block by name."""
        for place in self.leaves():
            if isinstance(place.node, Leaf) and place.node.name == name:
                return place.node, place
        known = ", ".join(leaf.name for leaf in self.all_leaves())
        raise ScheduleError(f"block {name}: not in this function; it has {known}")

    def all_leaves(self) -> list[Leaf]:
        """Return the blocks alone."""
        return [place.node for place in self._leaves if isinstance(place.node, Leaf)]

    def loop(self, name: str) -> tuple[For, Place]:
        """Return a loop by the name of its variable."""
        for place in self.places():
            if isinstance(place.node, For) and place.node.var.name == name:
                return place.node, place
        raise ScheduleError(f"loop {name}: not there (any more); use get_loops for those that are")

    def writers(self, buffer: str) -> list[Leaf]:
        """Return the blocks that store to a buffer, in program order."""
        return [leaf for leaf in self.all_leaves() if leaf.buffer.name == buffer]

    def readers(self, buffer: str) -> list[Leaf]:
        """Return the blocks that load from a buffer, in program order."""
        return [leaf for leaf in self.all_leaves() if buffer in leaf.buffers_read()]

    def with_body(self, body: Stmt) -> State:
        """Return the state with another tree, tidied: no sequence in a sequence, none of one."""
        return replace(self, body=tidy(body))

    def names(self) -> set[str]:
        """Return all names of loops and buffers."""
        taken = {param.buffer.name for param in self.function.params} | set(self.inner)
        return taken | {p.node.var.name for p in self.places() if isinstance(p.node, For)}

    def fresh(self, wanted: str, *others: str) -> str:
        """Return `wanted`, with a number if it is taken in the function or among `others`."""
        return unique(wanted, self.names() | set(others))

    def fresh_block(self, wanted: str) -> str:
        """Return `wanted`, with a number if a block has that name."""
        return unique(wanted, {leaf.name for leaf in self.all_leaves()})


def unique(wanted: str, taken: set[str]) -> str:
    """Return `wanted`, or the first of ``wanted_1``, ``wanted_2``, … that is not taken."""
    name, number = wanted, 0
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    return name


def _places(root: Stmt) -> tuple[Place, ...]:
    found: list[Place] = []

    def visit(stmt: Stmt, loops: tuple[For, ...], path: tuple[int, ...]) -> None:
        found.append(Place(stmt, loops, path))
        if isinstance(stmt, For):
            visit(stmt.body, (*loops, stmt), (*path, 0))
        elif not isinstance(stmt, Leaf):
            for number, child in enumerate(stmt.children()):
                visit(child, loops, (*path, number))

    visit(root, (), ())
    return tuple(found)


def leaves_of(stmt: Stmt) -> list[Leaf]:
    """Return the blocks in a tree, in program order."""
    return [place.node for place in _places(stmt) if isinstance(place.node, Leaf)]


def loops_of(stmt: Stmt) -> list[For]:
    """Return the loops in a tree, outer ones first, in program order."""
    return [place.node for place in _places(stmt) if isinstance(place.node, For)]


def rewrite(stmt: Stmt, old: Stmt, new: Sequence[Stmt]) -> Stmt:
    """Return a tree with the node `old` (this very object) replaced by a sequence, maybe an empty one."""
    if stmt is old:
        return new[0] if len(new) == 1 else Block(tuple(new))
    return map_children(stmt, lambda child: rewrite(child, old, new))


def change_leaves(stmt: Stmt, change: Callable[[Leaf], Leaf]) -> Stmt:
    """Return a tree with each block changed."""
    if isinstance(stmt, Leaf):
        return change(stmt)
    return map_children(stmt, lambda child: change_leaves(child, change))


def rebind(stmt: Stmt, values: Mapping[Var, Expr], extents: Mapping[Var, int]) -> Stmt:
    """Return a tree with loop variables replaced in all that blocks know of them.

    Parameters
    ----------
    extents
        Of all loops whose variables may occur in the result.
    """

    def new(exprs: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(simplified(substitute(each, values), extents) for each in exprs)

    def change(leaf: Leaf) -> Leaf:
        old = (leaf.bindings, leaf.guards, leaf.conditions)
        bindings, guards, conditions = found = tuple(map(new, old))
        if found == old:  # what is known of a block is known by its identity
            return leaf
        return replace(leaf, bindings=bindings, guards=guards, conditions=conditions)

    return change_leaves(stmt, change)


def tidy(stmt: Stmt) -> Stmt:
    """Return a tree without empty loops, sequences inside sequences, or sequences of one."""
    match stmt:
        case Block(stmts):
            parts: list[Stmt] = []
            for part in map(tidy, stmts):
                parts.extend(part.stmts if isinstance(part, Block) else [part])
            if len(parts) == 1:
                return parts[0]
            same = len(parts) == len(stmts) and all(map(operator.is_, parts, stmts))
            return stmt if same else replace(stmt, stmts=tuple(parts))
        case For(_, _, body):
            inner = tidy(body)
            if isinstance(inner, Block) and not inner.stmts:
                return inner
            return stmt if inner is body else replace(stmt, body=inner)
        case _:
            return stmt


def extents_of(loops: Sequence[For]) -> dict[Var, int]:
    """Return the extent of each loop's variable."""
    return {loop.var: loop.extent for loop in loops}


def nest(loops: Sequence[For], body: Stmt) -> Stmt:
    """Return loops like the given ones, outermost first, around a body."""
    for loop in reversed(loops):
        body = replace(loop, body=body)
    return body
