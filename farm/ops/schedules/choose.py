"""Which recipe suits which block.

Owns: recognising blocks by their shape. Does not own: the recipes.

Invariant: each block's recipe is tried on a copy: one that is refused changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from farm.errors import ScheduleError
from farm.ir import Function
from farm.ir.expr import Binary, BinaryOp, Cast, Load
from farm.ops.schedules.machine import Machine, machine_of
from farm.ops.schedules.product import schedule_product
from farm.ops.schedules.rows import (
    schedule_elementwise,
    schedule_row_reduction,
    schedule_shared_rows,
)
from farm.schedule import Schedule
from farm.schedule.block import Leaf
from farm.target import Target, as_target

Recipe = Callable[[Schedule], None]


def scheduled(function: Function, target: str | Target) -> Function:
    """Return a function with the default schedule for a target; unchanged where none is known.

    Raises
    ------
    ScheduleError
        The function calls others.
    """
    return default_schedule(function, target).function


def default_schedule(function: Function, target: str | Target) -> Schedule:
    """Return the default schedule of a function for a target; without steps where none is known."""
    where = as_target(target)
    best = Schedule(function)
    if not where.family.startswith("llvm/"):
        return best
    machine = machine_of(where)
    names = best.block_names()
    recipes: list[Recipe | None] = [lambda s: schedule_shared_rows(s, names)]
    recipes += [_recipe(best, name, machine) for name in names]
    for recipe in recipes:
        if recipe is None:
            continue
        trial = best.trace.apply(function)
        try:
            recipe(trial)
            trial.function  # noqa: B018 - lowering may refuse, too
        except ScheduleError:
            continue
        best = trial
    return best


def _recipe(sch: Schedule, name: str, machine: Machine) -> Recipe | None:
    leaf = sch.block(name)
    extents = [each.extent for each in leaf.iters]
    size = leaf.buffer.dtype.size_bytes
    reduced = [each.reduce for each in leaf.iters]
    if leaf.reduction is None:
        return lambda s: schedule_elementwise(s, name, machine, extents[-1] if extents else 1, size)
    if _is_product(leaf) and reduced == [False, False, True]:
        m, n, depth = extents
        return lambda s: schedule_product(s, name, machine, (m, n, depth), size)
    if sum(reduced) == 1 and reduced[-1]:
        return lambda s: schedule_row_reduction(s, name, machine, extents[-1], size)
    return None


def _is_product(leaf: Leaf) -> bool:
    """Tell whether a block sums ``a[i, k] * b[k, j]`` over its iterators i, j, k."""
    if leaf.reduction is None or leaf.reduction.op is not BinaryOp.ADD or len(leaf.iters) != 3:
        return False
    i, j, k = (each.var for each in leaf.iters)
    match leaf.value:
        case Binary(BinaryOp.MUL, a, b):
            sides = [x.value if isinstance(x, Cast) else x for x in (a, b)]
            at = [x.indices if isinstance(x, Load) else None for x in sides]
            return at == [(i, k), (k, j)] and leaf.indices == (i, j)
        case _:
            return False
