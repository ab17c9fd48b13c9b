"""split, fuse, reorder: other loops around the same blocks.

Owns: these three and `tile`, which is made of them. Does not own: kinds of loops (`kinds`).

Invariant: every block runs for the same iterations as before; `reorder` keeps dependent ones in order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from farm.ir.affine import simplified
from farm.ir.dtype import DType
from farm.ir.expr import Const, Expr, Var
from farm.ir.stmt import For, Stmt, map_children
from farm.schedule.block import Leaf
from farm.schedule.legality import below, reordering_problem
from farm.schedule.primitive import (
    LoopRV,
    Result,
    chain,
    choice,
    integer,
    primitive,
    refuse,
    serial_loop,
)
from farm.schedule.tree import (
    State,
    change_leaves,
    extents_of,
    leaves_of,
    loops_of,
    nest,
    rebind,
    rewrite,
    unique,
)

TAILS = ("guard", "peel", "refuse")
MAX_EXTENT = 1 << 40


@primitive(many=True)
def split(state: State, loop: str, factors: Sequence[int | None], tail: str = "guard") -> Result:
    """Make several loops of one; see `Schedule.split`."""
    old, place = serial_loop("split", state, loop)
    choice("split", f"loop {loop}, tail", tail, TAILS)
    sizes = _sizes(loop, old.extent, factors)
    total = math.prod(sizes)
    if total != old.extent and tail == "refuse":
        raise refuse(
            "split",
            f"loop {loop}",
            f"its extent {old.extent} is not {' * '.join(map(str, sizes))}; use factors that divide it",
        )
    names: list[str] = []
    for number in range(len(sizes)):
        names.append(state.fresh(f"{loop}_{number}", *names))
    if total != old.extent and tail == "peel":
        return _peeled(state, old, names, sizes)
    loops = [
        For(Var(n), size, old.body, span=old.span) for n, size in zip(names, sizes, strict=True)
    ]
    extents = extents_of([*place.loops, *loops, *loops_of(old.body)])
    index = simplified(_joined(loops), extents)
    body = rebind(old.body, {old.var: index}, extents)
    if total != old.extent:
        guard = index < old.extent
        body = change_leaves(body, lambda leaf: replace(leaf, guards=(*leaf.guards, guard)))
    changed = rewrite(state.body, old, [nest(loops, body)])
    return state.with_body(changed), [LoopRV(name) for name in names]


def _sizes(loop: str, extent: int, factors: Sequence[int | None]) -> list[int]:
    if not isinstance(factors, Sequence) or isinstance(factors, str) or len(factors) < 2:
        raise refuse("split", f"loop {loop}", f"factors {factors!r}; give two or more")
    if sum(factor is None for factor in factors) > 1:
        raise refuse("split", f"loop {loop}", "two factors are None; only one can be inferred")
    given = [
        integer("split", f"loop {loop}, factor", factor, 1, MAX_EXTENT)
        for factor in factors
        if factor is not None
    ]
    inferred = max(1, -(-extent // math.prod(given)))
    sizes = [inferred if factor is None else factor for factor in factors]
    if math.prod(sizes) < extent:
        raise refuse(
            "split",
            f"loop {loop}",
            f"factors {' * '.join(map(str, sizes))} do not reach its extent {extent}; use None for one",
        )
    if math.prod(sizes) > MAX_EXTENT:
        raise refuse("split", f"loop {loop}", f"factors over {MAX_EXTENT} in all; use smaller ones")
    return sizes


def _joined(loops: Sequence[For]) -> Expr:
    index: Expr = loops[0].var
    for loop in loops[1:]:
        index = index * loop.extent + loop.var
    return index


def _peeled(state: State, old: For, names: list[str], sizes: list[int]) -> Result:
    """Split off what does not fill the inner loops into a nest of its own, which comes after."""
    inner = math.prod(sizes[1:])
    whole = old.extent // inner
    if whole == 0 or sizes[0] != -(-old.extent // inner):
        raise refuse(
            "split",
            f"loop {old.var.name}",
            f"factors {' * '.join(map(str, sizes))} leave no whole part of extent {old.extent} to peel from; "
            f"use smaller ones, or None for the first",
        )
    loops = [
        For(Var(n), size, old.body, span=old.span)
        for n, size in zip(names, [whole, *sizes[1:]], strict=True)
    ]
    _, place = state.loop(old.var.name)
    around = [*place.loops, *loops, *loops_of(old.body)]
    main = rebind(old.body, {old.var: _joined(loops)}, extents_of(around))
    rest = For(
        Var(state.fresh(f"{old.var.name}_tail", *names)),
        old.extent - whole * inner,
        old.body,
        span=old.span,
    )
    body = renamed_copy(state, old.body, "_tail", {rest.var.name, *names})
    body = change_leaves(body, lambda leaf: _continued(leaf, old.var))
    around = [*place.loops, rest, *loops_of(body)]
    body = rebind(body, {old.var: rest.var + whole * inner}, extents_of(around))
    pieces = [nest(loops, main), replace(rest, body=body)]
    made = state.with_body(rewrite(state.body, old, pieces))
    return made, [LoopRV(name) for name in [*names, rest.var.name]]


def _continued(leaf: Leaf, var: Var) -> Leaf:
    """Return the later part of a block: a reduction over `var` was started by the first part."""
    if leaf.reduction is None or var not in leaf.vars_of(reduce=True):
        return leaf
    return replace(leaf, reduction=replace(leaf.reduction, init=None))


def renamed_copy(state: State, body: Stmt, suffix: str, taken: set[str]) -> Stmt:
    """Return a tree whose loops and blocks have new names that end with `suffix`."""
    names, blocks = state.names() | taken, {leaf.name for leaf in state.all_leaves()}
    values: dict[Var, Expr] = {}

    def change(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Leaf):
            name = unique(f"{stmt.name}{suffix}", blocks)
            blocks.add(name)
            return replace(stmt, name=name)
        if isinstance(stmt, For):
            new = Var(unique(f"{stmt.var.name}{suffix}", names))
            names.add(new.name)
            values[stmt.var] = new
            stmt = replace(stmt, var=new)
        return map_children(stmt, change)

    renamed = change(body)
    extents = extents_of([place.node for place in state.places() if isinstance(place.node, For)])
    extents |= extents_of(loops_of(renamed))
    return rebind(renamed, values, extents)


@primitive()
def fuse(state: State, loops: Sequence[str]) -> Result:
    """Make one loop of several; see `Schedule.fuse`."""
    found = chain("fuse", state, loops)
    if [loop.var.name for loop, _ in found] != list(loops):
        raise refuse("fuse", f"loops {', '.join(loops)}", "name them outermost first")
    for (outer, _), (inner, _) in itertools.pairwise(found):
        if outer.body is not inner:
            raise refuse(
                "fuse",
                f"loops {outer.var.name} and {inner.var.name}",
                "another loop is between them; reorder first",
            )
    nested = [serial_loop("fuse", state, name)[0] for name in loops]
    _check_same_sort(nested)
    total = math.prod(loop.extent for loop in nested)
    var = Var(state.fresh("_".join((*loops, "fused"))))
    fused = For(var, total, nested[-1].body, span=nested[0].span)
    values: dict[Var, Expr] = {}
    rest = total
    for loop in nested:
        rest //= loop.extent
        value: Expr = var if rest == 1 else var // rest
        outermost = loop is nested[0]
        values[loop.var] = value if outermost else value % loop.extent
        if loop.extent == 1:
            values[loop.var] = Const(0, DType.INT64)
    place = found[0][1]
    extents = extents_of([*place.loops, fused, *loops_of(fused.body)])
    body = rebind(fused.body, values, extents)
    changed = rewrite(state.body, nested[0], [replace(fused, body=body)])
    return state.with_body(changed), [LoopRV(var.name)]


def _check_same_sort(loops: Sequence[For]) -> None:
    for leaf in leaves_of(loops[0]):
        reduced, spatial = leaf.vars_of(reduce=True), leaf.vars_of(reduce=False)
        sorts = {
            (loop.var in reduced, loop.var in spatial)
            for loop in loops
            if loop.var in reduced | spatial
        }
        if len(sorts) > 1:
            raise refuse(
                "fuse",
                f"loops {', '.join(loop.var.name for loop in loops)}",
                f"{leaf.name} reduces over some of them and computes other elements in the others; "
                f"fuse loops of one sort",
            )


@primitive()
def reorder(state: State, loops: Sequence[str]) -> Result:
    """Put nested loops into another order; see `Schedule.reorder`."""
    found = chain("reorder", state, loops)
    outer, place = found[0]
    line: list[For] = [outer]
    while line[-1] is not found[-1][0]:
        inner = line[-1].body
        assert isinstance(inner, For)
        line.append(inner)
    wanted = iter([state.loop(name)[0] for name in loops])
    moved = {loop.var for loop, _ in found}
    order = [next(wanted) if loop.var in moved else loop for loop in line]
    problem = reordering_problem(
        state, below(state, place), [*place.loops, *line], [*place.loops, *order]
    )
    if problem is not None:
        raise refuse("reorder", f"loops {', '.join(loops)}", problem)
    changed = rewrite(state.body, outer, [nest(order, line[-1].body)])
    return state.with_body(changed), []
