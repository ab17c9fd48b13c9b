"""What loops may be, given the dependences between their iterations.

Owns: the checks that primitives share, and their words. Does not own: the test itself (`dependence`).

Invariant: what passes gives the results of the original order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from farm.core.recent import Recent
from farm.errors import ScheduleError
from farm.ir.expr import BinaryOp, Var
from farm.ir.stmt import For, LoopKind
from farm.schedule.block import Leaf
from farm.schedule.dependence import Access, Order, accesses, can_meet, common_loops, conflicting
from farm.schedule.regions import private_to
from farm.schedule.tree import Place, State


def below(state: State, place: Place) -> list[Place]:
    """Return the places of the blocks inside a node."""
    return [leaf for leaf in state.leaves() if leaf.path[: len(place.path)] == place.path]


def may_reorder(leaf: Leaf, state: State) -> bool:
    """Tell whether the order in which a reduction combines its values changes nothing, or may change it."""
    assert leaf.reduction is not None
    exact = leaf.buffer.dtype.is_integer or leaf.reduction.op in (BinaryOp.AND, BinaryOp.OR)
    return exact or state.function.fast_math.reassociate


def carried(state: State, place: Place, kind: LoopKind) -> str | None:
    """Return the dependence between iterations of a loop, in words; None if there provably is none."""
    loop = place.node
    assert isinstance(loop, For)
    if loop.extent == 1:
        return None
    inside = accesses(below(state, place))
    private: dict[str, bool] = {}
    outer = {each.var: Order.SAME for each in place.loops}
    for a, b in conflicting(inside):
        if not can_meet(a, b, {**outer, loop.var: Order.EARLIER}):
            continue
        if a.buffer not in private:
            private[a.buffer] = kind is LoopKind.PARALLEL and private_to(state, place, a.buffer)
        if not private[a.buffer]:
            return _dependence(a, b)
    return None


def _dependence(a: Access, b: Access) -> str:
    if a.leaf.name == b.leaf.name and a.leaf.reduction is not None and a.index == b.index:
        return f"every iteration updates {a.leaf.buffer.name} ({a})"
    return (
        f"{a}, and a later iteration of it where {b}" if a.leaf is b.leaf else f"{a}, and {b} later"
    )


def check_kinds(state: State) -> None:
    """Refuse a state in which a parallel or vectorized loop has dependent iterations.

    Raises
    ------
    ScheduleError
        Names the loop and the dependence.
    """
    for place in state.places():
        loop = place.node
        if not isinstance(loop, For):
            continue
        if loop.kind is LoopKind.PARALLEL:
            check_kind(state, place, loop.kind)
        elif loop.kind is LoopKind.VECTORIZED:
            check_lanes(state, place, loop)


def check_lanes(state: State, place: Place, vector: For) -> None:
    """Refuse dependent iterations of a loop that is vectorized, or is made into such a one; see `check_kinds`.

    Parameters
    ----------
    vector
        The vectorized loop: the one at `place`, or one that differs from it in its kind alone.
    """
    # Only loops around and blocks inside matter, so that each is checked once, not after every step.
    key = (id(vector), tuple((x.var, x.extent) for x in place.loops))
    if _vectors.get(key) is None:
        check_kind(state, place, LoopKind.VECTORIZED)
        _vectors.keep(key, vector)


_vectors: Recent[tuple[int, tuple[tuple[Var, int], ...]], For] = Recent(1024)
"""Vectorized loops whose iterations are independent, by identity."""


def check_kind(state: State, place: Place, kind: LoopKind) -> None:
    """Refuse a kind for one loop; see `check_kinds`."""
    loop = place.node
    assert isinstance(loop, For)
    problem = carried(state, place, kind)
    if problem is not None:
        raise ScheduleError(
            f"{_VERBS[kind]} of loop {loop.var.name}: its iterations depend on each other: {problem}; "
            f"choose a loop of independent iterations"
        )


_VERBS = {LoopKind.PARALLEL: "parallel", LoopKind.VECTORIZED: "vectorize"}


def reordering_problem(
    state: State, places: Sequence[Place], old: Sequence[For], new: Sequence[For]
) -> str | None:
    """Return the dependence that another order of nested loops would break; None if there provably is none.

    Parameters
    ----------
    places
        The blocks inside.
    old, new
        All loops around the blocks' common ancestor, outermost first, before and after.
    """
    found = accesses(places)
    position = {loop.var: number for number, loop in enumerate(new)}
    for a, b in conflicting(found):
        shared = common_loops(a, b)[: len(old)]
        for p, before in enumerate(shared):
            for after in shared[p + 1 :]:
                if position[after.var] > position[before.var]:
                    continue
                ahead = [x.var for x in shared if position[x.var] < position[after.var]]
                order = dict.fromkeys([x.var for x in shared[:p]] + ahead, Order.SAME)
                order |= {before.var: Order.EARLIER, after.var: Order.LATER}
                if _breaks(state, a, b, order, (before.var, after.var), shared):
                    return _order_broken(a, b, before, after)
    return None


def _order_broken(a: Access, b: Access, before: For, after: For) -> str:
    if a.leaf.name == b.leaf.name and a.leaf.reduction is not None and a.index == b.index:
        return (
            f"{a.leaf.name} would combine its {a.leaf.buffer.dtype} values in another order "
            f"({before.var.name} inside {after.var.name}), which rounds differently; "
            f"allow it with fast_math(reassociate=True)"
        )
    return f"{a}, and {b} in a later iteration, which would run first"


def _breaks(
    state: State,
    a: Access,
    b: Access,
    order: Mapping[Var, Order],
    pair: tuple[Var, Var],
    shared: Sequence[For],
) -> bool:
    """Tell whether a reversed order of `a` and `b` matters."""
    if not can_meet(a, b, order):
        return False
    leaf = a.leaf
    own = a.buffer == leaf.buffer.name and b.leaf.name == leaf.name and leaf.reduction is not None
    if not own or not may_reorder(leaf, state):
        return True
    reduced, spatial = leaf.vars_of(reduce=True), leaf.vars_of(reduce=False)
    if any(var not in reduced or var in spatial for var in pair):
        return True
    # steps of one reduction may change places; those of another element must not meet them
    others = [x.var for x in shared if x.var not in reduced and x.var not in order]
    return any(
        can_meet(a, b, {**order, var: way})
        for var in others
        for way in (Order.EARLIER, Order.LATER)
    )


def reads_and_writes(leaves: Sequence[Leaf]) -> tuple[set[str], set[str]]:
    """Return the names of the buffers that blocks read, and of those that they write."""
    return (
        {name for leaf in leaves for name in leaf.buffers_read()},
        {leaf.buffer.name for leaf in leaves},
    )


def between(state: State, first: Place, last: Place) -> Iterator[Leaf]:
    """Yield the blocks after `first` (and all inside it) and before `last`, in program order."""
    for place in state.leaves():
        inside_first = place.path[: len(first.path)] == first.path
        inside_last = place.path[: len(last.path)] == last.path
        if first.path < place.path < last.path and not inside_first and not inside_last:
            assert isinstance(place.node, Leaf)
            yield place.node
