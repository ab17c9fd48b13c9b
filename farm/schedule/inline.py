"""compute_inline: values computed where they are used.

Owns: that primitive. Does not own: computing at a loop (`move`).

Invariant: every load that is replaced would have found exactly the value that takes its place.
"""

from __future__ import annotations

from dataclasses import replace

from farm.ir.expr import Expr, Load, Var, map_children
from farm.ir.verifier import MAX_DEPTH
from farm.schedule.block import Leaf, substitute
from farm.schedule.move import shared_loops
from farm.schedule.placement import plain_iters
from farm.schedule.primitive import Result, primitive, refuse
from farm.schedule.tree import Place, State, change_leaves, rewrite


@primitive()
def compute_inline(state: State, block: str) -> Result:
    """Put a block's value in place of the loads of its buffer; see `Schedule.compute_inline`."""
    what, where = "compute_inline", f"block {block}"
    leaf, place = state.leaf(block)
    name = leaf.buffer.name
    if name not in state.inner:
        raise refuse(what, where, f"{name} is a parameter, which callers see")
    axes = _definition(what, where, state, leaf)
    readers = [p for p in state.leaves() if _reads(p, name)]
    if not readers:
        raise refuse(what, where, f"nothing reads {name}")
    _check_sources(what, where, state, leaf, place, readers)
    order: dict[int, Var] = {axis: var for var, axis in axes.items()}

    def value_at(load: Load) -> Expr:
        indices = tuple(map(inlined, load.indices))
        return substitute(leaf.value, {order[axis]: index for axis, index in enumerate(indices)})

    def inlined(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.buffer.name == name:
            return value_at(expr)
        return map_children(expr, inlined)

    body = rewrite(state.body, leaf, [])
    made = state.with_body(change_leaves(body, lambda x: replace(x, value=inlined(x.value))))
    for reader in made.all_leaves():
        if _depth(reader.value) > MAX_DEPTH // 2:
            raise refuse(
                what, where, f"the value of {reader.name} would nest too deep; use compute_at"
            )
    return made, []


def _definition(what: str, where: str, state: State, leaf: Leaf) -> dict[Var, int]:
    """Return the dimension that each iterator is the index of, in a block that alone defines its buffer."""
    name = leaf.buffer.name
    if leaf.reduction is not None:
        raise refuse(what, where, "it is a reduction; use compute_at")
    if len(state.writers(name)) > 1 or leaf.conditions or name in leaf.buffers_read():
        raise refuse(what, where, f"it alone does not say what {name} holds")
    axes = plain_iters(leaf)
    if axes is None or len(axes) != len(leaf.indices):
        raise refuse(what, where, "it does not store element by element over its own iterators")
    return axes


def _reads(place: Place, name: str) -> bool:
    return isinstance(place.node, Leaf) and name in place.node.buffers_read()


def _check_sources(
    what: str, where: str, state: State, leaf: Leaf, place: Place, readers: list[Place]
) -> None:
    """Refuse if something that the block reads is not the same any more where its value is used."""
    for reader in readers:
        if reader.path < place.path:
            raise refuse(
                what, where, f"{_name(reader)} reads {leaf.buffer.name} before it is stored"
            )
        for other in state.leaves():
            node = other.node
            assert isinstance(node, Leaf)
            if node.buffer.name not in leaf.buffers_read():
                continue
            again = len(shared_loops(other, place)) > len(shared_loops(other, reader))
            if again or other.path > place.path:
                raise refuse(
                    what,
                    where,
                    f"{node.name} stores {node.buffer.name}, which it reads, again before {_name(reader)} runs",
                )


def _name(place: Place) -> str:
    assert isinstance(place.node, Leaf)
    return place.node.name


def _depth(expr: Expr) -> int:
    return 1 + max(map(_depth, expr.children()), default=0)
