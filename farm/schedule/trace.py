"""Traces: what a schedule did, as data.

Owns: steps, their JSON form and their replay. Does not own: the Python-like text (`text`), or primitives.

Invariant: replaying a trace on the function that it was recorded on gives the same function. A trace from outside is
checked before it is used, and can do nothing but schedule.

Version history of the JSON form: 1 - first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farm.errors import FarmError, ScheduleError
from farm.ir.function import Function

if TYPE_CHECKING:
    from farm.schedule.schedule import Schedule

VERSION = 1
MAX_STEPS = 10_000
MAX_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Ref:
    """The result of an earlier step, by its name in the trace."""

    name: str


Argument = Ref | int | str | bool | None | tuple["Argument", ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One call: ``outputs = sch.primitive(**arguments)``."""

    primitive: str
    arguments: tuple[tuple[str, Argument], ...]
    outputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the step as a line of Python."""
        given = ", ".join(f"{key}={show(value)}" for key, value in self.arguments)
        call = f"sch.{self.primitive}({given})"
        return f"{', '.join(self.outputs)} = {call}" if self.outputs else call


def show(value: Argument) -> str:
    """Return an argument as Python text."""
    match value:
        case Ref(name):
            return name
        case tuple():
            return f"[{', '.join(map(show, value))}]"
        case _:
            return repr(value)


@dataclass(frozen=True, slots=True)
class Trace:
    """The steps of a schedule, in order.

    Examples
    --------
    >>> from farm.schedule import Schedule, Trace
    >>> sch = Schedule(matmul)
    >>> i, j, k = sch.get_loops(sch.get_block("c"))
    >>> i_0, i_1 = sch.split(i, factors=[None, 2])
    >>> sch.reorder(i_0, k, i_1, j)
    >>> print(sch.trace)
    c = sch.get_block(name='c')
    i, j, k = sch.get_loops(block=c)
    i_0, i_1 = sch.split(loop=i, factors=[None, 2], tail='guard')
    sch.reorder(loops=[i_0, k, i_1, j])
    >>> again = Trace.from_json(sch.trace.to_json()).apply(matmul)
    >>> again.function == sch.function
    True
    """

    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        """Return the trace as Python-like text, one step a line."""
        return "\n".join(map(str, self.steps))

    def apply(self, function: Function) -> Schedule:
        """Take all steps on a function, maybe one of another shape.

        Raises
        ------
        ScheduleError
            A step does not work on this function; the message names the step and the reason.
        """
        from farm.schedule.schedule import Schedule  # it records traces

        schedule = Schedule(function)
        results: dict[str, Any] = {}
        for number, step in enumerate(self.steps, 1):
            where = f"trace, step {number} of {len(self.steps)} ({step})"
            try:
                found = schedule.take(step.primitive, _resolved(step, results))
            except FarmError as error:
                raise ScheduleError(f"{where}: {error.message}") from error
            if len(found) != len(step.outputs):
                raise ScheduleError(
                    f"{where}: it gives {len(found)} results here, the trace has {len(step.outputs)}"
                )
            results.update(zip(step.outputs, found, strict=True))
        return schedule

    def to_json(self) -> str:
        """Return the trace as JSON."""
        steps = [
            {
                "primitive": step.primitive,
                "arguments": {key: _encoded(value) for key, value in step.arguments},
                "outputs": list(step.outputs),
            }
            for step in self.steps
        ]
        return json.dumps({"version": VERSION, "steps": steps}, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Trace:
        """Read a trace.

        Raises
        ------
        ScheduleError
            The text is no trace of a version that is known here.
        """
        if len(text) > MAX_BYTES:
            raise ScheduleError(f"trace: {len(text)} letters; use at most {MAX_BYTES}")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ScheduleError(f"trace: no JSON ({error})") from None
        match data:
            case {"version": int(version), "steps": list(steps)} if not isinstance(version, bool):
                if version != VERSION:
                    raise ScheduleError(f"trace: version {version}; {VERSION} is known here")
                return Trace(checked([_decoded_step(n, each) for n, each in enumerate(steps, 1)]))
            case _:
                raise ScheduleError("trace: no object with version and steps")

    @staticmethod
    def from_text(text: str) -> Trace:
        """Read the Python-like text of a trace; see `Trace.from_json`."""
        from farm.schedule.text import parse_trace  # it makes traces

        return parse_trace(text)


def checked(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return steps in which every name is made before it is used, once.

    Raises
    ------
    ScheduleError
        It is not so, or there are too many.
    """
    if len(steps) > MAX_STEPS:
        raise ScheduleError(f"trace: {len(steps)} steps; use at most {MAX_STEPS}")
    known: set[str] = set()
    for number, step in enumerate(steps, 1):
        for name in (name for _, value in step.arguments for name in _refs(value)):
            if name not in known:
                raise ScheduleError(f"trace, step {number}: {name} is not made by a step before")
        for name in step.outputs:
            if not name.isidentifier() or name in known or name == "sch":
                raise ScheduleError(f"trace, step {number}: {name!r} is no new name")
            known.add(name)
    return tuple(steps)


def _refs(value: Argument) -> list[str]:
    match value:
        case Ref(name):
            return [name]
        case tuple():
            return [name for each in value for name in _refs(each)]
        case _:
            return []


def _resolved(step: Step, results: Mapping[str, Any]) -> dict[str, Any]:
    def resolve(value: Argument) -> Any:  # noqa: ANN401 - handles and plain values
        match value:
            case Ref(name):
                return results[name]
            case tuple():
                return [resolve(each) for each in value]
            case _:
                return value

    return {key: resolve(value) for key, value in step.arguments}


def _encoded(value: Argument) -> Any:  # noqa: ANN401 - JSON
    match value:
        case Ref(name):
            return {"ref": name}
        case tuple():
            return [_encoded(each) for each in value]
        case _:
            return value


def _decoded(number: int, value: Any) -> Argument:  # noqa: ANN401 - JSON
    match value:
        case {"ref": str(name)} if len(value) == 1:
            return Ref(name)
        case list():
            return tuple(_decoded(number, each) for each in value)
        case None | bool() | int() | str():
            return value
        case _:
            raise ScheduleError(
                f"trace, step {number}: argument {str(value)[:80]} is of no known kind"
            )


def _decoded_step(number: int, data: Any) -> Step:  # noqa: ANN401 - JSON
    match data:
        case {"primitive": str(name), "arguments": dict(arguments), "outputs": list(outputs)} if (
            len(data) == 3 and all(isinstance(each, str) for each in outputs)
        ):
            given = tuple((key, _decoded(number, value)) for key, value in arguments.items())
            return Step(name, given, tuple(outputs))
        case _:
            raise ScheduleError(
                f"trace, step {number}: no object with primitive, arguments and outputs"
            )
