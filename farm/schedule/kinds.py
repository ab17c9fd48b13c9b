"""parallel, vectorize, unroll, annotate: how loops run.

Owns: giving loops their kinds and hints. Does not own: what other loops there are (`loops`).

Invariant: a parallel or vectorized loop has independent iterations, proven.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from farm.errors import InvalidFunction
from farm.ir.concurrency import MAX_LANES, MAX_UNROLLED
from farm.ir.stmt import For, LoopKind
from farm.schedule.legality import check_kind, check_lanes
from farm.schedule.primitive import Result, primitive, refuse, serial_loop
from farm.schedule.tree import Place, State, loops_of, rewrite


def _with_kind(what: str, state: State, name: str, kind: LoopKind) -> tuple[State, Place, For]:
    """Return the state with a loop of a kind, where that loop was, and what it became."""
    loop, place = serial_loop(what, state, name)
    new = replace(loop, kind=kind)
    return state.with_body(rewrite(state.body, loop, [new])), place, new


def _not_nested(what: str, place: Place, kind: LoopKind) -> None:
    loop = place.node
    assert isinstance(loop, For)
    for other in (*place.loops, *loops_of(loop.body)):
        if other.kind is kind:
            raise refuse(
                what,
                f"loop {loop.var.name}",
                f"loop {other.var.name} around or inside it is {kind.value}; choose one of the two",
            )


@primitive()
def parallel(state: State, loop: str) -> Result:
    """Let iterations run on several threads; see `Schedule.parallel`."""
    made, place, _ = _with_kind("parallel", state, loop, LoopKind.PARALLEL)
    _not_nested("parallel", place, LoopKind.PARALLEL)
    for outer in place.loops:
        if outer.kind is LoopKind.VECTORIZED:
            raise refuse(
                "parallel", f"loop {loop}", f"it is inside vectorized loop {outer.var.name}"
            )
    check_kind(state, place, LoopKind.PARALLEL)
    return made, []


@primitive()
def vectorize(state: State, loop: str) -> Result:
    """Make iterations the lanes of vectors; see `Schedule.vectorize`."""
    made, place, new = _with_kind("vectorize", state, loop, LoopKind.VECTORIZED)
    node = place.node
    assert isinstance(node, For)
    if node.extent > MAX_LANES:
        raise refuse(
            "vectorize",
            f"loop {loop}",
            f"its extent is {node.extent}; split it first, to at most {MAX_LANES}",
        )
    _not_nested("vectorize", place, LoopKind.VECTORIZED)
    for inner in loops_of(node.body):
        if inner.kind is LoopKind.PARALLEL:
            raise refuse(
                "vectorize", f"loop {loop}", f"parallel loop {inner.var.name} is inside it"
            )
    check_lanes(state, place, new)
    return made, []


@primitive()
def unroll(state: State, loop: str) -> Result:
    """Repeat the body for each iteration; see `Schedule.unroll`."""
    made, place, _ = _with_kind("unroll", state, loop, LoopKind.UNROLLED)
    node = place.node
    assert isinstance(node, For)
    if node.extent > MAX_UNROLLED:
        raise refuse(
            "unroll",
            f"loop {loop}",
            f"its extent is {node.extent}; split it first, to at most {MAX_UNROLLED}",
        )
    return made, []


@primitive()
def annotate(state: State, loop: str, key: str, value: int | str) -> Result:
    """Give a loop a hint for code generators; see `Schedule.annotate`."""
    node, _ = state.loop(loop)
    kept = tuple(pair for pair in node.annotations if pair[0] != key)
    if not isinstance(key, str) or not isinstance(value, int | str):
        raise refuse(
            "annotate", f"loop {loop}", f"{key!r}: {value!r} is no text with text or integer"
        )
    try:
        new = replace(node, annotations=(*kept, (key, value)))
    except InvalidFunction as error:
        raise refuse("annotate", f"loop {loop}", error.message) from error
    return state.with_body(rewrite(state.body, node, [new])), []


@primitive()
def unannotate(state: State, loop: str, key: str) -> Result:
    """Take a hint away; see `Schedule.unannotate`."""
    node, _ = state.loop(loop)
    kept = tuple(pair for pair in node.annotations if pair[0] != key)
    if kept == node.annotations:
        known: Any = ", ".join(each for each, _ in node.annotations) or "none"
        raise refuse("unannotate", f"loop {loop}", f"no annotation {key!r}; it has {known}")
    return state.with_body(rewrite(state.body, node, [replace(node, annotations=kept)])), []
