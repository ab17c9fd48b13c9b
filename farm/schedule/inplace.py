"""store_inplace: an operand in the memory of the result.

Owns: when that changes nothing. Does not own: copies (`cache`).

Invariant: whatever uses an element of the operand runs before the block that overwrites it.
"""

from __future__ import annotations

from dataclasses import replace

from farm.ir.expr import Var
from farm.ir.function import Role
from farm.schedule.block import Leaf, replace_buffer
from farm.schedule.cache import read_buffer, stores_all
from farm.schedule.dependence import Access, Order, accesses, can_meet, common_loops
from farm.schedule.placement import plain_iters
from farm.schedule.primitive import Result, primitive, refuse
from farm.schedule.tree import State, change_leaves


@primitive()
def store_inplace(state: State, block: str, read_buffer_index: int) -> Result:
    """Keep an operand where the result goes; see `Schedule.store_inplace`."""
    what, where = "store_inplace", f"block {block}"
    leaf, _ = state.leaf(block)
    source, target = read_buffer(what, where, leaf, read_buffer_index), leaf.buffer
    if source.name not in state.inner:
        raise refuse(what, where, f"{source.name} is a parameter, which callers see")
    if not any(x.buffer == target and x.role is Role.OUTPUT for x in state.function.params):
        raise refuse(what, where, f"{target.name} is no output of the function")
    if (source.shape, source.dtype) != (target.shape, target.dtype):
        raise refuse(what, where, f"{source.name} and {target.name} differ in shape or type")
    if leaf.reduction is not None or plain_iters(leaf) is None or not stores_all(state, leaf):
        raise refuse(what, where, f"it does not store all of {target.name}, each element once")
    if any(x.indices != leaf.indices for x in leaf.reads() if x.buffer.name == source.name):
        raise refuse(what, where, f"it reads elements of {source.name} other than its own")
    _check_last(what, where, state, leaf, source.name)

    def moved(each: Leaf) -> Leaf:
        value = replace_buffer(each.value, source.name, target)
        own = each.buffer.name == source.name
        return replace(each, value=value, buffer=target if own else each.buffer)

    return state.with_body(change_leaves(state.body, moved)), []


def _check_last(what: str, where: str, state: State, leaf: Leaf, source: str) -> None:
    """Refuse unless a block alone uses its result, each element after all other uses of the operand's."""
    everything, target = accesses(state.leaves()), leaf.buffer.name
    others = [x.leaf.name for x in everything if x.buffer == target and x.leaf is not leaf]
    if others or target in leaf.buffers_read():
        users = ", ".join(dict.fromkeys(others)) or leaf.name
        raise refuse(what, where, f"{target} is used by {users}, too")
    (store,) = (x for x in everything if x.leaf is leaf and x.is_write)
    for access in everything:
        if access.buffer != source or access.leaf is leaf:
            continue
        if access.path > store.path or _follows(access, store):
            raise refuse(what, where, f"{access} after {leaf.name} would have overwritten it")
    if _follows(store, store):
        raise refuse(what, where, f"{leaf.name} stores elements more than once")


def _follows(access: Access, store: Access) -> bool:
    """Tell whether an access may happen in a later iteration than the store of its element."""
    order: dict[Var, Order] = {}
    for loop in common_loops(store, access):
        if can_meet(store, access, {**order, loop.var: Order.EARLIER}):
            return True
        order[loop.var] = Order.SAME
    return False
