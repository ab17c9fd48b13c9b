"""What a schedule is made of: its state, its trace, and taking a step.

Owns: recording, names of handles in traces, and turning arguments into plain values.
Does not own: the methods that users call (`schedule` and its parts).

Invariant: the state is what the trace makes of the function; a refused step changes neither.
"""

from __future__ import annotations

import copy
import keyword
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Self

from farm.core.recent import Recent
from farm.errors import ScheduleError
from farm.ir.function import Function
from farm.schedule.block import Leaf
from farm.schedule.legality import check_kinds
from farm.schedule.lift import lift
from farm.schedule.lower import lower
from farm.schedule.primitive import PRIMITIVES, BlockRV, Handle, LoopRV, Primitive, Result
from farm.schedule.trace import Argument, Ref, Step, Trace
from farm.schedule.tree import State, unique

Loop = LoopRV | str
Block = BlockRV | str


class Recorder:
    """The state of one schedule and the steps that led to it."""

    def __init__(self, function: Function) -> None:
        self.original = function
        self._state = _lifted(function)
        self._steps: list[Step] = []
        self._names: set[str] = {"sch"}
        self._lowered: Function | None = None

    @property
    def function(self) -> Function:
        """The function as scheduled so far.

        Raises
        ------
        ScheduleError
            A buffer is too large for its scope.
        """
        if self._lowered is None:
            self._lowered = lower(self._state)
        return self._lowered

    @property
    def trace(self) -> Trace:
        """The steps so far."""
        return Trace(tuple(self._steps))

    def copy(self) -> Self:
        """Return a schedule with the same steps, which can go on by itself."""
        made = copy.copy(self)
        made._steps, made._names = list(self._steps), set(self._names)
        return made

    def block_names(self) -> list[str]:
        """Return the names of all blocks, in program order."""
        return [leaf.name for leaf in self._state.all_leaves()]

    def block(self, name: str) -> Leaf:
        """Return a block's definition, to look at."""
        return self._state.leaf(name)[0]

    def extent_of(self, loop: Loop) -> int:
        """Return how many iterations a loop has."""
        return self._state.loop(str(loop))[0].extent

    def __str__(self) -> str:
        """Return the printed function, without the newline at its end."""
        return str(self.function).rstrip("\n")

    def take(self, primitive: str, arguments: Mapping[str, Any]) -> list[Handle]:
        """Take a step by the name of its primitive, and record it.

        Raises
        ------
        ScheduleError
            There is no such primitive, it has other arguments, or it refuses.
        """
        known = PRIMITIVES.get(primitive)
        if known is None:
            raise ScheduleError(
                f"schedule: no primitive {primitive[:80]!r}; use one of {', '.join(PRIMITIVES)}"
            )
        try:
            known.signature.bind(self._state, **arguments)
        except TypeError as error:
            raise ScheduleError(f"{primitive}: {error}") from None
        _check_names(primitive, arguments)
        state, handles = _taken(self._state, known, {k: _plain(v) for k, v in arguments.items()})
        outputs = []
        for handle in handles:
            handle.ref = unique(_variable(str(handle)), self._names)
            self._names.add(handle.ref)
            outputs.append(handle.ref)
        given = tuple((key, self._argument(value)) for key, value in arguments.items())
        self._steps.append(Step(primitive, given, tuple(outputs)))
        self._state, self._lowered = state, None
        return handles

    def _argument(self, value: Any) -> Argument:  # noqa: ANN401 - whatever a step takes
        match value:
            case LoopRV() | BlockRV() if getattr(value, "ref", None) in self._names:
                return Ref(value.ref)
            case list() | tuple():
                return tuple(self._argument(each) for each in value)
            case str():
                return str(value)
            case None | bool() | int():
                return value
            case _:
                raise ScheduleError(
                    f"schedule: argument {value!r} is neither handle, number nor text"
                )


_roots: Recent[int, tuple[Function, State]] = Recent(16)
_steps: Recent[Hashable, tuple[State, State, Sequence[Handle]]] = Recent(512)
"""What steps made of states, by the states' identity: schedules of one search share their first steps, and so the
proofs that those need."""


def _lifted(function: Function) -> State:
    """Return the state that a function begins as, one for all schedules of it."""
    found = _roots.get(id(function))
    if found is None:
        found = (function, lift(function))
        _roots.keep(id(function), found)
    return found[1]


def _taken(state: State, known: Primitive, arguments: Mapping[str, Any]) -> Result:
    """Return what a step makes of a state, checked.

    Raises
    ------
    ScheduleError
        It refuses, or would break a step before.
    """
    key = (id(state), known.name, _frozen(list(arguments.items())))
    found = _steps.get(key)
    if found is not None:
        _, made, handles = found
        return made, [type(handle)(handle) for handle in handles]
    made, handles = known.apply(state, **arguments)
    if made.body is not state.body:
        try:
            check_kinds(made)
        except ScheduleError as error:
            raise ScheduleError(
                f"{known.name}: it would break a step before: {error.message}"
            ) from None
    if made is not state:  # looking at a state is no work
        _steps.keep(key, (state, made, handles))
    return made, [type(handle)(handle) for handle in handles]


def _frozen(value: Any) -> Hashable:  # noqa: ANN401 - whatever a step takes
    """Return what is equal for equal arguments of equal types alone; odd ones are only equal to themselves."""
    match value:
        case list() | tuple():
            return tuple(map(_frozen, value))
        case None | bool() | int() | str():
            return (type(value), value)
        case _:
            return object()


def _variable(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def _check_names(primitive: str, arguments: Mapping[str, Any]) -> None:
    """Refuse anything but text where a loop or block is meant."""
    for key, value in arguments.items():
        if key in ("loop", "block", "name") and not isinstance(value, str):
            raise ScheduleError(f"{primitive}: {key} is {value!r}; pass a handle or a name")
        if key == "loops" and not (
            isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
        ):
            raise ScheduleError(f"{primitive}: loops are {value!r}; pass handles or names")


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a step takes
    match value:
        case LoopRV() | BlockRV():
            return str(value)
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return value
