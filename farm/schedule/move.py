"""compute_at, reverse_compute_at: blocks computed inside the loops of others.

Owns: which part is computed there, and whether that gives the same. Does not own: the loops made for it
(`placement`), or where the buffer is allocated then (`lower`).

Invariant: what a moved block reads is complete where it runs, and what it writes is complete where it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from farm.ir.affine import affine, constant
from farm.ir.expr import Var
from farm.ir.stmt import Block, For, LoopKind, Stmt
from farm.schedule.block import Leaf
from farm.schedule.dependence import Access, Order, accesses, can_meet, common_loops
from farm.schedule.placement import loops_around, plain_iters, shared_guards
from farm.schedule.primitive import Result, primitive, refuse
from farm.schedule.regions import Span, box, covers, written_box
from farm.schedule.tree import Place, State, leaves_of, rewrite


def inside(place: Place, outer: Place) -> bool:
    """Tell whether a place is inside another."""
    return place.path[: len(outer.path)] == outer.path


def shared_loops(a: Place, b: Place) -> list[For]:
    """Return the loops around both places."""
    loops = []
    for ours, others in zip(a.loops, b.loops, strict=False):
        if ours.var != others.var:
            break
        loops.append(ours)
    return loops


def _target(what: str, where: str, state: State, leaf: Leaf, loop: str) -> tuple[For, Place]:
    node, at = state.loop(loop)
    for each in (*at.loops, node):
        if each.kind is LoopKind.VECTORIZED:
            raise refuse(what, where, f"loop {each.var.name} is vectorized; do this before")
    if leaf in leaves_of(node):
        raise refuse(what, where, f"{leaf.name} is inside that loop already; choose another's")
    if leaf.conditions:
        raise refuse(what, where, f"{leaf.name} runs under a condition of the function")
    return node, at


@primitive()
def compute_at(state: State, block: str, loop: str, preserve_unit_loops: bool = False) -> Result:
    """Compute a block inside a loop of its consumer; see `Schedule.compute_at`."""
    what, where = "compute_at", f"block {block} at loop {loop}"
    leaf, place = state.leaf(block)
    node, at = _target(what, where, state, leaf, loop)
    name = leaf.buffer.name
    if at.path < place.path:
        raise refuse(what, where, f"{loop} comes before {block}; use reverse_compute_at")
    if name not in state.inner:
        raise refuse(what, where, f"{name} is a parameter, all of which callers see")
    if len(state.writers(name)) > 1:
        others = ", ".join(x.name for x in state.writers(name) if x.name != block)
        raise refuse(
            what, where, f"{name} is also stored by {others}; do this before it is split up"
        )
    if leaf.reduction is not None and leaf.reduction.init is None:
        raise refuse(what, where, f"{block} updates {name}, so it cannot run again for an element")
    axes = plain_iters(leaf)
    if axes is None:
        raise refuse(
            what, where, f"{block} does not store element by element over its own iterators"
        )
    _check_sources(what, where, state, leaf, place, at)
    reads = [a for a in accesses(state.leaves()) if a.buffer == name and a.leaf.name != block]
    if not reads:
        raise refuse(what, where, f"nothing reads {name}")
    for read in reads:
        if read.path[: len(at.path)] != at.path:
            raise refuse(
                what,
                where,
                f"{read.leaf.name} reads {name} too, outside that loop; choose a loop around both",
            )
    fixed = [*(outer.var for outer in at.loops), node.var]
    part = box(reads, fixed, leaf.buffer.shape)
    wanted = {var: part[axis] for var, axis in axes.items()}
    placed = loops_around(
        state,
        leaf,
        wanted,
        unit=preserve_unit_loops,
        outer=[*at.loops, node],
        tests=shared_guards([read.leaf for read in reads], fixed),
    )
    made = state.with_body(rewrite(state.body, leaf, []))
    made = _inserted(made, loop, placed, lambda x: name in x.buffers_read(), after=False)
    _check_stored(what, where, made, block)
    return made, []


def _check_sources(
    what: str, where: str, state: State, leaf: Leaf, place: Place, at: Place
) -> None:
    """Refuse if something that a block reads is stored between its old place and the end of the new one."""
    sources = leaf.buffers_read() - {leaf.buffer.name}
    for other in state.leaves():
        node = other.node
        assert isinstance(node, Leaf)
        if node.buffer.name not in sources:
            continue
        later = place.path < other.path < at.path
        again = len(shared_loops(other, place)) > len(shared_loops(other, at))
        if later or again or inside(other, at):
            raise refuse(
                what,
                where,
                f"it reads {node.buffer.name}, which {node.name} stores after {leaf.name}'s old place or in that "
                f"loop; move {leaf.name} before {node.name} is moved there",
            )


def _check_stored(
    what: str, where: str, state: State, block: str, proved: Collection[str] = ()
) -> None:
    """Refuse if a moved block may load what the loops that it shares with a source have not stored.

    A source that was moved before computes there what the block loaded then. The block's new loops may go further:
    over iterations that a guard leaves out of each of its readers, but not of the block.
    """
    leaf, _ = state.leaf(block)
    sources = (leaf.buffers_read() & set(state.inner)) - {leaf.buffer.name, *proved}
    if not sources:
        return
    everything = accesses(state.leaves())
    for name in sorted(sources):
        stores = [a for a in everything if a.is_write and a.buffer == name]
        loads = [a for a in everything if not a.is_write and a.buffer == name and a.leaf is leaf]
        shared = max((common_loops(a, loads[0]) for a in stores), key=len)
        fixed = [loop.var for loop in shared]
        wanted = box(loads, fixed, state.inner[name].shape)
        filled = [written_box(a, fixed) for a in stores]
        if shared and not any(x and covers(x, wanted, state.inner[name].shape) for x in filled):
            raise refuse(
                what,
                where,
                f"there it may load elements of {name} that an iteration of {shared[-1].var.name} does not store; "
                f"move it before {stores[0].leaf.name}, or choose factors that leave no tail",
            )


def _inserted(
    state: State, loop: str, placed: Stmt, anchor: Callable[[Leaf], bool], *, after: bool
) -> State:
    """Put loops into the body of another: before the first part with an anchor in it, or after the last."""
    node, _ = state.loop(loop)
    parts = list(node.body.stmts) if isinstance(node.body, Block) else [node.body]
    hits = [n for n, part in enumerate(parts) if any(map(anchor, leaves_of(part)))]
    parts.insert(hits[-1] + 1 if after else hits[0], placed)
    return state.with_body(rewrite(state.body, node.body, [Block(tuple(parts))]))


@primitive()
def reverse_compute_at(
    state: State, block: str, loop: str, preserve_unit_loops: bool = False
) -> Result:
    """Compute a block inside a loop of its producer; see `Schedule.reverse_compute_at`."""
    what, where = "reverse_compute_at", f"block {block} at loop {loop}"
    leaf, place = state.leaf(block)
    node, at = _target(what, where, state, leaf, loop)
    if place.path < at.path:
        raise refuse(what, where, f"{loop} comes after {block}; use compute_at")
    stored = {x.buffer.name for x in leaves_of(node)}
    sources = sorted(leaf.buffers_read() & stored)
    if not sources:
        raise refuse(what, where, f"nothing that {block} reads is stored in that loop")
    _check_free(what, where, state, leaf, place, at)
    fixed = [*(outer.var for outer in at.loops), node.var]
    everything = accesses(state.leaves())
    wanted: dict[Var, Span] = {}
    for name in sources:
        writes = [a for a in everything if a.buffer == name and a.is_write]
        _check_complete(what, where, leaf, name, writes, at, everything)
        within = [a for a in writes if a.path[: len(at.path)] == at.path]
        part = written_box(within[-1], fixed)
        if part is None or any(written_box(a, fixed) != part for a in within):
            raise refuse(
                what, where, f"which part of {name} is complete in an iteration is not provable"
            )
        _narrow(what, where, leaf, name, part, wanted)
    for each in leaf.iters:
        span = wanted.get(each.var)
        if each.reduce and span is not None and (span.low.terms or span.extent < each.extent):
            raise refuse(
                what,
                where,
                f"{block} reduces over all of {each.var.name[2:]}, of which an iteration has a part",
            )
    placed = loops_around(state, leaf, wanted, unit=preserve_unit_loops, outer=[*at.loops, node])
    made = state.with_body(rewrite(state.body, leaf, []))
    made = _inserted(made, loop, placed, lambda x: x.buffer.name in sources, after=True)
    _check_stored(what, where, made, block, sources)
    return made, []


def _check_free(what: str, where: str, state: State, leaf: Leaf, place: Place, at: Place) -> None:
    """Refuse if a block between cares whether this one runs earlier."""
    own, reads = leaf.buffer.name, leaf.buffers_read()
    for other in state.leaves():
        node = other.node
        assert isinstance(node, Leaf)
        if node is leaf:
            continue
        within = inside(other, at)
        between = at.path < other.path < place.path and not within
        touches = node.buffer.name == own or own in node.buffers_read()
        if (within or between) and touches:
            raise refuse(
                what, where, f"{node.name} uses {own} before {leaf.name} would have stored it all"
            )
        if between and node.buffer.name in reads:
            raise refuse(
                what,
                where,
                f"it reads {node.buffer.name}, which {node.name} stores after that loop",
            )


def _check_complete(
    what: str,
    where: str,
    leaf: Leaf,
    name: str,
    writes: Sequence[Access],
    at: Place,
    everything: Sequence[Access],
) -> None:
    """Refuse unless each element of a buffer is stored in one iteration of the loop, for good."""
    within = [a for a in writes if a.path[: len(at.path)] == at.path]
    loops = [*at.loops, at.node]
    order: dict[Var, Order] = {}
    for loop in loops:
        assert isinstance(loop, For)
        for a in within:
            for b in within:
                if can_meet(a, b, {**order, loop.var: Order.EARLIER}):
                    raise refuse(
                        what,
                        where,
                        f"{name} is not complete there: {b.leaf.name} stores an element of it again in later "
                        f"iterations of {loop.var.name}; choose a loop outside it",
                    )
        order[loop.var] = Order.SAME
    reads = [
        a for a in everything if a.leaf.name == leaf.name and a.buffer == name and not a.is_write
    ]
    shape = (within[-1].leaf.buffer).shape
    whole = written_box(within[-1], ())
    if whole is None or not covers(whole, box(reads, (), shape), shape):
        raise refuse(
            what, where, f"{name} is not provably all stored in the loops of {within[-1].leaf.name}"
        )


def _narrow(
    what: str,
    where: str,
    leaf: Leaf,
    name: str,
    part: Sequence[Span],
    wanted: dict[Var, Span],
) -> None:
    """Find the iterations of a block whose loads of a buffer lie in a part of it."""
    extents = {each.var: each.extent for each in leaf.iters}
    found: dict[Var, Span] = {}
    for load in [load for load in leaf.reads() if load.buffer.name == name]:
        seen: dict[Var, Span] = {}
        for axis, index in enumerate(load.indices):
            form = affine(index, extents)
            if part[axis].extent >= load.buffer.shape[axis] and not part[axis].low.terms:
                continue
            if form is None or len(form.terms) != 1 or form.terms[0][1] != 1:
                raise refuse(
                    what,
                    where,
                    f"its load of {name} is no plain index of one iterator in dimension {axis}",
                )
            digit = form.terms[0][0]
            if digit.lower != 1 or not digit.is_top or digit.var in seen:
                raise refuse(
                    what, where, f"its load of {name} is no plain index in dimension {axis}"
                )
            size = load.buffer.shape[axis]
            if form.constant < 0 or form.constant + extents[digit.var] > size:
                # Guarded loads: the iterations whose index lies outside are in the part of no iteration of the loop.
                raise refuse(
                    what,
                    where,
                    f"some iterations of {digit.var.name[2:]} would load {name} outside of its {size} elements in "
                    f"dimension {axis} and do without, so no part of {name} belongs to them",
                )
            seen[digit.var] = Span(part[axis].low - constant(form.constant), part[axis].extent)
        if found and found != seen:
            raise refuse(
                what, where, f"it loads {name} at several places, which no one iteration has"
            )
        found = seen
    for var, span in found.items():
        if wanted.setdefault(var, span) != span:
            raise refuse(what, where, f"its sources give different parts of {var.name[2:]}")
