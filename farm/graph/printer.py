"""Graphs as text for people.

Owns: the printed form. Does not own: reading one (`farm.graph.document` is for programs).

Invariant: one line for each constant and node; attributes that have their default are left out.
"""

from __future__ import annotations

from farm.graph.attributes import Attribute
from farm.graph.graph import Graph, Node


def print_graph(graph: Graph) -> str:
    """Return a graph as text."""
    inputs = ", ".join(f"{name}: {graph.types[name]}" for name in graph.inputs)
    lines = [f"graph {graph.name}({inputs}) -> {', '.join(graph.outputs)}"]
    lines += [f"  const {name}: {graph.type_of(name)}" for name in sorted(graph.constants)]
    lines += [f"  {print_node(graph, node)}" for node in graph.nodes]
    return "\n".join(lines)


def print_node(graph: Graph, node: Node) -> str:
    """Return one node as text: its value, type, operator with version, operands and attributes."""
    specs = node.schema.attributes
    given = [
        f"{name}={_text(value)}"
        for name, value in node.attributes.items()
        if specs[name].required or value != specs[name].default
    ]
    inner = ", ".join([*node.inputs, *given])
    name = "" if node.name == node.output else f"  # {node.name}"
    kind = graph.types[node.output]
    return f"{node.output}: {kind} = {node.operator}.{node.version}({inner}){name}"


def _text(value: Attribute) -> str:
    match value:
        case tuple():
            return f"[{', '.join(map(_text, value))}]"
        case bool():
            return str(value).lower()
        case _:
            return str(value)
