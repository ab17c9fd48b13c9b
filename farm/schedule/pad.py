"""pad_einsum: sums of products over extents that tiles divide.

Owns: padded copies of operands and result. Does not own: splitting the loops then (`loops`).

Invariant: what is added contributes the identity of the reduction, and is cut off at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from farm.ir.buffer import Buffer
from farm.ir.dtype import DType
from farm.ir.expr import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Load,
    Var,
    const,
    select,
)
from farm.ir.stmt import For, Stmt, map_children
from farm.schedule.block import Iter, Leaf, replace_buffer
from farm.schedule.cache import after_nest, alone_and_whole, new_buffer, top_of, whole
from farm.schedule.placement import copy_block
from farm.schedule.primitive import BlockRV, Handle, Result, integer, primitive, refuse
from farm.schedule.tree import State, rewrite

MAX_PADDING = 4096


@primitive(many=True)
def pad_einsum(state: State, block: str, padding: Sequence[int]) -> Result:
    """Round the extents of a sum of products up to multiples; see `Schedule.pad_einsum`."""
    what, where = "pad_einsum", f"block {block}"
    leaf, place = state.leaf(block)
    if not isinstance(padding, list | tuple) or len(padding) != len(leaf.iters):
        raise refuse(
            what,
            where,
            f"padding {padding!r}; give one number for each of its {len(leaf.iters)} iterators",
        )
    numbers = [integer(what, f"{where}, padding", n, 1, MAX_PADDING) for n in padding]
    extents = {
        each.var: -(-each.extent // n) * n for each, n in zip(leaf.iters, numbers, strict=True)
    }
    grown = {each.var for each in leaf.iters if extents[each.var] > each.extent}
    if not grown:
        return state, []
    _check_plain(what, where, state, leaf)
    for each in (
        leaf.iters
    ):  # one of extent 1 may be no index: what is added would store the same elements again
        if each.var in grown and not each.reduce and each.var not in leaf.indices:
            raise refuse(
                what,
                where,
                f"{each.var.name[2:]} is no index of {leaf.buffer.name}; do this before transform_layout, or leave it",
            )
    _check_neutral(what, where, leaf, grown)
    alone_and_whole(what, where, state, leaf, place)
    copies: list[Leaf] = []
    value, made = leaf.value, state
    for source in dict.fromkeys(load.buffer for load in leaf.reads()):
        load = next(x for x in leaf.reads() if x.buffer == source)
        shape = _shape(load.indices, source, extents)
        if shape == source.shape:
            continue
        made, buffer = new_buffer(made, source, f"{source.name}_pad", "global", shape)
        copies.append(_padded_copy(made.fresh_block(buffer.name), source, buffer))
        value = replace_buffer(value, source.name, buffer)
    target, shape = leaf.buffer, _shape(leaf.indices, leaf.buffer, extents)
    out = target
    if shape != target.shape:
        made, out = new_buffer(made, target, f"{target.name}_pad", "global", shape)
    iters = tuple(replace(each, extent=extents[each.var]) for each in leaf.iters)
    padded = replace(leaf, iters=iters, value=value, buffer=out)
    body = _with_extents(
        rewrite(made.body, leaf, [padded]), dict(zip(leaf.bindings, iters, strict=True))
    )
    made = made.with_body(body)
    for copy in copies:
        top = top_of(made, made.leaf(block)[1])
        made = made.with_body(rewrite(made.body, top, [whole(made, copy), top]))
    handles: list[Handle] = [BlockRV(copy.name) for copy in copies]
    if out != target:
        crop = copy_block(made.fresh_block(out.name), out, target)
        made = after_nest(made, block, crop)
        handles.append(BlockRV(crop.name))
    return made, handles


def _check_plain(what: str, where: str, state: State, leaf: Leaf) -> None:
    """Refuse a block whose loops were changed, or whose indices are more than single iterators."""
    _, place = state.leaf(leaf.name)
    sizes = {loop.var: loop.extent for loop in place.loops}
    for each, value in zip(leaf.iters, leaf.bindings, strict=True):
        if not isinstance(value, Var) or sizes.get(value) != each.extent:
            raise refuse(
                what, where, f"the loop of {each.var.name[2:]} was split or fused; do this before"
            )
    for load in (*leaf.reads(), Load(leaf.buffer, leaf.indices)):
        if not all(isinstance(index, Var | Const) for index in load.indices):
            raise refuse(what, where, f"an index of {load.buffer.name} is more than one iterator")
    if len(set(leaf.reads())) > len({load.buffer for load in leaf.reads()}):
        raise refuse(what, where, "it loads a buffer at two places")


def _check_neutral(what: str, where: str, leaf: Leaf, grown: set[Var]) -> None:
    """Refuse unless the added steps of the reduction add zero."""
    reduced = {each.var for each in leaf.iters if each.reduce} & grown
    if not reduced:
        return
    factors = _factors(leaf.value)
    assert leaf.reduction is not None
    if leaf.reduction.op is not BinaryOp.ADD or factors is None:
        raise refuse(
            what,
            where,
            "it is no sum of products, so that zeros would count; pad spatial iterators only",
        )
    for var in sorted(reduced, key=lambda v: v.name):
        extent = next(each.extent for each in leaf.iters if each.var == var)
        for load in factors:
            sizes = [n for x, n in zip(load.indices, load.buffer.shape, strict=True) if x == var]
            if sizes != [extent]:
                raise refuse(
                    what,
                    where,
                    f"{load.buffer.name} has no dimension of just {var.name[2:]}'s extent {extent} to be padded with "
                    f"zeros, so that added steps would count",
                )


def _factors(value: Expr) -> list[Load] | None:
    """Return the loads whose product a value is, conversions aside; None if it is something else."""
    match value:
        case Binary(BinaryOp.MUL, a, b):
            left, right = _factors(a), _factors(b)
            return None if left is None or right is None else left + right
        case Cast(_, inner):
            return _factors(inner)
        case Load():
            return [value]
        case _:
            return None


def _shape(indices: Sequence[Expr], buffer: Buffer, extents: Mapping[Var, int]) -> tuple[int, ...]:
    return tuple(
        max(size, extents[index]) if isinstance(index, Var) else size
        for index, size in zip(indices, buffer.shape, strict=True)
    )


def _padded_copy(name: str, source: Buffer, target: Buffer) -> Leaf:
    """Return a block that copies a buffer into a larger one and stores zeros around it."""
    iters = tuple(Iter(Var(f"v{axis}"), size) for axis, size in enumerate(target.shape))
    indices = tuple(each.var for each in iters)
    zero: Expr = const(0, target.dtype)
    value: Expr = Load(source, indices)
    for each, size in zip(reversed(iters), reversed(source.shape), strict=True):
        if each.extent > size:
            value = select(Compare(CompareOp.LT, each.var, const(size, DType.INT64)), value, zero)
    places = tuple(const(0, DType.INT64) for _ in iters)
    return Leaf(name, iters, places, target, indices, value)


def _with_extents(stmt: Stmt, iters: Mapping[Expr, Iter]) -> Stmt:
    """Return a tree whose loops of some iterators run over their extents."""
    if isinstance(stmt, For) and stmt.var in iters:
        stmt = replace(stmt, extent=iters[stmt.var].extent)
    return map_children(stmt, lambda child: _with_extents(child, iters))
