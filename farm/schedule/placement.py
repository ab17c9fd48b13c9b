"""Loops made anew around a block, over the part of its iterations that is wanted.

Owns: those loops, with bindings and guards. Does not own: where they go (`move`, `cache`).

Invariant: the block runs for each wanted iteration that lies in its extents, and for no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from farm.ir.affine import affine_interval, constant, variable
from farm.ir.bounds import Facts, Interval, assume
from farm.ir.buffer import Buffer
from farm.ir.dtype import DType
from farm.ir.expr import Const, Expr, Load, Var
from farm.ir.stmt import For, Stmt
from farm.schedule.block import Iter, Leaf, variables
from farm.schedule.regions import Span
from farm.schedule.tree import State, nest


def loops_around(
    state: State,
    leaf: Leaf,
    wanted: Mapping[Var, Span],
    *,
    unit: bool,
    outer: Sequence[For] = (),
    tests: tuple[Expr, ...] = (),
) -> Stmt:
    """Return a block inside new loops, one for each iterator, in their order.

    Parameters
    ----------
    wanted
        The part of each iterator's range, in variables of `outer` loops; all of it where not given.
    unit
        Whether an iterator with one wanted value gets a loop, too.
    outer
        The loops around the new ones.
    tests
        Guards, in variables of those, under which the block is to run.
    """
    names: list[str] = []
    loops: list[For] = []
    values: list[Expr] = []
    for each in leaf.iters:
        span = wanted.get(each.var, Span(constant(0), each.extent))
        index = span.low
        if span.extent > 1 or unit:
            names.append(state.fresh(f"ax{len(names)}", *names))
            var = Var(names[-1])
            loops.append(For(var, span.extent, leaf, span=leaf.span))
            index = index + variable(var, span.extent)
        values.append(index.expr())
    facts: Facts = {x.var: Interval(0, x.extent - 1) for x in (*outer, *loops)}
    for test in tests:
        facts = assume(test, facts)
    guards = [
        guard
        for each, value in zip(leaf.iters, values, strict=True)
        for guard in _guards(value, each.extent, facts)
    ]
    placed = replace(leaf, bindings=tuple(values), guards=(*tests, *guards))
    return nest(loops, placed)


def _guards(value: Expr, extent: int, facts: Facts) -> list[Expr]:
    reach = affine_interval(value, facts)
    return [value >= 0] * (reach.low < 0) + [value < extent] * (reach.high >= extent)


def shared_guards(readers: Sequence[Leaf], fixed: Iterable[Var]) -> tuple[Expr, ...]:
    """Return the guards under which all of some blocks run, as far as they speak of fixed variables."""
    scope = set(fixed)
    return tuple(
        test
        for test in readers[0].guards
        if scope.issuperset(variables(test)) and all(test in other.guards for other in readers)
    )


def copy_block(name: str, source: Buffer, target: Buffer) -> Leaf:
    """Return a block that copies each element of the smaller of two buffers, at the same indices."""
    shape = tuple(min(a, b) for a, b in zip(source.shape, target.shape, strict=True))
    iters = tuple(Iter(Var(f"v{axis}"), extent) for axis, extent in enumerate(shape))
    indices = tuple(each.var for each in iters)
    zero = tuple(Const(0, DType.INT64) for _ in iters)
    return Leaf(name, iters, zero, target, indices, Load(source, indices))


def plain_iters(leaf: Leaf) -> dict[Var, int] | None:
    """Return the dimension of the stored buffer that each spatial iterator is the index of; None if it is not so."""
    found: dict[Var, int] = {}
    for axis, index in enumerate(leaf.indices):
        if isinstance(index, Var) and index not in found:
            found[index] = axis
        elif not isinstance(index, Const):
            return None
    spatial = {each.var for each in leaf.iters if not each.reduce}
    return found if set(found) == spatial else None
