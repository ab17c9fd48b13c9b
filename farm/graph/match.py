"""Finding patterns in a graph.

Owns: matching at a node, and what belongs to a match. Does not own: which of several matches is taken
(`farm.graph.partition`).

Invariant: nothing inside a match but its last node's result is used outside of it, so that matches never make a circle
with each other; matching takes at most `MAX_STEPS` steps a node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from farm.errors import InvalidGraph
from farm.graph.graph import Graph, Node
from farm.graph.pattern import Either, Op, Pattern, PatternNode, Wildcard
from farm.graph.types import Array, ValueType

MAX_STEPS = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A place in a graph where a pattern fits.

    Attributes
    ----------
    nodes
        In the graph's order; the last makes what leaves.
    inputs
        Values that come from outside and are no constants, in the order in which the nodes read them.
    outputs
        Values that are used outside: one.
    constants
        Constants that the nodes read.
    values
        Values by the names that the pattern gives to wildcards and nodes.
    """

    graph: Graph
    pattern: Pattern
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: tuple[str, ...]
    values: Mapping[str, str]

    def has(self, name: str) -> bool:
        """Tell whether what the pattern calls `name` is there: it may be optional."""
        return name in self.values

    def value(self, name: str) -> str:
        """Return the value that the pattern calls `name`; raises InvalidGraph if it is not there."""
        if name not in self.values:
            known = ", ".join(self.values) or "nothing"
            raise InvalidGraph(f"match of {self.pattern.name}: it has no {name!r}; it has {known}")
        return self.values[name]

    def node(self, name: str) -> Node:
        """Return the node that the pattern calls `name`; raises InvalidGraph if it is none, or not there."""
        value = self.value(name)
        if value not in self.graph.makers:
            raise InvalidGraph(f"match of {self.pattern.name}: {name!r} is no node")
        return self.graph.makers[value]

    def type_of(self, name: str) -> ValueType:
        """Return the type, with its quantisation, of what the pattern calls `name`."""
        return self.graph.type_of(self.value(name))

    def constant(self, name: str) -> Array:
        """Return the constant that the pattern calls `name`; raises InvalidGraph if it is none."""
        value = self.value(name)
        if value not in self.graph.constants:
            raise InvalidGraph(f"match of {self.pattern.name}: {name!r} is no constant")
        return self.graph.constants[value]


Bindings = dict[int, str]
"""For each part of a pattern, by its identity, the value that it stands for."""


def match_at(pattern: Pattern, graph: Graph, node: Node) -> Match | str | None:
    """Match a pattern so that it ends at a node.

    Returns
    -------
    Match, str or None
        The match; why the nodes that fit cannot be taken out of the graph; None if the pattern does not fit.
    """
    search = _Search(graph)
    why: str | None = None
    for bound in search.walk(pattern.root, node.output, {}):
        found = _closed(pattern, graph, node, bound, search)
        if isinstance(found, Match):
            return found
        why = why or found
    return why


class _Search:
    """One search, with the steps that it took."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.steps = 0
        self.patterns: dict[int, PatternNode] = {}

    def walk(self, pattern: PatternNode, value: str, bound: Bindings) -> Iterator[Bindings]:
        """Yield every way in which a pattern stands for a value."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            return
        self.patterns[id(pattern)] = pattern
        if id(pattern) in bound:
            if bound[id(pattern)] == value:
                yield bound
            return
        match pattern:
            case Wildcard():
                if self._wildcard_fits(pattern, value, bound):
                    yield {**bound, id(pattern): value}
            case Either(options):
                for option in options:
                    for here in self.walk(option, value, bound):
                        yield {**here, id(pattern): value}
            case Op():
                yield from self._op(pattern, value, bound)

    def _wildcard_fits(self, pattern: Wildcard, value: str, bound: Bindings) -> bool:
        if pattern.constant is not None and pattern.constant != (value in self.graph.constants):
            return False
        return not pattern.name or all(
            other == value
            for key, other in bound.items()
            if getattr(self.patterns[key], "name", "") == pattern.name
        )

    def _op(self, pattern: Op, value: str, bound: Bindings) -> Iterator[Bindings]:
        node = self.graph.makers.get(value)
        if (
            node is not None
            and node.operator in pattern.operators
            and _attributes_fit(pattern, node)
        ):
            here = {**bound, id(pattern): value}
            if pattern.inputs is None:
                yield here
            elif len(pattern.inputs) == len(node.inputs):
                yield from self._operands(pattern.inputs, node.inputs, here)
                if node.schema.commutes and node.inputs[0] != node.inputs[1]:
                    yield from self._operands(pattern.inputs, node.inputs[::-1], here)
        if pattern.optional and pattern.inputs:
            yield from self.walk(pattern.inputs[0], value, bound)

    def _operands(
        self, patterns: tuple[PatternNode, ...], values: tuple[str, ...], bound: Bindings
    ) -> Iterator[Bindings]:
        if not patterns:
            yield bound
            return
        for here in self.walk(patterns[0], values[0], bound):
            yield from self._operands(patterns[1:], values[1:], here)


def _attributes_fit(pattern: Op, node: Node) -> bool:
    for name, wanted in pattern.attributes.items():
        value = node.attributes.get(name)
        if not (wanted(value) if callable(wanted) else wanted == value):
            return False
    return True


def _closed(
    pattern: Pattern, graph: Graph, root: Node, bound: Bindings, search: _Search
) -> Match | str | None:
    """Return the match of some bindings, or why its nodes cannot be taken out."""
    made = {value for key, value in bound.items() if isinstance(search.patterns[key], Op)}
    if root.output not in made:
        return None  # only wildcards: there is nothing to take
    nodes = [graph.makers[value] for value in made]
    for node in nodes:
        if node is root:
            continue
        if node.output in graph.outputs:
            return f"{node.output} is an output of the graph, and the pattern {pattern.name} uses it up"
        outside = next((r for r in graph.readers[node.output] if r.output not in made), None)
        if outside is not None:
            return f"{node.output} is also read by {outside}, and the pattern {pattern.name} uses it up"
    places = graph.places
    ordered = tuple(sorted(nodes, key=lambda node: places[node.name]))
    read = dict.fromkeys(v for node in ordered for v in node.inputs if v not in made)
    values = {
        name: value
        for key, value in bound.items()
        if (name := getattr(search.patterns[key], "name", ""))
    }
    return Match(
        graph,
        pattern,
        ordered,
        tuple(value for value in read if value not in graph.constants),
        (root.output,),
        tuple(value for value in read if value in graph.constants),
        MappingProxyType(values),
    )
