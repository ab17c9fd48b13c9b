"""A rough count of work, to compare a backend's prediction with.

Owns: how many operations a node takes, and what a plain CPU is assumed to do. Does not own: measured times.

Invariant: a number from here is called predicted wherever it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from farm.graph.graph import Graph, Node

OPERATIONS_PER_S = 1e10
"""Of one core of a plain CPU: assumed, not measured."""
BYTES_PER_S = 8e9
_EACH = {"exp": 10, "tanh": 10, "sigmoid": 12, "gelu": 15, "softmax": 14, "sqrt": 4, "divide": 4}


def operations(graph: Graph, node: Node) -> int:
    """Return how many operations a node takes; a multiply-add is one."""
    result = graph.types[node.output]
    operands = [graph.type_of(name) for name in node.inputs]
    match node.operator:
        case "matmul":
            depth = operands[0].shape[-2 if node.attributes["transpose_a"] else -1]
            return result.elements * depth
        case "dense":
            return result.elements * operands[0].shape[-1]
        case "conv1d":
            return result.elements * math.prod(operands[1].shape[1:])
        case "conv2d":
            last = node.attributes["layout"] == "NHWC"
            weights = operands[1]
            return result.elements * weights.elements // weights.shape[3 if last else 0]
        case "max_pool2d" | "avg_pool2d":
            kernel = node.attributes["kernel"]
            assert isinstance(kernel, tuple)
            return result.elements * math.prod(n for n in kernel if isinstance(n, int))
        case _:
            most = max([result.elements, *(kind.elements for kind in operands)])
            return most * _EACH.get(node.operator, 1)


def cpu_seconds(graph: Graph, nodes: Iterable[Node]) -> float:
    """Return a rough time of some nodes on one core, one after the other."""
    total = 0.0
    for node in nodes:
        moved = sum(graph.type_of(name).size_bytes for name in (*node.inputs, node.output))
        total += max(operations(graph, node) / OPERATIONS_PER_S, moved / BYTES_PER_S)
    return total
