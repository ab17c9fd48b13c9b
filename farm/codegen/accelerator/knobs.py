"""Knobs: choices of an accelerator's code generator that travel with the function.

Owns: where they are kept (annotations of the function's first loop, which change no result), and checking them against
the space that the accelerator gives. Does not own: searching (`farm.tune`).

Invariant: what a hook gets has one allowed value for each knob of its space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from farm.accel import Knobs, Space, guard
from farm.errors import InvalidInput
from farm.ir import Function
from farm.ir.stmt import ANNOTATION_KEY, MAX_ANNOTATIONS, Allocate, Block, For, Stmt

PREFIX = "knob."
MAX_VALUES = 100_000


def with_knobs(function: Function, knobs: Knobs) -> Function:
    """Return the function with choices for its accelerator's code generator; earlier ones are dropped.

    Raises
    ------
    InvalidInput
        The function has no loop to keep them, or a knob's name or value cannot be kept.
    """
    first = _first_loop(function.body)
    if first is None:
        raise InvalidInput(f"function {function.name}: no loop keeps its knobs; use one with loops")
    kept = tuple(it for it in first.annotations if not it[0].startswith(PREFIX))
    added = tuple((PREFIX + name, _value(function, name, value)) for name, value in knobs.items())
    if len(kept) + len(added) > MAX_ANNOTATIONS:
        raise InvalidInput(
            f"function {function.name}: {len(added)} knobs; at most {MAX_ANNOTATIONS} hints fit a loop"
        )
    changed = replace(first, annotations=tuple(sorted((*kept, *added))))
    return replace(function, body=_replaced(function.body, first, changed))


def knobs_of(function: Function) -> dict[str, int | str]:
    """Return the choices that a function carries."""
    first = _first_loop(function.body)
    annotations = () if first is None else first.annotations
    return {key.removeprefix(PREFIX): value for key, value in annotations if key.startswith(PREFIX)}


def chosen_knobs(who: str, function: Function, space: Space) -> dict[str, int | str]:
    """Return one value for each knob: the function's, else the default.

    Raises
    ------
    InvalidInput
        The function chooses something that the space does not have.
    """
    given = knobs_of(function)
    unknown = sorted(set(given) - set(space))
    if unknown:
        raise InvalidInput(
            f"function {function.name}: unknown knob {unknown[0]} for {who}; there are "
            f"{', '.join(sorted(space)) or 'none'}"
        )
    for name, value in given.items():
        if value not in space[name]:
            shown = ", ".join(map(str, space[name][:20]))
            raise InvalidInput(
                f"function {function.name}: knob {name}={value} for {who}; use one of {shown}"
            )
    return {name: given.get(name, values[0]) for name, values in space.items()}


def space_of(who: str, hook: str, given: object) -> dict[str, tuple[int | str, ...]]:
    """Return what a hook gave as a space, checked; raises PlugInFailed if it is nonsense."""
    if given is None:
        return {}
    wanted = "a mapping from knobs to their values, each with at least one number or text"
    if not isinstance(given, Mapping) or len(given) > MAX_ANNOTATIONS:
        raise guard.nonsense(who, hook, given, wanted)
    space: dict[str, tuple[int | str, ...]] = {}
    for name, values in guard.call(who, hook, lambda: list(given.items())):
        if not isinstance(name, str) or not ANNOTATION_KEY.fullmatch(PREFIX + name):
            raise guard.nonsense(who, hook, name, "a knob's name of a-z, 0-9 and _")
        if isinstance(values, str) or not hasattr(values, "__iter__"):
            raise guard.nonsense(who, hook, values, f"values of {name}")
        listed = guard.call(who, hook, lambda v=values: tuple(islice(v, MAX_VALUES + 1)))
        fits = all(isinstance(it, int | str) and not isinstance(it, bool) for it in listed)
        if not fits or not 1 <= len(listed) <= MAX_VALUES or len(set(listed)) != len(listed):
            raise guard.nonsense(who, hook, values, f"different numbers or texts for {name}")
        space[name] = listed
    return space


def _value(function: Function, name: str, value: object) -> int | str:
    if not isinstance(name, str) or not ANNOTATION_KEY.fullmatch(PREFIX + name):
        raise InvalidInput(
            f"function {function.name}: malformed knob ({name!r}); use a-z, 0-9 and _"
        )
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidInput(f"function {function.name}: knob {name}={value!r}; use a number or text")
    return value


def _first_loop(stmt: Stmt) -> For | None:
    match stmt:
        case For():
            return stmt
        case Allocate(_, body):
            return _first_loop(body)
        case Block(stmts):
            return next(filter(None, map(_first_loop, stmts)), None)
        case _:
            return None


def _replaced(stmt: Stmt, old: For, new: For) -> Stmt:
    """Return a statement with its first loop replaced, which is found on the same way."""
    match stmt:
        case For():
            return new
        case Allocate(_, body):
            return replace(stmt, body=_replaced(body, old, new))
        case Block(stmts):
            at = next(i for i, each in enumerate(stmts) if _first_loop(each) is not None)
            return replace(
                stmt, stmts=(*stmts[:at], _replaced(stmts[at], old, new), *stmts[at + 1 :])
            )
        case _:
            raise AssertionError(f"no loop in {type(stmt).__name__}")
