"""Regions: which part of a buffer is touched while some loops stand still.

Owns: boxes of elements, and the proof that a part is written before it is read. Does not own: what is done with it.

Invariant: a box holds every element that is touched; a box that counts as written is written whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from farm.ir.affine import Affine, Digit, affine, constant
from farm.ir.expr import Compare, CompareOp, Expr, Var
from farm.ir.stmt import Block, For, Stmt
from farm.schedule.block import Leaf, variables
from farm.schedule.dependence import Access, accesses
from farm.schedule.tree import Place, State


@dataclass(frozen=True, slots=True)
class Span:
    """The indices ``[low, low + extent)`` of one dimension; `low` in variables that stand still."""

    low: Affine
    extent: int


Box = tuple[Span, ...]


def box(found: Sequence[Access], fixed: Iterable[Var], shape: Sequence[int]) -> Box:
    """Return a box that holds all that some accesses to one buffer touch; whole dimensions where unsure."""
    still = set(fixed)
    spans = []
    for axis, size in enumerate(shape):
        span = _union([_span(access, axis, still) for access in found])
        full = Span(constant(0), size)
        spans.append(full if span is None or span.extent >= size else span)
    return tuple(spans)


def _span(access: Access, axis: int, fixed: set[Var]) -> Span | None:
    form = access.forms[axis]
    if form is None:
        return None
    base, moving = form.parts(fixed)
    reach = moving.interval()
    most = min([reach.high, *_below(access, form, base)])
    return Span(base + constant(reach.low), max(most - reach.low + 1, 1))


def _below(access: Access, form: Affine, base: Affine) -> Iterator[int]:
    """Yield what the moving part of an index stays at or below by the guards of its block."""
    extents = {loop.var: loop.extent for loop in access.loops}
    for guard in access.leaf.guards:
        if not isinstance(guard, Compare) or guard.op is not CompareOp.LT:
            continue
        less, limit = affine(guard.a, extents), affine(guard.b, extents)
        if less is None or limit is None:
            continue
        most = form - less + limit - base
        if not most.terms:
            yield most.constant - 1


def _union(spans: Sequence[Span | None]) -> Span | None:
    first = spans[0]
    if first is None:
        return None
    low, high = 0, first.extent
    for span in spans[1:]:
        if span is None:
            return None
        offset = span.low - first.low
        if offset.terms:
            return None
        low, high = min(low, offset.constant), max(high, offset.constant + span.extent)
    return Span(first.low + constant(low), high - low)


def written_box(access: Access, fixed: Iterable[Var]) -> Box | None:
    """Return the box that a store fills, but for what lies outside the buffer; None if that is not provable.

    Guards that speak of fixed variables alone are taken to hold: else nothing is stored.
    """
    leaf, still, used = access.leaf, set(fixed), set[Digit]()
    tests = [guard for guard in leaf.guards if not still.issuperset(variables(guard))]
    if leaf.conditions or (tests and not (_fills(leaf) and _keep_inside(access, tests))):
        return None
    spans = []
    for form in access.forms:
        if form is None:
            return None
        base, moving = form.parts(still)
        reach = _reach(moving, used)
        if reach is None:
            return None
        spans.append(Span(base, reach))
    return tuple(spans) if _move_freely(used) else None


def _keep_inside(access: Access, guards: Iterable[Expr]) -> bool:
    """Tell whether guards leave out nothing but what some iterator of the block does not have."""
    extents = {loop.var: loop.extent for loop in access.loops}
    iters = [
        (each, form)
        for each, value in zip(access.leaf.iters, access.leaf.bindings, strict=True)
        if (form := affine(value, extents)) is not None
    ]
    return all(
        any(_outside(guard, form, each.extent, extents) for each, form in iters) for guard in guards
    )


def _outside(guard: Expr, form: Affine, extent: int, extents: Mapping[Var, int]) -> bool:
    """Tell whether a form is not in ``[0, extent)`` wherever a guard fails."""
    if not isinstance(guard, Compare) or guard.op not in (CompareOp.LT, CompareOp.GE):
        return False
    left, right = affine(guard.a, extents), affine(guard.b, extents)
    if left is None or right is None or not (about := left - right).terms:
        return False
    digit, k = about.terms[0]
    factor, rest = divmod(dict(form.terms).get(digit, 0), k)
    if rest or factor <= 0:
        return False
    others = (form - about.scaled(factor)).interval()
    if guard.op is CompareOp.LT:  # where it fails, `about` is 0 at least
        return others.low >= extent
    return others.high - factor < 0


def _fills(leaf: Leaf) -> bool:
    """Tell whether a block's own iterators, all in all, store every element of its buffer."""
    extents = {each.var: each.extent for each in leaf.iters}
    used = set[Digit]()
    for index, size in zip(leaf.indices, leaf.buffer.shape, strict=True):
        form = affine(index, extents)
        if form is None or form.constant or _reach(form, used) != size:
            return False
    return _move_freely(used)


def _reach(moving: Affine, used: set[Digit]) -> int | None:
    """Return how many values in a row a form takes from its constant on, each of its digits used once only."""
    reach = 1
    for digit, k in reversed(moving.terms):  # the smallest step first
        if not 0 < k <= reach or digit in used:
            return None
        used.add(digit)
        reach += k * (digit.extent - 1)
    return reach


def _move_freely(digits: Iterable[Digit]) -> bool:
    """Tell whether digits take every combination of their values."""
    order = sorted(digits, key=lambda digit: (digit.var.name, digit.lower))
    for low, high in itertools.pairwise(order):
        if low.var != high.var:
            continue
        overlap = low.lower * low.extent > high.lower
        if (
            overlap or high.size < high.lower * high.extent
        ):  # the last high value may have few low ones
            return False
    return True


def covers(written: Box, read: Box, shape: Sequence[int]) -> bool:
    """Tell whether a written box holds the part of a read one that lies inside the buffer."""
    return all(_covers(w, r, size) for w, r, size in zip(written, read, shape, strict=True))


def _covers(w: Span, r: Span, size: int) -> bool:
    if not w.low.terms:
        low, high = w.low.constant, w.low.constant + w.extent
        if low <= 0 and high >= size:
            return True
        if not r.low.terms:
            first, last = max(r.low.constant, 0), min(r.low.constant + r.extent, size)
            return low <= first and last <= high
    offset = r.low - w.low
    return not offset.terms and offset.constant >= 0 and offset.constant + r.extent <= w.extent


def private_to(state: State, loop_place: Place, buffer: str) -> bool:
    """Tell whether each iteration of a loop writes all that it reads of a buffer, which nothing else reads.

    Such a buffer can be allocated anew in every iteration.
    """
    loop = loop_place.node
    assert isinstance(loop, For)
    if buffer not in state.inner:
        return False
    own = [a for a in accesses(state.leaves()) if a.buffer == buffer]
    if any(a.path[: len(loop_place.path)] != loop_place.path for a in own):
        return False
    fixed = frozenset((*(outer.var for outer in loop_place.loops), loop.var))
    covering = _Covering(state.inner[buffer].shape, len({a.path for a in own if a.is_write}) == 1)
    # what a reduction starts by itself, in this very iteration, needs no earlier store
    left = [a for a in own if a.is_write or not (_starts_itself(a) and _starts_inside(a, fixed))]
    return covering.holds(loop.body, (*loop_place.path, 0), left, fixed)


@dataclass(frozen=True, slots=True)
class _Covering:
    """The question whether each read in one run of a statement follows stores of all its elements."""

    shape: tuple[int, ...]
    one_writer: bool

    def holds(
        self, stmt: Stmt, path: tuple[int, ...], own: list[Access], fixed: frozenset[Var]
    ) -> bool:
        reads = [a for a in own if not a.is_write and a.path[: len(path)] == path]
        match stmt:
            case _ if not reads:
                return True
            case For(var, _, body):
                return self.holds(body, (*path, 0), own, fixed | {var})
            case Block(stmts):
                return all(
                    self.child(child, (*path, number), own, fixed)
                    for number, child in enumerate(stmts)
                )
            case _:
                return False

    def child(
        self, stmt: Stmt, path: tuple[int, ...], own: list[Access], fixed: frozenset[Var]
    ) -> bool:
        """Tell it for a child of a sequence, which may rely on the children before."""
        mine = [a for a in own if a.path[: len(path)] == path and not a.is_write]
        if not mine:
            return True
        wanted = box(mine, fixed, self.shape)
        parent, number = path[:-1], path[-1]
        for access in own:
            before = access.path[: len(parent)] == parent and access.path[len(parent)] < number
            runs = self.one_writer or all(
                guard in read.leaf.guards for guard in access.leaf.guards for read in mine
            )
            if access.is_write and before and runs:
                filled = written_box(access, fixed)
                if filled is not None and covers(filled, wanted, self.shape):
                    return True
        return self.holds(stmt, path, own, fixed)


def _starts_itself(read: Access) -> bool:
    reduction = read.leaf.reduction
    own = read.buffer == read.leaf.buffer.name and read.index == read.leaf.at()
    return reduction is not None and reduction.init is not None and own


def _starts_inside(read: Access, fixed: frozenset[Var]) -> bool:
    return not read.leaf.vars_of(reduce=True) & fixed
