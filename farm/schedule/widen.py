"""set_dtype: an inner buffer in a wider type, so that what uses it again and again need not convert it.

Owns: when no value changes by it. Does not own: copies (`cache`).

Invariant: every element has the value that it had: all values of the old type are of the new one.
"""

from __future__ import annotations

from dataclasses import replace

from farm.ir.buffer import Buffer
from farm.ir.dtype import DType, as_dtype
from farm.ir.expr import Cast, Expr, Load, map_children
from farm.schedule.block import Leaf
from farm.schedule.primitive import Result, choice, integer, primitive, refuse
from farm.schedule.tree import State, change_leaves

_WIDER_FLOATS = {
    DType.FLOAT16: (DType.FLOAT32, DType.FLOAT64),
    DType.BFLOAT16: (DType.FLOAT32, DType.FLOAT64),
    DType.FLOAT32: (DType.FLOAT64,),
}


@primitive()
def set_dtype(state: State, block: str, buffer_index: int, dtype: str) -> Result:
    """Keep what a block stores in a wider type; see `Schedule.set_dtype`."""
    what, where = "set_dtype", f"block {block}"
    wider = as_dtype(choice(what, f"{where}, dtype", dtype, [str(each) for each in DType]))
    integer(what, f"{where}, buffer_index", buffer_index, 0, 0)
    old = state.leaf(block)[0].buffer
    if old.name not in state.inner:
        raise refuse(what, where, f"{old.name} is a parameter; use cache_read or cache_write")
    if not _holds_all(wider, old.dtype):
        raise refuse(
            what, where, f"{wider} does not hold every value of {old.dtype}; use a wider one"
        )
    sums = [leaf.name for leaf in state.writers(old.name) if leaf.reduction is not None]
    if sums:
        raise refuse(
            what, where, f"{sums[0]} adds up in {old.name}, which its type rounds or wraps"
        )
    new = replace(old, dtype=wider, align_bytes=max(old.align_bytes, wider.size_bytes))
    body = change_leaves(state.body, lambda leaf: _moved(leaf, old, new))
    return replace(state, inner={**state.inner, old.name: new}).with_body(body), []


def _holds_all(wider: DType, narrow: DType) -> bool:
    if narrow.is_integer and wider.is_integer:
        return wider.min <= narrow.min and narrow.max <= wider.max
    return wider in _WIDER_FLOATS.get(narrow, ())


def _moved(leaf: Leaf, old: Buffer, new: Buffer) -> Leaf:
    value = _widened(leaf.value, old, new)
    leaf = replace(leaf, indices=tuple(_widened(index, old, new) for index in leaf.indices))
    if leaf.buffer.name != old.name:
        return replace(leaf, value=value)
    return replace(leaf, value=value.astype(new.dtype), buffer=new)


def _widened(expr: Expr, old: Buffer, new: Buffer) -> Expr:
    """Return an expression that loads from the new buffer; a conversion of an element starts from there."""
    match expr:
        case Cast(dtype, Load(buffer, indices)) if buffer.name == old.name:
            inner = tuple(_widened(index, old, new) for index in indices)
            return Load(new, inner).astype(dtype)
        case Load(buffer, indices):
            inner = tuple(_widened(index, old, new) for index in indices)
            if buffer.name == old.name:
                return Load(new, inner).astype(old.dtype)
            return Load(buffer, inner)
        case _:
            return map_children(expr, lambda child: _widened(child, old, new))
