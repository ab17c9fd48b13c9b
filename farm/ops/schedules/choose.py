"""Which recipe suits which block.

Owns: recognising blocks by their shape, and the order in which recipes are tried. Does not own: the recipes.

Invariant: each block's recipe is tried on a copy: one that is refused changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from farm.errors import ScheduleError
from farm.ir import Function
from farm.ops.schedules.contraction import factors, schedule_contraction
from farm.ops.schedules.machine import Machine, machine_of
from farm.ops.schedules.product import schedule_product
from farm.ops.schedules.rows import (
    schedule_elementwise,
    schedule_row_reduction,
    schedule_shared_rows,
)
from farm.ops.schedules.threads import schedule_threads
from farm.ops.schedules.window import schedule_stage, schedule_window
from farm.schedule import Schedule
from farm.schedule.block import Leaf
from farm.target import Target, as_target

Recipe = Callable[[Schedule], None]


def scheduled(function: Function, target: str | Target, *, threads: int = 1) -> Function:
    """Return a function with the default schedule for a target; unchanged where none is known.

    Parameters
    ----------
    threads
        How many it is to run on; more than one makes loops parallel that are worth it.

    Raises
    ------
    ScheduleError
        The function calls others, or `threads` is no number from 1 on.
    """
    return default_schedule(function, target, threads=threads).function


def default_schedule(function: Function, target: str | Target, *, threads: int = 1) -> Schedule:
    """Return the default schedule of a function for a target, without steps where none is known; see `scheduled`."""
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ScheduleError(f"default schedule: {threads!r} threads; use 1 or more")
    where = as_target(target)
    best = Schedule(function)
    if not where.family.startswith("llvm/"):
        return best
    machine = machine_of(where)
    names = best.block_names()
    leaves = {name: best.block(name) for name in names}
    best = _first_of(best, [lambda s: schedule_shared_rows(s, names)])
    for name, leaf in leaves.items():
        if factors(leaf) is not None:
            best = _first_of(best, _sums(name, leaf, machine))
    for name, leaf in leaves.items():  # they may have moved into loops of the sums
        best = _first_of(best, _passes(name, leaf, machine))
    if threads > 1:
        for name in best.block_names():
            best = _first_of(best, [partial(schedule_threads, block=name, threads=threads)])
    return best


def _first_of(sch: Schedule, recipes: list[Recipe]) -> Schedule:
    """Return a schedule with the first of some recipes that is not refused; the same one if all are."""
    for recipe in recipes:
        trial = sch.copy()
        try:
            recipe(trial)
            trial.function  # noqa: B018 - lowering may refuse, too
        except ScheduleError:
            continue
        return trial
    return sch


def _sums(name: str, leaf: Leaf, machine: Machine) -> list[Recipe]:
    """Return the recipes for a sum of products, best first."""

    def window(sch: Schedule) -> None:
        stages = [str(each) for each in sch.get_producers(name)]
        schedule_window(sch, name, machine)
        for stage in stages:
            schedule_stage(sch, stage, name)

    recipes: list[Recipe] = [
        lambda s: schedule_contraction(s, name, machine),
        window,
        lambda s: schedule_window(s, name, machine),
    ]
    transposed = _product(leaf)
    if transposed is None:
        return recipes
    m, n, depth = (each.extent for each in leaf.iters)
    size = leaf.buffer.dtype.size_bytes

    def product(sch: Schedule) -> None:
        schedule_product(sch, name, machine, (m, n, depth), size, transposed=transposed)

    return [product, *recipes] if n % machine.lanes(size) == 0 else [recipes[0], product]


def _passes(name: str, leaf: Leaf, machine: Machine) -> list[Recipe]:
    """Return the recipes for a block that goes over its operands once."""
    extents = [each.extent for each in leaf.iters]
    size = leaf.buffer.dtype.size_bytes
    reduced = [each.reduce for each in leaf.iters]
    if leaf.reduction is None:
        last = extents[-1] if extents else 1
        return [lambda s: schedule_elementwise(s, name, machine, last, size)]
    if sum(reduced) == 1 and reduced[-1]:
        return [lambda s: schedule_row_reduction(s, name, machine, extents[-1], size)]
    return []


def _product(leaf: Leaf) -> bool | None:
    """Tell whether a plain product, in iterators i, j, k, has its second operand as ``b[j, k]``; None if it is none."""
    reduced = [each.reduce for each in leaf.iters]
    pair = factors(leaf)
    if reduced != [False, False, True] or pair is None:
        return None
    i, j, k = (each.var for each in leaf.iters)
    a, b = (load.indices for load in pair)
    if leaf.indices != (i, j) or a not in ((i, k), (k, i)) or b not in ((k, j), (j, k)):
        return None
    return b == (j, k)
