"""What primitives are made of: their registry, their results, and checks of their arguments.

Owns: the table of primitives by name, which schedules and traces use. Does not own: any primitive.

Invariant: a primitive is a function from a state and plain arguments to a new state; a refusal leaves nothing behind.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from farm.errors import ScheduleError
from farm.ir.stmt import For, LoopKind
from farm.schedule.tree import Place, State


class LoopRV(str):
    """A loop of a schedule, by the name of its variable."""

    __slots__ = ("ref",)
    ref: str


class BlockRV(str):
    """A block of a schedule, by its name."""

    __slots__ = ("ref",)
    ref: str


Handle = LoopRV | BlockRV
Result = tuple[State, list[Handle]]


@dataclass(frozen=True, slots=True)
class Primitive:
    """A step that schedules can take.

    Attributes
    ----------
    many
        Whether it returns a list of handles, however many they are.
    signature
        Of `apply`.
    """

    name: str
    apply: Callable[..., Result]
    many: bool
    signature: inspect.Signature


PRIMITIVES: dict[str, Primitive] = {}


def primitive(*, many: bool = False) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Register a function under its own name as a primitive."""

    def register(function: Callable[..., Result]) -> Callable[..., Result]:
        name = function.__name__
        if name in PRIMITIVES:
            raise AssertionError(f"two primitives are called {name}")
        PRIMITIVES[name] = Primitive(name, function, many, inspect.signature(function))
        return function

    return register


def refuse(what: str, place: str, why: str) -> ScheduleError:
    """Make the error of a primitive: its name, the loop or block, the reason with what to do."""
    return ScheduleError(f"{what} of {place}: {why}")


def serial_loop(what: str, state: State, name: str) -> tuple[For, Place]:
    """Return a loop that is neither parallel, vectorized nor unrolled yet."""
    loop, place = state.loop(name)
    if loop.kind is not LoopKind.SERIAL:
        raise refuse(
            what,
            f"loop {name}",
            f"it is {loop.kind.value} already; do this before giving it a kind",
        )
    return loop, place


def chain(what: str, state: State, names: Sequence[str]) -> list[tuple[For, Place]]:
    """Return loops that are directly nested, outermost first, whatever order they are named in.

    Raises
    ------
    ScheduleError
        A loop is named twice, is not inside another, or something stands beside one of them.
    """
    if len(names) < 2:
        raise refuse(what, f"loops {', '.join(names)}", "name two or more")
    if len(set(names)) != len(names):
        raise refuse(what, f"loops {', '.join(names)}", "a loop is named twice; name each once")
    found = sorted((state.loop(name) for name in names), key=lambda pair: pair[1].path)
    for (outer, outer_at), (inner, inner_at) in itertools.pairwise(found):
        if inner_at.path[: len(outer_at.path)] != outer_at.path:
            raise refuse(
                what,
                f"loops {outer.var.name} and {inner.var.name}",
                "neither is inside the other; name loops of one nest",
            )
        node = outer.body
        while node is not inner:
            if not isinstance(node, For):
                raise refuse(
                    what,
                    f"loops {outer.var.name} and {inner.var.name}",
                    "there is more than one statement between them; move the others first",
                )
            node = node.body
    return found


def integer(what: str, place: str, value: Any, least: int, most: int) -> int:  # noqa: ANN401
    """Return an argument that must be an integer in a range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise refuse(what, place, f"{value!r} is no integer from {least} to {most}; use one")
    return value


def choice(what: str, place: str, value: Any, known: Sequence[str]) -> str:  # noqa: ANN401
    """Return an argument that must be one of some words."""
    if value not in known:
        raise refuse(what, place, f"unknown ({value!r}); use one of {', '.join(known)}")
    return str(value)


def single_branch(state: State, place: Place) -> Place:
    """Return the outermost node around a place that holds nothing else."""
    best = place
    for each in state.places():
        around = place.path[: len(each.path)] == each.path
        if around and isinstance(each.node, For) and _alone(each.node, place.node):
            return each
    return best


def _alone(loop: For, node: object) -> bool:
    body = loop.body
    while isinstance(body, For):
        body = body.body
    return body is node
