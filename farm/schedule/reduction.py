"""decompose_reduction, rfactor: reductions in two blocks.

Owns: where a reduction starts, and partial results. Does not own: the order of its steps (`loops.reorder`).

Invariant: an element is started once, before its first step, and combines each value once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from farm.ir.affine import simplified
from farm.ir.buffer import Buffer
from farm.ir.dtype import DType
from farm.ir.expr import BinaryOp, Const, Expr, Load, Var, const
from farm.ir.stmt import For, Stmt
from farm.schedule.block import Iter, Leaf, Reduction, substitute, variables
from farm.schedule.dependence import Order, accesses, can_meet, conflicting
from farm.schedule.legality import below, may_reorder
from farm.schedule.primitive import (
    BlockRV,
    Result,
    integer,
    primitive,
    refuse,
    serial_loop,
    single_branch,
)
from farm.schedule.tree import Place, State, extents_of, nest, rewrite


def start_reduction(state: State, block: str) -> tuple[State, str]:
    """Split off the start of a reduction, right before the outermost loop that it reduces over."""
    leaf, place = state.leaf(block)
    reduced = leaf.vars_of(reduce=True)
    number = next((n for n, x in enumerate(place.loops) if x.var in reduced), len(place.loops))
    return _started(state, leaf, place, number)


def _started(state: State, leaf: Leaf, place: Place, number: int) -> tuple[State, str]:
    """Split off the start of a reduction, before the loop with a number (or before the block itself)."""
    assert leaf.reduction is not None
    assert leaf.reduction.init is not None
    reduced, spatial = leaf.vars_of(reduce=True), leaf.vars_of(reduce=False)
    outside, inside = place.loops[:number], place.loops[number:]
    loops, values, names = [], {}, set[str]()
    for loop in inside:
        if loop.var in spatial and loop.var not in reduced:
            new = Var(state.fresh(f"{loop.var.name}_init", *names))
            names.add(new.name)
            values[loop.var] = new
            loops.append(replace(loop, var=new))
    extents = extents_of([*outside, *loops])
    pairs = [p for p in zip(leaf.iters, leaf.bindings, strict=True) if not p[0].reduce]

    def moved(expr: Expr) -> Expr:
        return simplified(substitute(expr, values), extents)

    def kept(tests: Sequence[Expr]) -> tuple[Expr, ...]:
        new = tuple(moved(x) for x in tests if not set(variables(x)) & reduced)
        return tuple(x for x in new if extents.keys() >= set(variables(x)))

    name = state.fresh_block(f"{leaf.name}_init")
    start = Leaf(
        name,
        tuple(each for each, _ in pairs),
        tuple(moved(value) for _, value in pairs),
        leaf.buffer,
        leaf.indices,
        leaf.reduction.init,
        guards=kept(leaf.guards),
        conditions=kept(leaf.conditions),
        span=leaf.span,
    )
    update = replace(leaf, reduction=replace(leaf.reduction, init=None))
    made = state.with_body(rewrite(state.body, leaf, [update]))
    at: Stmt = made.loop(inside[0].var.name)[0] if inside else made.leaf(leaf.name)[0]
    return made.with_body(rewrite(made.body, at, [nest(loops, start), at])), name


@primitive()
def decompose_reduction(state: State, block: str, loop: str) -> Result:
    """Split off the start of a reduction before a loop; see `Schedule.decompose_reduction`."""
    what, where = "decompose_reduction", f"block {block} at loop {loop}"
    leaf, place = state.leaf(block)
    if leaf.reduction is None:
        raise refuse(what, where, f"{block} is no reduction; choose one that is")
    if leaf.reduction.init is None:
        raise refuse(what, where, f"{block} is started by another block already")
    node, at = state.loop(loop)
    if not any(each.var == node.var for each in place.loops):
        raise refuse(what, where, f"{loop} is not around {block}; use one of its get_loops")
    reduced = leaf.vars_of(reduce=True)
    number = len(at.loops)
    for outer in place.loops[:number]:
        if outer.var in reduced:
            raise refuse(
                what,
                where,
                f"{outer.var.name} around it is reduced over, so that each of its iterations would start "
                f"{leaf.buffer.name} again; use {outer.var.name} or a loop outside it",
            )
    first = next((n for n, x in enumerate(place.loops) if x.var in reduced), len(place.loops))
    _check_once(what, where, state, leaf, place.loops[number:first], at)
    made, name = _started(state, leaf, place, number)
    return made, [BlockRV(name)]


def _check_once(
    what: str, where: str, state: State, leaf: Leaf, crossed: Sequence[For], at: Place
) -> None:
    """Refuse to start elements before loops whose iterations share them."""
    inside = [a for a in accesses(below(state, at)) if a.buffer == leaf.buffer.name]
    outer = {each.var: Order.SAME for each in at.loops}
    for loop in crossed:
        for a, b in conflicting(inside):
            if can_meet(a, b, {**outer, loop.var: Order.EARLIER}):
                raise refuse(
                    what,
                    where,
                    f"iterations of {loop.var.name} share elements of {leaf.buffer.name} ({a}, {b}), which must "
                    f"start anew in each; choose a loop inside it",
                )
        outer[loop.var] = Order.SAME


def identity_of(op: BinaryOp, dtype: DType) -> Const:
    """Return the value that a combination with changes nothing."""
    match op:
        case BinaryOp.ADD:
            return const(0, dtype)
        case BinaryOp.MUL:
            return const(1, dtype)
        case BinaryOp.MAX | BinaryOp.MIN:
            if dtype.is_float:
                return Const(float("-inf" if op is BinaryOp.MAX else "inf"), dtype)
            return const(dtype.min if op is BinaryOp.MAX else dtype.max, dtype)
        case _:
            raise AssertionError(f"no reduction combines with {op.value}")


@primitive()
def rfactor(state: State, loop: str, factor_axis: int = 0) -> Result:
    """Combine over one reduced loop at the end, from partial results; see `Schedule.rfactor`."""
    what, where = "rfactor", f"loop {loop}"
    node, at = serial_loop(what, state, loop)
    inside = [place.node for place in below(state, at)]
    if len(inside) != 1 or not isinstance(inside[0], Leaf):
        raise refuse(what, where, f"{len(inside)} blocks are inside; it must be one")
    leaf, place = state.leaf(inside[0].name)
    top = single_branch(state, place)
    _check_rfactor(what, where, state, leaf, node, place, top)
    axis = integer(what, f"{where}, factor_axis", factor_axis, 0, len(leaf.buffer.shape))
    shape = (*leaf.buffer.shape[:axis], node.extent, *leaf.buffer.shape[axis:])
    name = state.fresh(f"{leaf.buffer.name}_rf")
    buffer = Buffer(name, leaf.buffer.dtype, shape, leaf.buffer.align_bytes)
    partial = _partial(leaf, node, place, buffer, axis, state.fresh_block(f"{leaf.name}_rf"))
    total, loops = _total(state, leaf, node, place, top, buffer, axis)
    made = replace(state, inner={**state.inner, name: buffer})
    body = rewrite(state.body, leaf, [partial])
    made = made.with_body(body)
    _, moved = made.leaf(partial.name)
    anchor = single_branch(made, moved).node
    made = made.with_body(rewrite(made.body, anchor, [anchor, nest(loops, total)]))
    return made, [BlockRV(partial.name)]


def _check_rfactor(
    what: str, where: str, state: State, leaf: Leaf, loop: For, place: Place, top: Place
) -> None:
    reduced = leaf.vars_of(reduce=True)
    if leaf.reduction is None or loop.var not in reduced:
        raise refuse(
            what, where, f"{leaf.name} does not reduce over it; choose a loop that it does"
        )
    if leaf.reduction.init is None:
        raise refuse(what, where, f"{leaf.name} is started by another block; do this before")
    if not may_reorder(leaf, state):
        raise refuse(
            what,
            where,
            f"{leaf.name} would combine its {leaf.buffer.dtype} values in another order, which rounds "
            f"differently; allow it with fast_math(reassociate=True)",
        )
    if any(each.var in reduced for each in top.loops):
        raise refuse(what, where, f"{leaf.name} also reduces over a loop that other blocks are in")
    for test in (*leaf.guards, *leaf.conditions):
        used = set(variables(test))
        if used & reduced and not (used & reduced) - {loop.var}:
            raise refuse(
                what,
                where,
                f"only some of its iterations run ({loop.extent} of them, guarded); use factors that divide",
            )
    del place


def _partial(leaf: Leaf, loop: For, place: Place, buffer: Buffer, axis: int, name: str) -> Leaf:
    """Return the block of partial results: `loop` is spatial, each other reduced loop an iterator."""
    assert leaf.reduction is not None
    reduced = leaf.vars_of(reduce=True)
    new = {x.var: Var(f"v_{x.var.name}") for x in place.loops if x.var in reduced}
    spatial = [p for p in zip(leaf.iters, leaf.bindings, strict=True) if not p[0].reduce]
    taken = {each.var for each, _ in spatial}
    new = {old: _apart(var, taken) for old, var in new.items()}
    pairs: list[tuple[Iter, Expr]] = list(spatial)
    pairs += [
        (Iter(new[x.var], x.extent, x.var != loop.var), x.var) for x in place.loops if x.var in new
    ]
    inner = {
        each.var: substitute(value, new)
        for each, value in zip(leaf.iters, leaf.bindings, strict=True)
        if each.reduce
    }
    indices = (*leaf.indices[:axis], new[loop.var], *leaf.indices[axis:])
    return replace(
        leaf,
        name=name,
        iters=tuple(each for each, _ in pairs),
        bindings=tuple(value for _, value in pairs),
        buffer=buffer,
        indices=indices,
        value=substitute(leaf.value, inner),
        reduction=Reduction(leaf.reduction.op, identity_of(leaf.reduction.op, leaf.buffer.dtype)),
    )


def _apart(var: Var, taken: set[Var]) -> Var:
    while var in taken:
        var = Var(f"{var.name}_")
    return var


def _total(
    state: State, leaf: Leaf, loop: For, place: Place, top: Place, buffer: Buffer, axis: int
) -> tuple[Leaf, list[For]]:
    """Return the block that combines partial results, with its loops."""
    assert leaf.reduction is not None
    reduced = leaf.vars_of(reduce=True)
    values: dict[Var, Expr] = {}
    loops: list[For] = []
    for each in place.loops[len(top.loops) :]:
        if each.var not in reduced or each.var == loop.var:
            new = Var(state.fresh(f"{each.var.name}_total", *(x.var.name for x in loops)))
            values[each.var] = new
            loops.append(For(new, each.extent, each.body, span=each.span))
    loops.sort(key=lambda x: x.var == values[loop.var])  # the reduced one innermost
    step = _apart(Var(f"v_{loop.var.name}"), {each.var for each in leaf.iters})
    spatial = [p for p in zip(leaf.iters, leaf.bindings, strict=True) if not p[0].reduce]
    indices = (*leaf.indices[:axis], step, *leaf.indices[axis:])

    def kept(tests: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(substitute(x, values) for x in tests if not set(variables(x)) & reduced)

    return (
        replace(
            leaf,
            iters=(*(each for each, _ in spatial), Iter(step, loop.extent, True)),
            bindings=(*(substitute(x, values) for _, x in spatial), values[loop.var]),
            value=Load(buffer, indices),
            guards=kept(leaf.guards),
            conditions=kept(leaf.conditions),
        ),
        loops,
    )
