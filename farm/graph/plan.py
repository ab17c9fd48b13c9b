"""The plan of an execution: which functions are called in which order, on which buffers.

Owns: steps, constants, lifetimes and sharing of buffers, host functions, and what is to be built. Does not own:
building (`farm.graph.build`) or calling (`farm.graph.run`).

Invariant: a buffer is written only after the last step that needs what it held before; the host functions, called one
after the other, compute the graph.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from farm import te
from farm.building import Request, Tuned
from farm.graph.graph import Graph
from farm.graph.lower import fuse, lower
from farm.graph.partition import Partition, Placed, stem_of
from farm.graph.types import Array, ValueType, type_of_array
from farm.ir import Function
from farm.ir.source import Source
from farm.ops.schedules import scheduled
from farm.target import Target, as_target
from farm.te import Tensor

MAX_PARAMS = 60
"""Arrays that one host function takes and gives."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One call of a region's function.

    Attributes
    ----------
    constants
        Names in `Plan.constants`.
    """

    placed: Placed
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def symbol(self) -> str:
        """Name of the function."""
        return self.placed.region.name

    @property
    def target(self) -> Target | None:
        """The accelerator that the region is for; None: the CPU."""
        code = self.placed.code
        return None if code is None or code.target is None else Target.parse(code.target)


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Memory for values inside a host function.

    Attributes
    ----------
    values
        What it holds, one after the other.
    lifetimes
        For each value the places, in `Segment.steps`, of the step that writes it and of the last that reads it.
    """

    kind: ValueType
    values: tuple[str, ...]
    lifetimes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A host function: some steps in a row.

    Attributes
    ----------
    inputs, constants, outputs
        What it takes and gives: values, names in `Plan.constants`, values.
    """

    symbol: str
    steps: tuple[Step, ...]
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How a partition is executed."""

    partition: Partition
    segments: tuple[Segment, ...]
    constants: Mapping[str, Array]

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps, in order."""
        return tuple(step for segment in self.segments for step in segment.steps)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all buffers of the host functions."""
        return sum(b.kind.size_bytes for segment in self.segments for b in segment.buffers)

    def request(self, cpus: Sequence[str | Target], tuned: Tuned | None = None) -> Request:
        """Return what is to be built: accelerators' functions, and everything for each CPU.

        Parameters
        ----------
        tuned
            Whose schedules are taken where it knows one; else the default schedules are.
        """
        found: dict[Target, list[Function]] = {}
        for target in dict.fromkeys(step.target for step in self.steps):
            if target is not None:
                known = self.functions(target)
                found[target] = [tuned.tuned(f, target) if tuned else f for f in known]
        hosts = [_host_function(self, segment) for segment in self.segments]
        for cpu in map(as_target, cpus):
            own = [_scheduled(function, cpu, tuned) for function in self.functions(cpu)]
            found.setdefault(cpu, []).extend([*own, *hosts])
        return found

    def functions(self, target: str | Target) -> list[Function]:
        """Return regions' functions for a target as their authors wrote them: what can be tuned for it.

        For a CPU these are all, for an accelerator its own.
        """
        where = as_target(target)
        if not where.is_accelerator:
            return [_for_cpu(step) for step in self.steps]
        own = [step.placed.code for step in self.steps if step.target == where]
        return [code.function for code in own if code is not None]


def _scheduled(function: Function, cpu: Target, tuned: Tuned | None) -> Function:
    """Return a function with the best schedule known for a CPU."""
    if isinstance(function.body, Source):
        return function
    best = function if tuned is None else tuned.tuned(function, cpu)
    return best if best != function else scheduled(function, cpu)


def _for_cpu(step: Step) -> Function:
    region, code = step.placed.region, step.placed.code
    if code is None:
        return fuse(lower(region.graph))
    if code.target is None:
        return code.function
    if code.fallback is None:
        return fuse(lower(region.graph, [param.buffer.name for param in code.function.params]))
    own = isinstance(code.fallback.body, Source)
    return code.fallback if own else fuse(code.fallback)


def make_plan(partition: Partition) -> Plan:
    """Lay out the execution of a partition."""
    graph = partition.graph
    constants: dict[str, Array] = {}
    steps = tuple(_step(placed, graph, constants) for placed in partition.regions)
    uses = _Uses(graph, steps)
    cuts = _cuts(uses)
    segments = tuple(
        _segment(uses, first, last, number if len(cuts) > 1 else None)
        for number, (first, last) in enumerate(cuts)
    )
    return Plan(partition, segments, constants)


def _step(placed: Placed, graph: Graph, constants: dict[str, Array]) -> Step:
    region = placed.region.graph
    own = {id(array): name for name, array in region.constants.items()}
    arrays = list(region.constants.values()) if placed.code is None else placed.code.constants
    names = []
    for place, array in enumerate(arrays):
        packed = f"{region.name}/{place}"
        while packed in graph.constants:
            packed += "'"
        name = own.get(id(array), packed)
        names.append(name)
        constants[name] = array
    return Step(placed, region.inputs, tuple(names), region.outputs)


class _Uses:
    """The steps, and the last step that reads each value; the number of steps for outputs of the graph."""

    def __init__(self, graph: Graph, steps: Sequence[Step]) -> None:
        self.graph, self.steps = graph, steps
        self.last = {value: place for place, step in enumerate(steps) for value in step.inputs}
        self.last.update(dict.fromkeys(graph.outputs, len(steps)))


def _cuts(uses: _Uses) -> list[tuple[int, int]]:
    """Return ranges of steps whose host functions do not take too many arrays."""
    cuts: list[tuple[int, int]] = []
    first = 0
    arrays: set[str] = set()  # constants, and values from outside
    living: set[str] = set()  # values from inside that later steps read
    for place, step in enumerate(uses.steps):
        made = living | set(step.outputs)
        grown = arrays | set(step.constants) | {v for v in step.inputs if v not in living}
        given = {value for value in made if uses.last[value] > place}
        if place > first and len(grown) + len(given) > MAX_PARAMS:
            cuts.append((first, place))
            first = place
            grown = {*step.constants, *step.inputs}
            given = {value for value in step.outputs if uses.last[value] > place}
        arrays, living = grown, given
    cuts.append((first, len(uses.steps)))
    return cuts


def _segment(uses: _Uses, first: int, last: int, number: int | None) -> Segment:
    inside = tuple(uses.steps[first:last])
    made = dict.fromkeys(value for step in inside for value in step.outputs)
    read = dict.fromkeys(value for step in inside for value in step.inputs)
    needed = dict.fromkeys(name for step in inside for name in step.constants)
    given = tuple(value for value in made if uses.last[value] >= last)
    stem = stem_of(uses.graph)
    return Segment(
        stem if number is None else f"{stem}_part{number}",
        inside,
        tuple(value for value in read if value not in made),
        tuple(needed),
        given,
        _buffers(uses, first, inside, set(given)),
    )


def _buffers(
    uses: _Uses, first: int, steps: Sequence[Step], given: Collection[str]
) -> tuple[Buffer, ...]:
    """Give each value that stays inside a buffer; values of one type share it if they do not live at once."""
    held: list[tuple[ValueType, list[str], list[tuple[int, int]]]] = []
    ends: dict[ValueType, list[tuple[int, int]]] = {}  # heaps: when a buffer is free, its number
    for place, step in enumerate(steps):
        for value in step.outputs:
            if value in given:
                continue
            kind, end = uses.graph.types[value].plain, uses.last[value] - first
            free = ends.setdefault(kind, [])
            if free and free[0][0] < place:
                number = heapq.heappop(free)[1]
            else:
                number = len(held)
                held.append((kind, [], []))
            held[number][1].append(value)
            held[number][2].append((place, end))
            heapq.heappush(free, (end, number))
    return tuple(Buffer(kind, tuple(values), tuple(lives)) for kind, values, lives in held)


def _host_function(plan: Plan, segment: Segment) -> Function:
    graph = plan.partition.graph

    def held(kind: ValueType, name: str) -> Tensor:
        return te.placeholder(kind.shape, kind.dtype, name)

    inputs = {v: held(graph.types[v].plain, f"in{n}") for n, v in enumerate(segment.inputs)}
    constants = {
        name: held(type_of_array(plan.constants[name]), f"const{n}")
        for n, name in enumerate(segment.constants)
    }
    outputs = {v: held(graph.types[v].plain, f"out{n}") for n, v in enumerate(segment.outputs)}
    values = inputs | outputs
    for number, buffer in enumerate(segment.buffers):
        values |= dict.fromkeys(buffer.values, held(buffer.kind, f"buffer{number}"))
    calls = [
        te.call(
            step.symbol,
            *(values[name] for name in step.inputs),
            *(constants[name] for name in step.constants),
            *(values[name] for name in step.outputs),
        )
        for step in segment.steps
    ]
    return te.sequence(
        segment.symbol,
        inputs=[*inputs.values(), *constants.values()],
        outputs=list(outputs.values()),
        calls=calls,
    )
