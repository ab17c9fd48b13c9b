"""Graphs: nodes and typed values, each value made once.

Owns: the form of a graph and every rule that it must obey. Does not own: making one by hand (`farm.graph.builder`),
text (`printer`), documents (`document`) or meaning (`reference`).

Invariant: a graph that exists is acyclic, its nodes stand in an order in which they can run, every value has one maker
and the type that its maker gives it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from farm.errors import InvalidFunction, InvalidGraph
from farm.graph.attributes import Attributes, check_attributes
from farm.graph.operators import Operator, find_operator
from farm.graph.types import Array, ValueType, check_label, type_of_array

MAX_NODES = 20_000
MAX_VALUES = 60_000


@dataclass(frozen=True, slots=True)
class Node:
    """One use of an operator.

    Attributes
    ----------
    inputs
        Names of the values that it reads, in the operator's order.
    output
        Name of the value that it makes.
    attributes
        Complete: defaults are filled in when the graph is made.
    """

    name: str
    operator: str
    inputs: tuple[str, ...]
    output: str
    attributes: Attributes = field(default_factory=lambda: MappingProxyType({}))
    version: int = 1

    @property
    def schema(self) -> Operator:
        """The version of the operator that it uses."""
        return find_operator(self.operator, self.version)

    def __str__(self) -> str:
        """Return ``name (operator)``, as messages show it."""
        return f"{self.name} ({self.operator})"


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """What a network computes.

    Parameters
    ----------
    nodes
        In any order; kept in one in which they can run.
    inputs, outputs
        Names of values, in the order in which callers pass and get them. An output is made by a node.
    types
        Of inputs and of what nodes make, by name; a type may add a quantisation to what the operator says. Constants
        may have one, to say theirs.
    constants
        Arrays by name. They are not copied, so do not change them; those of the graph itself cannot be written to.

    Attributes
    ----------
    makers, readers
        Which node makes a value, which nodes read it; by the value's name.
    places
        Where a node stands in `nodes`, by its name.

    Raises
    ------
    InvalidGraph
        A rule is broken: the message names the node or value, what is wrong and what to do.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, ValueType]
    constants: Mapping[str, Array] = field(default_factory=dict)
    makers: Mapping[str, Node] = field(init=False, repr=False)
    readers: Mapping[str, tuple[Node, ...]] = field(init=False, repr=False)
    places: Mapping[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_label("graph", self.name)
        if not 1 <= len(self.nodes) <= MAX_NODES:
            raise self._wrong(f"{len(self.nodes)} nodes; use 1 to {MAX_NODES}")
        self._check_values()
        self._check_types()
        self._set("nodes", _in_order(self.name, self.nodes, {*self.inputs, *self.constants}))
        self._check_outputs()
        self._set("nodes", tuple(map(self._checked, self.nodes)))
        for name in ("inputs", "outputs"):
            self._set(name, tuple(getattr(self, name)))
        self._set("types", MappingProxyType(dict(self.types)))
        held = {name: array.view() for name, array in self.constants.items()}
        for array in held.values():
            array.flags.writeable = False
        self._set("constants", MappingProxyType(held))
        self._set("makers", MappingProxyType({node.output: node for node in self.nodes}))
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.inputs):
                readers.setdefault(value, []).append(node)
        frozen = {value: tuple(nodes) for value, nodes in readers.items()}
        self._set("readers", MappingProxyType(frozen))
        places = {node.name: place for place, node in enumerate(self.nodes)}
        self._set("places", MappingProxyType(places))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _wrong(self, problem: str) -> InvalidGraph:
        return InvalidGraph(f"graph {self.name}: {problem}")

    def _check_values(self) -> None:
        made = [node.output for node in self.nodes]
        names = [*self.inputs, *self.constants, *made]
        if len(names) > MAX_VALUES:
            raise self._wrong(f"{len(names)} values; use at most {MAX_VALUES}")
        seen: set[str] = set()
        for name in names:
            check_label(f"graph {self.name}: value", name)
            if name in seen:
                raise self._wrong(f"value {name} is made twice; rename one")
            seen.add(name)
        twice = {node.name for node in self.nodes}
        if len(twice) < len(self.nodes):
            names = [node.name for node in self.nodes]
            again = next(name for name in names if names.count(name) > 1)
            raise self._wrong(f"two nodes are named {again}; rename one")

    def _check_types(self) -> None:
        for name, array in self.constants.items():
            plain = type_of_array(array)
            if self.types.get(name, plain).plain != plain:
                raise self._wrong(f"constant {name} is {plain}, its type says {self.types[name]}")
        for name in (*self.inputs, *(node.output for node in self.nodes)):
            if not isinstance(self.types.get(name), ValueType):
                raise self._wrong(f"value {name} has no type; give it one in `types`")
        seen = {*self.inputs, *self.constants, *(node.output for node in self.nodes)}
        for name in self.types:
            if name not in seen:
                raise self._wrong(f"type of {name}, which nothing makes; drop it or name its maker")

    def _check_outputs(self) -> None:
        made = {node.output for node in self.nodes}
        if not self.outputs or len(set(self.outputs)) < len(self.outputs):
            raise self._wrong(f"outputs {list(self.outputs)}; name one or more values, each once")
        for name in self.outputs:
            if name not in made:
                raise self._wrong(f"output {name} is made by no node; name a value that is")
        used = {value for node in self.nodes for value in node.inputs} | set(self.outputs)
        for node in self.nodes:
            if node.output not in used:
                raise self._wrong(
                    f"node {node} makes {node.output}, which nothing uses; drop it or make it an output"
                )

    def _checked(self, node: Node) -> Node:
        """Return a node with all its attributes, its operands and result checked."""
        subject = f"graph {self.name}: node {node}"
        check_label(f"graph {self.name}: node", node.name)
        try:
            schema = find_operator(node.operator, node.version)
            attributes = check_attributes(subject, schema.attributes, node.attributes)
            operands = [self.type_of(name) for name in node.inputs]
            result = schema.result_type(operands, attributes)
        except (InvalidGraph, InvalidFunction) as error:
            if error.message.startswith(subject):
                raise
            raise InvalidGraph(f"{subject}: {error.message}") from error
        if self.types[node.output].plain != result.plain:
            raise InvalidGraph(
                f"{subject}: makes {result.plain}, but {node.output} is {self.types[node.output].plain}; "
                f"correct the type"
            )
        return Node(
            node.name, node.operator, tuple(node.inputs), node.output, attributes, schema.version
        )

    def type_of(self, value: str) -> ValueType:
        """Return the type of a value; raises InvalidGraph if there is none of that name."""
        if value in self.types:
            return self.types[value]
        if value in self.constants:
            return type_of_array(self.constants[value])
        raise self._wrong(
            f"no value {value[:80]!r}; name an input, a constant or what a node makes"
        )

    def __str__(self) -> str:
        """Return the printed form."""
        from farm.graph.printer import print_graph  # the printer needs this module

        return print_graph(self)


def _in_order(graph: str, nodes: Sequence[Node], given: set[str]) -> tuple[Node, ...]:
    """Return nodes so that each comes after what it reads; the first that can come goes first (Kahn)."""
    makers = {node.output: place for place, node in enumerate(nodes)}
    readers: dict[int, list[int]] = {}
    waits = [0] * len(nodes)
    for place, node in enumerate(nodes):
        for value in set(node.inputs):
            if value in makers:
                readers.setdefault(makers[value], []).append(place)
                waits[place] += 1
            elif value not in given:
                raise InvalidGraph(
                    f"graph {graph}: node {node} reads {str(value)[:80]!r}, which nothing makes; "
                    f"add its maker, an input or a constant"
                )
    ready = [place for place, count in enumerate(waits) if not count]  # sorted, so a heap
    order: list[Node] = []
    while ready:
        place = heapq.heappop(ready)
        order.append(nodes[place])
        for reader in readers.get(place, ()):
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        left = {place for place, count in enumerate(waits) if count}
        circle = _circle(nodes, makers, left)
        raise InvalidGraph(
            f"graph {graph}: nodes wait for each other in a circle ({' -> '.join(circle)}); break it"
        )
    return tuple(order)


def _circle(nodes: Sequence[Node], makers: Mapping[str, int], left: set[int]) -> list[str]:
    """Return the names of nodes in one circle, walking from reader to maker."""
    place, path = min(left), []
    while place not in path:
        path.append(place)
        place = next(makers[v] for v in nodes[place].inputs if makers.get(v) in left)
    circle = [*path[path.index(place) :], place]
    return [nodes[each].name for each in reversed(circle)]


def extract(graph: Graph, name: str, nodes: Iterable[Node], outputs: Sequence[str]) -> Graph:
    """Return some nodes of a graph as a graph of their own.

    Inputs are the values that come from outside, in the order in which they are first read; constants come along.
    """
    chosen = tuple(nodes)
    made = {node.output for node in chosen}
    read = dict.fromkeys(v for node in chosen for v in node.inputs if v not in made)
    constants = {value: graph.constants[value] for value in read if value in graph.constants}
    inputs = tuple(value for value in read if value not in constants)
    kept = {*inputs, *made, *constants}
    types = {value: kind for value, kind in graph.types.items() if value in kept}
    return Graph(name, chosen, inputs, tuple(outputs), types, constants)
