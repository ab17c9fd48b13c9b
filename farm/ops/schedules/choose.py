"""Which recipe suits which block.

Owns: recognising blocks by their shape, and the order in which recipes are tried. Does not own: the recipes.

Invariant: each block's recipe is tried on a copy: one that is refused changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from farm.errors import ScheduleError
from farm.ir import Function
from farm.ops.schedules.contraction import contraction_knobs, factors, schedule_contraction
from farm.ops.schedules.knobs import Choice, Knobs, Recipe
from farm.ops.schedules.machine import Machine, machine_of
from farm.ops.schedules.nest import nest_knobs, schedule_nest
from farm.ops.schedules.product import Product, product_knobs, schedule_product
from farm.ops.schedules.rows import (
    elementwise_knobs,
    row_reduction_knobs,
    schedule_elementwise,
    schedule_row_reduction,
    schedule_shared_rows,
)
from farm.ops.schedules.threads import schedule_threads
from farm.ops.schedules.traffic import schedule_traffic
from farm.ops.schedules.window import schedule_stage, schedule_window, window_knobs
from farm.schedule import Schedule
from farm.schedule.block import Leaf
from farm.target import Target, as_target

WHOLE = ""
"""The stage that is about the function, not about one of its blocks."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One decision: which recipe schedules a block.

    Attributes
    ----------
    block
        Its name, or `WHOLE`.
    recipes
        Those whose shape fits, best first; a schedule may still refuse one.
    """

    block: str
    recipes: tuple[Recipe, ...]


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
    best = Schedule(function)
    for stage in stages(best, as_target(target)):
        best, _ = first_of(best, stage.recipes)
    return parallel(best, threads)


def stages(sch: Schedule, target: Target) -> list[Stage]:
    """Return the decisions for a function as it was written, in the order in which they are taken."""
    if not target.family.startswith("llvm/"):
        return []
    machine = machine_of(target)
    names = sch.block_names()
    leaves = {name: sch.block(name) for name in names}
    shared = Recipe("shared", Knobs(), lambda s, _: schedule_shared_rows(s, names))
    found = [Stage(WHOLE, (shared,))]
    for name, leaf in leaves.items():
        if factors(leaf) is not None:
            found.append(Stage(name, tuple(_sums(leaf, machine))))
    for name, leaf in leaves.items():  # they may have moved into loops of the sums
        found.append(Stage(name, tuple(_passes(leaf, machine))))
    if target.family in ("llvm/x86_64", "llvm/aarch64"):
        traffic = Recipe("traffic", Knobs(), lambda s, _: schedule_traffic(s))
        found.append(Stage(WHOLE, (traffic,)))
    return [stage for stage in found if stage.recipes]


def first_of(sch: Schedule, recipes: Sequence[Recipe]) -> tuple[Schedule, Recipe | None]:
    """Return a schedule with the first of some recipes that is not refused; the same one and None if all are."""
    for recipe in recipes:
        made = tried(sch, recipe, recipe.knobs.default)
        if made is not None:
            return made, recipe
    return sch, None


def tried(sch: Schedule, recipe: Recipe, choice: Choice) -> Schedule | None:
    """Return a copy of a schedule with a recipe; None if it is refused."""
    trial = sch.copy()
    try:
        recipe.apply(trial, choice)
        trial.function  # noqa: B018 - lowering may refuse, too
    except ScheduleError:
        return None
    return trial


def parallel(sch: Schedule, threads: int) -> Schedule:
    """Return a schedule with a parallel loop around each block that is worth it."""
    for name in sch.block_names() if threads > 1 else []:
        sch, _ = first_of(sch, [Recipe("threads", Knobs(), partial(_threads, name, threads))])
    return sch


def _threads(block: str, threads: int, sch: Schedule, _: Choice) -> None:
    schedule_threads(sch, block, threads)


def _sums(leaf: Leaf, machine: Machine) -> Iterator[Recipe]:
    """Yield the recipes for a sum of products, best first."""
    name = leaf.name
    tiles = _fitting(
        "tiles",
        lambda: contraction_knobs(leaf, machine),
        lambda s, c: schedule_contraction(s, name, c),
    )
    of = _product(leaf)
    even = of is None or of.n % machine.lanes(of.size_bytes) == 0
    if of is not None:
        panels = _fitting(
            "panels", lambda: product_knobs(of, machine), lambda s, c: schedule_product(s, of, c)
        )
        yield from (*panels, *tiles) if even else (*tiles, *panels)
    else:
        yield from tiles
    if even:
        windows = partial(window_knobs, leaf, machine)
        yield from _fitting("staged", windows, lambda s, c: _staged_window(s, name, c))
        yield from _fitting("window", windows, lambda s, c: schedule_window(s, name, c))


def _staged_window(sch: Schedule, block: str, choice: Choice) -> None:
    stages = [str(each) for each in sch.get_producers(block)]
    if not stages:
        raise ScheduleError(f"window of {block}: nothing is made for it")
    schedule_window(sch, block, choice)
    for stage in stages:
        schedule_stage(sch, stage, block)


def _passes(leaf: Leaf, machine: Machine) -> Iterator[Recipe]:
    """Yield the recipes for a block that goes over its operands once, or fits nothing else."""
    name, size = leaf.name, leaf.buffer.dtype.value_bytes
    extents = [each.extent for each in leaf.iters]
    reduced = [each.reduce for each in leaf.iters]
    last = extents[-1] if extents else 1
    if leaf.reduction is None:
        yield from _fitting(
            "lanes",
            lambda: elementwise_knobs(leaf, machine),
            lambda s, c: schedule_elementwise(s, name, last, c),
        )
    elif sum(reduced) == 1 and reduced[-1]:
        yield from _fitting(
            "partial",
            lambda: row_reduction_knobs(machine, last, size),
            lambda s, c: schedule_row_reduction(s, name, c),
        )
    yield from _fitting(
        "nest", lambda: nest_knobs(leaf, machine), lambda s, c: schedule_nest(s, name, c)
    )


def _fitting(
    name: str, knobs: Callable[[], Knobs], apply: Callable[[Schedule, Choice], None]
) -> list[Recipe]:
    """Return a recipe; nothing if the block has not its shape."""
    try:
        return [Recipe(name, knobs(), apply)]
    except ScheduleError:
        return []


def _product(leaf: Leaf) -> Product | None:
    """Return the plain product, in iterators i, j, k, that a block computes; None if it is none."""
    reduced = [each.reduce for each in leaf.iters]
    pair = factors(leaf)
    if reduced != [False, False, True] or pair is None:
        return None
    i, j, k = (each.var for each in leaf.iters)
    a, b = (load.indices for load in pair)
    if leaf.indices != (i, j) or a not in ((i, k), (k, i)) or b not in ((k, j), (j, k)):
        return None
    m, n, depth = (each.extent for each in leaf.iters)
    types = (pair[0].dtype, pair[1].dtype)
    return Product(leaf.name, m, n, depth, types, leaf.buffer.dtype, b == (j, k), a == (k, i))
