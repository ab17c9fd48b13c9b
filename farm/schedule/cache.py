"""cache_read, cache_write, cache_inplace, set_scope: copies of operands and results in other memory.

Owns: the copying blocks. Does not own: computing them at inner loops (`move`), or their layout (`layout`).

Invariant: a copy is read only after, and only where, it equals its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from farm.ir.affine import constant
from farm.ir.buffer import Buffer, Scope
from farm.ir.expr import Var
from farm.ir.stmt import Block, LoopKind, Stmt
from farm.schedule.block import Leaf, replace_buffer
from farm.schedule.dependence import accesses
from farm.schedule.legality import below
from farm.schedule.move import inside
from farm.schedule.placement import copy_block, loops_around, shared_guards
from farm.schedule.primitive import (
    BlockRV,
    Result,
    choice,
    integer,
    primitive,
    refuse,
    single_branch,
)
from farm.schedule.regions import Span, box, covers, written_box
from farm.schedule.tree import Place, State, rewrite

SCOPES = tuple(scope.value for scope in Scope)


def new_buffer(
    state: State, like: Buffer, wanted: str, scope: str, shape: tuple[int, ...] | None = None
) -> tuple[State, Buffer]:
    """Return a state with one more inner buffer, like another."""
    name = state.fresh(wanted)
    buffer = replace(like, name=name, shape=like.shape if shape is None else shape)
    scopes = dict(state.scopes)
    if Scope(scope) is not Scope.GLOBAL:
        scopes[name] = Scope(scope)
    return replace(state, inner={**state.inner, name: buffer}, scopes=scopes), buffer


def whole(state: State, leaf: Leaf) -> Stmt:
    """Return a block inside new loops over all its iterations."""
    return loops_around(state, leaf, {}, unit=True)


def top_of(state: State, place: Place) -> Stmt:
    """Return the outermost statement around a place: a part of the function's own sequence."""
    node = state.body
    for step in place.path:
        if not isinstance(node, Block):
            break
        node = node.stmts[step]
    return node


def read_buffer(what: str, where: str, leaf: Leaf, index: int) -> Buffer:
    """Return the buffer that a block reads as number `index`, in order of first appearance."""
    names = list(dict.fromkeys(load.buffer for load in leaf.reads()))
    if not names:
        raise refuse(what, where, "it reads no buffer")
    return names[integer(what, f"{where}, read_buffer_index", index, 0, len(names) - 1)]


@primitive()
def cache_read(
    state: State, block: str, read_buffer_index: int, storage_scope: str = "global"
) -> Result:
    """Let a block read a copy; see `Schedule.cache_read`."""
    what, where = "cache_read", f"block {block}"
    scope = choice(what, f"{where}, storage_scope", storage_scope, SCOPES)
    leaf, place = state.leaf(block)
    source = read_buffer(what, where, leaf, read_buffer_index)
    top = top_of(state, place)
    at = next(p for p in state.places() if p.node is top)
    for writer in state.leaves():
        node = writer.node
        assert isinstance(node, Leaf)
        if node.buffer.name == source.name and (inside(writer, at) or writer.path > at.path):
            raise refuse(
                what,
                where,
                f"{source.name} is stored by {node.name} in the same loops or later, when the copy is made already",
            )
    if source.name in state.inner and not any(
        stores_all(state, writer) for writer in state.writers(source.name)
    ):
        raise refuse(
            what, where, f"{source.name} is not provably all stored, so it cannot be copied"
        )
    made, buffer = new_buffer(state, source, f"{source.name}_{scope}", scope)
    copy = copy_block(made.fresh_block(buffer.name), source, buffer)
    new = replace(leaf, value=replace_buffer(leaf.value, source.name, buffer))
    body = rewrite(made.body, leaf, [new])
    made = made.with_body(body)
    top = top_of(made, made.leaf(block)[1])
    made = made.with_body(rewrite(made.body, top, [whole(made, copy), top]))
    return made, [BlockRV(copy.name)]


@primitive()
def cache_write(
    state: State, block: str, write_buffer_index: int = 0, storage_scope: str = "global"
) -> Result:
    """Let a block write to other memory, from which its result is copied; see `Schedule.cache_write`."""
    what, where = "cache_write", f"block {block}"
    scope = choice(what, f"{where}, storage_scope", storage_scope, SCOPES)
    integer(what, f"{where}, write_buffer_index", write_buffer_index, 0, 0)
    leaf, place = state.leaf(block)
    target = leaf.buffer
    alone_and_whole(what, where, state, leaf, place)
    made, buffer = new_buffer(state, target, f"{target.name}_{scope}", scope)
    copy = copy_block(made.fresh_block(buffer.name), buffer, target)
    made = made.with_body(rewrite(made.body, leaf, [replace(leaf, buffer=buffer)]))
    return after_nest(made, block, copy), [BlockRV(copy.name)]


def alone_and_whole(what: str, where: str, state: State, leaf: Leaf, place: Place) -> None:
    """Refuse unless a block alone stores all of its buffer, for readers outside its own loops."""
    name = leaf.buffer.name
    others = [x.name for x in state.writers(name) if x.name != leaf.name]
    if others:
        raise refuse(what, where, f"{name} is also stored by {', '.join(others)}; do this before")
    if leaf.reduction is not None and leaf.reduction.init is None:
        raise refuse(what, where, f"it updates what {name} holds; use cache_inplace")
    nest_at = single_branch(state, place)
    for reader in state.leaves():
        node = reader.node
        assert isinstance(node, Leaf)
        reads_it = node is not leaf and name in node.buffers_read()
        if reads_it and (inside(reader, nest_at) or reader.path < place.path):
            raise refuse(what, where, f"{node.name} reads {name} before it is all there")
    if nest_at.loops:
        raise refuse(
            what, where, f"other blocks share its loop {nest_at.loops[-1].var.name}; do this before"
        )
    if not stores_all(state, leaf):
        raise refuse(what, where, f"it does not provably store all of {name}")


def stores_all(state: State, leaf: Leaf) -> bool:
    """Tell whether a block provably stores every element of its buffer."""
    own = [a for a in accesses(state.leaves()) if a.leaf.name == leaf.name and a.is_write]
    filled = written_box(own[0], ())
    full = tuple(Span(constant(0), size) for size in leaf.buffer.shape)
    return filled is not None and covers(filled, full, leaf.buffer.shape)


def after_nest(state: State, block: str, copy: Leaf) -> State:
    """Return a state with a block, over all its iterations, after the loops of another."""
    _, place = state.leaf(block)
    nest_at = single_branch(state, place).node
    return state.with_body(rewrite(state.body, nest_at, [nest_at, whole(state, copy)]))


@primitive()
def cache_inplace(state: State, block: str, loop: str, storage_scope: str = "register") -> Result:
    """Let a block update a copy during one iteration of a loop; see `Schedule.cache_inplace`."""
    what, where = "cache_inplace", f"block {block} at loop {loop}"
    scope = choice(what, f"{where}, storage_scope", storage_scope, SCOPES)
    leaf, place = state.leaf(block)
    node, at = state.loop(loop)
    if not inside(place, at):
        raise refuse(what, where, f"{loop} is not around {block}; use one of its get_loops")
    if any(x.kind is LoopKind.VECTORIZED for x in (*at.loops, node)):
        raise refuse(what, where, "the loop is vectorized; do this before")
    if leaf.reduction is None or leaf.reduction.init is not None:
        raise refuse(
            what, where, f"{block} does not update; use cache_write, or decompose_reduction before"
        )
    target = leaf.buffer
    for other in below(state, at):
        assert isinstance(other.node, Leaf)
        names = {other.node.buffer.name} | other.node.buffers_read()
        if other.node is not leaf and target.name in names:
            raise refuse(what, where, f"{other.node.name} uses {target.name} in that loop, too")
    if any(load.buffer.name == target.name for load in leaf.reads()):
        raise refuse(what, where, f"{block} reads other elements of {target.name}")
    own = [a for a in accesses([place]) if a.buffer == target.name]
    fixed = [*(x.var for x in at.loops), node.var]
    part = box(own, fixed, target.shape)
    filled = written_box(own[0], fixed)
    if filled is None or not covers(filled, part, target.shape):
        raise refuse(
            what, where, f"which part of {target.name} an iteration updates is not provable"
        )
    made, buffer = new_buffer(state, target, f"{target.name}_{scope}", scope)
    fill = copy_block(made.fresh_block(f"{buffer.name}_load"), target, buffer)
    back = copy_block(made.fresh_block(buffer.name), buffer, target)
    wanted: Mapping[Var, Span] = {x.var: span for x, span in zip(fill.iters, part, strict=True)}
    made = made.with_body(rewrite(made.body, leaf, [replace(leaf, buffer=buffer)]))
    inner = made.loop(loop)[0].body
    outer, tests = [*at.loops, node], shared_guards([leaf], fixed)
    first = loops_around(made, fill, wanted, unit=False, outer=outer, tests=tests)
    made = made.with_body(rewrite(made.body, inner, [first, inner]))
    node, _ = made.loop(loop)
    last = loops_around(made, back, wanted, unit=False, outer=outer, tests=tests)
    made = made.with_body(rewrite(made.body, node.body, [node.body, last]))
    return made, [BlockRV(fill.name), BlockRV(back.name)]


@primitive()
def set_scope(state: State, block: str, buffer_index: int, storage_scope: str) -> Result:
    """Put what a block stores into other memory; see `Schedule.set_scope`."""
    what, where = "set_scope", f"block {block}"
    scope = choice(what, f"{where}, storage_scope", storage_scope, SCOPES)
    integer(what, f"{where}, buffer_index", buffer_index, 0, 0)
    leaf, _ = state.leaf(block)
    if leaf.buffer.name not in state.inner:
        raise refuse(what, where, f"{leaf.buffer.name} is a parameter; use cache_write")
    return replace(state, scopes={**state.scopes, leaf.buffer.name: Scope(scope)}), []
