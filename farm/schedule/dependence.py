"""Dependences: which iterations must stay in order.

Owns: the test whether two accesses can meet in one element, and what follows for loops. Does not own: what is done
about it (the primitives).

Invariant: "no dependence" is a proof; where an index is beyond the analysis, accesses count as meeting.

Notes
-----
Banerjee's inequalities with directions (Banerjee, "Dependence Analysis", 1997), on digits instead of whole variables:
``(f // 16, f % 16)`` differs whenever ``f`` does. Each dimension is tested by its own interval and greatest common
divisor.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from farm.core.recent import Recent
from farm.ir.affine import Affine, Digit, affine
from farm.ir.expr import Expr, Var
from farm.ir.printer import print_expr
from farm.ir.stmt import For
from farm.schedule.block import Leaf, substitute
from farm.schedule.tree import Place


class Order(enum.Enum):
    """How the iteration of one access relates to the other's in one loop."""

    SAME = "="
    EARLIER = "<"
    LATER = ">"
    ANY = "*"


@dataclass(frozen=True, slots=True)
class Access:
    """A load or store that a block makes.

    Attributes
    ----------
    index
        In loop variables.
    forms
        The index in affine form; None where a dimension has none.
    """

    leaf: Leaf
    loops: tuple[For, ...]
    path: tuple[int, ...]
    buffer: str
    index: tuple[Expr, ...]
    forms: tuple[Affine | None, ...]
    is_write: bool

    def __str__(self) -> str:
        """Return what it does in words."""
        verb = "stores" if self.is_write else "loads"
        return f"{self.leaf.name} {verb} {self.buffer}[{', '.join(map(print_expr, self.index))}]"


def accesses(places: Sequence[Place]) -> list[Access]:
    """Return all accesses of blocks, the store of each first."""
    found = []
    for place in places:
        leaf = place.node
        if isinstance(leaf, Leaf):
            found += [
                Access(leaf, place.loops, place.path, *each)
                for each in _own(leaf, tuple((x.var, x.extent) for x in place.loops))
            ]
    return found


_Made = tuple[str, tuple[Expr, ...], tuple[Affine | None, ...], bool]
_Extents = tuple[tuple[Var, int], ...]
_known: Recent[tuple[int, _Extents], tuple[Leaf, tuple[_Made, ...]]] = Recent(1024)
"""What blocks access, by their identity: comparing blocks takes longer than analysing them."""


def _own(leaf: Leaf, extents: _Extents) -> tuple[_Made, ...]:
    """Return buffer, index, forms, and whether it is a store, of each access of a block inside loops."""
    key = (id(leaf), extents)
    known = _known.get(key)
    if known is None:
        known = (leaf, tuple(_analysed(leaf, dict(extents))))
        _known.keep(key, known)
    return known[1]


def _analysed(leaf: Leaf, extents: Mapping[Var, int]) -> Iterator[_Made]:
    bound = leaf.bound

    def made(buffer: str, indices: tuple[Expr, ...], is_write: bool) -> _Made:
        index = tuple(substitute(each, bound) for each in indices)
        return buffer, index, tuple(affine(each, extents) for each in index), is_write

    store = made(leaf.buffer.name, leaf.indices, True)
    yield store
    if leaf.reduction is not None:
        yield (*store[:3], False)
    for load in leaf.reads():
        yield made(load.buffer.name, load.indices, False)


def conflicting(found: Sequence[Access]) -> Iterator[tuple[Access, Access]]:
    """Yield the ordered pairs of accesses to one buffer, a store among them, each kind of meeting once."""
    by_buffer: dict[str, list[Access]] = {}
    stores = {(id(access.leaf), id(access.index)) for access in found if access.is_write}
    for access in found:
        # What a reduction loads of its own element meets all that its store meets.
        if access.is_write or (id(access.leaf), id(access.index)) not in stores:
            by_buffer.setdefault(access.buffer, []).append(access)
    for group in by_buffer.values():
        for a, b in itertools.product(group, repeat=2):
            if a.is_write or b.is_write:
                yield a, b


def common_loops(a: Access, b: Access) -> tuple[For, ...]:
    """Return the loops around both accesses, outermost first."""
    count = 0
    for ours, others in zip(a.loops, b.loops, strict=False):
        if ours.var != others.var:
            break
        count += 1
    return a.loops[:count]


def can_meet(a: Access, b: Access, order: Mapping[Var, Order]) -> bool:
    """Tell whether an instance of `a` and one of `b` may touch one element.

    Parameters
    ----------
    order
        How `a`'s iteration relates to `b`'s in the loops around both; those that are not given are free.
    """
    both = {loop.var: loop.extent for loop in common_loops(a, b)}
    wanted = {var: order.get(var, Order.ANY) for var in both}
    if any(way in (Order.EARLIER, Order.LATER) and both[var] == 1 for var, way in wanted.items()):
        return False
    dims = [
        (x, y) for x, y in zip(a.forms, b.forms, strict=True) if x is not None and y is not None
    ]
    cuts = _cuts(dims, both)
    choices = [_digit_orders(var, way, cuts[var]) for var, way in wanted.items()]
    for chosen in itertools.product(*choices):
        ways: dict[tuple[Var, int], Order] = {}
        for part in chosen:
            ways.update(part)
        if all(_dimension(x, y, both, cuts, ways) for x, y in dims):
            return True
    return False


def _cuts(dims: Sequence[tuple[Affine, Affine]], both: Mapping[Var, int]) -> dict[Var, list[int]]:
    """Return for each shared variable where its digits begin, finest first; one digit if they do not nest."""
    places: dict[Var, set[int]] = {var: {1, extent} for var, extent in both.items()}
    for pair in dims:
        for form in pair:
            for digit, _ in form.terms:
                if digit.var in places:
                    places[digit.var] |= {digit.lower, digit.lower * digit.extent}
    cuts = {}
    for var, found in places.items():
        extent = both[var]
        chain = [place for place in sorted(found) if place < extent]
        nested = all(high % low == 0 for low, high in itertools.pairwise(chain))
        cuts[var] = chain if nested else []
    return cuts


def _digit_orders(var: Var, way: Order, cuts: list[int]) -> list[dict[tuple[Var, int], Order]]:
    """Return the ways in which digits can relate so that the variables relate as wanted."""
    if way in (Order.SAME, Order.ANY) or not cuts:
        return [{(var, at): way for at in cuts}]
    ways = []
    for number, at in enumerate(cuts):
        chosen = {(var, high): Order.SAME for high in cuts[number + 1 :]}
        chosen |= {(var, at): way}
        ways.append(chosen | {(var, low): Order.ANY for low in cuts[:number]})
    return ways


def _dimension(
    a: Affine,
    b: Affine,
    both: Mapping[Var, int],
    cuts: Mapping[Var, list[int]],
    ways: Mapping[tuple[Var, int], Order],
) -> bool:
    """Tell whether ``b - a`` can be 0 in one dimension."""
    low = high = b.constant - a.constant
    steps: list[int] = []
    ours, a_rest = _refined(a, both, cuts)
    others, b_rest = _refined(b, both, cuts)
    for digit, k in a_rest:
        ours_low, ours_high = sorted((0, -k * (digit.extent - 1)))
        low, high = low + ours_low, high + ours_high
        steps.append(k)
    for digit, k in b_rest:
        its_low, its_high = sorted((0, k * (digit.extent - 1)))
        low, high = low + its_low, high + its_high
        steps.append(k)
    for place in ours.keys() | others.keys():
        var, at = place
        chain = cuts[var]
        after = chain[chain.index(at) + 1] if at != chain[-1] else None
        extent = after // at if after is not None else -(-both[var] // at)
        x, y = ours.get(place, 0), others.get(place, 0)
        spread = _spread(x, y, extent, ways[place])
        if spread is None:
            return False
        low, high = low + spread[0], high + spread[1]
        steps.extend([y - x] if ways[place] is Order.SAME else [x, y])
    if not low <= 0 <= high:
        return False
    common = math.gcd(*steps) if steps else 0
    constant = b.constant - a.constant
    return constant == 0 if common == 0 else constant % common == 0


def _refined(
    form: Affine, both: Mapping[Var, int], cuts: Mapping[Var, list[int]]
) -> tuple[dict[tuple[Var, int], int], list[tuple[Digit, int]]]:
    """Return coefficients by digit of shared variables, and the other terms."""
    shared: dict[tuple[Var, int], int] = {}
    rest = []
    for digit, k in form.terms:
        if digit.var not in both or not cuts[digit.var]:
            rest.append((digit, k))
            continue
        for at in cuts[digit.var]:
            if digit.lower <= at < digit.lower * digit.extent:
                place = (digit.var, at)
                shared[place] = shared.get(place, 0) + k * (at // digit.lower)
    return shared, rest


def _spread(x: int, y: int, extent: int, way: Order) -> tuple[int, int] | None:
    """Return the range of ``y * b - x * a`` for two digits below `extent` in an order; None if it is impossible."""
    most = extent - 1
    match way:
        case Order.SAME:
            ends = [0, (y - x) * most]
        case Order.ANY:
            ends = [y * b - x * a for a in (0, most) for b in (0, most)]
        case _ if most == 0:
            return None
        case Order.EARLIER:  # a < b; the corners of that triangle
            ends = [y * b - x * a for a, b in ((0, 1), (0, most), (most - 1, most))]
        case Order.LATER:
            ends = [y * b - x * a for a, b in ((1, 0), (most, 0), (most, most - 1))]
    return min(ends), max(ends)
