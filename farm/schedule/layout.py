"""transform_layout: inner buffers with their elements in another order.

Owns: rewriting the buffer and everything that touches it. Does not own: the map itself (`index_map`).

Invariant: each element is at one new place; parameters keep their layout, since callers see it.
"""

from __future__ import annotations

from dataclasses import replace

from farm.errors import InvalidFunction, ScheduleError
from farm.ir.affine import simplified
from farm.ir.buffer import Buffer
from farm.ir.expr import Expr, Load, Var, map_children
from farm.schedule.block import Iter, Leaf, substitute
from farm.schedule.cache import read_buffer, whole
from farm.schedule.index_map import IndexMap, index_map
from farm.schedule.placement import plain_iters
from farm.schedule.primitive import Result, integer, primitive, refuse, single_branch
from farm.schedule.tree import State, change_leaves, rewrite


@primitive()
def transform_layout(state: State, block: str, buffer: list[object], index_map: str) -> Result:
    """Store an inner buffer's elements in another order; see `Schedule.transform_layout`."""
    what, where = "transform_layout", f"block {block}"
    leaf, _ = state.leaf(block)
    old = named_buffer(what, where, leaf, buffer)
    if old.name not in state.inner:
        raise refuse(
            what,
            where,
            f"{old.name} is a parameter, whose layout callers see; use cache_read or cache_write",
        )
    where = f"block {block}, buffer {old.name}"
    try:
        layout = _read_map(index_map, old)
        new = replace(old, shape=layout.shape)
    except (ScheduleError, InvalidFunction) as error:
        raise refuse(what, where, error.message) from error
    writers = [x.name for x in state.writers(old.name)]
    body = change_leaves(state.body, lambda x: _moved(x, new, layout))
    made = replace(state, inner={**state.inner, old.name: new}).with_body(body)
    if len(writers) == 1:
        made = _over_new_shape(made, state.leaf(writers[0])[0], new, layout)
    return made, []


def _read_map(text: object, old: Buffer) -> IndexMap:
    if not isinstance(text, str):
        raise ScheduleError(f"index map {text!r}: no text; use 'lambda i, j: (j, i)'")
    return index_map(text, old.shape)


def named_buffer(what: str, where: str, leaf: Leaf, buffer: list[object]) -> Buffer:
    """Return the buffer that ("read" or "write", number) means."""
    match buffer:
        case ["read" | "write" as which, int() as number]:
            if which == "read":
                return read_buffer(what, where, leaf, number)
            integer(what, f"{where}, buffer", number, 0, 0)
            return leaf.buffer
        case _:
            raise refuse(what, where, f"buffer {buffer!r}; use ('read', 0) or ('write', 0)")


def _moved(leaf: Leaf, new: Buffer, layout: IndexMap) -> Leaf:
    """Return a block that finds the buffer's elements at their new places."""
    extents = {each.var: each.extent for each in leaf.iters}

    def place(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(simplified(index, extents) for index in layout.apply(indices))

    def change(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.buffer.name == new.name:
            return Load(new, place(tuple(map(change, expr.indices))))
        return map_children(expr, change)

    value = change(leaf.value)
    if leaf.buffer.name != new.name:
        return replace(leaf, value=value)
    return replace(leaf, value=value, buffer=new, indices=place(leaf.indices))


def _over_new_shape(state: State, before: Leaf, new: Buffer, layout: IndexMap) -> State:
    """Give the one block that stores the buffer, if nothing was done to it yet, loops over the new shape."""
    leaf, place = state.leaf(before.name)
    axes = plain_iters(before)
    top = single_branch(state, place)
    plain = all(isinstance(value, Var) for value in leaf.bindings)
    if (
        before.reduction
        or axes is None
        or len(axes) < len(before.indices)
        or not plain
        or top.loops
    ):
        return state
    if leaf.guards or leaf.conditions or len(set(leaf.bindings)) < len(leaf.bindings):
        return state
    news = tuple(Var(f"w{axis}") for axis in range(len(new.shape)))
    back = layout.inverse(news)
    if back is None:
        return state
    values = {var: back[axis].expr() for var, axis in axes.items()}
    iters = tuple(Iter(var, size) for var, size in zip(news, new.shape, strict=True))
    fresh = replace(
        leaf, iters=iters, bindings=(), indices=news, value=substitute(leaf.value, values)
    )
    placed = whole(state, replace(fresh, bindings=tuple(news)))
    made = state.with_body(rewrite(state.body, top.node, [placed]))
    moved, at = made.leaf(leaf.name)
    loops = {var: loop.var for var, loop in zip(news, at.loops, strict=True)}
    tests = []
    for each in before.iters:
        form = back[axes[each.var]]
        if form.interval().high >= each.extent:
            tests.append(substitute(form.expr(), loops) < each.extent)
    guarded = replace(moved, conditions=tuple(tests))  # not all of the new shape is stored
    return made.with_body(rewrite(made.body, moved, [guarded]))
