"""Regions for CPUs: from nodes to one function with a default schedule.

Owns: the function of a CPU region, and names of its parameters. Does not own: operators (`farm.ops`) or schedules.

Invariant: the function takes the region's inputs, its constants and its outputs, in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from farm import te
from farm.errors import FarmError, UnsupportedFunction
from farm.graph.graph import Graph
from farm.ir import Function
from farm.te import Tensor


def lower(graph: Graph, names: Sequence[str] = ()) -> Function:
    """Return a graph as one function, named after it.

    Parameters
    ----------
    names
        Of the parameters; by default ``in0``, ``const0`` and ``out0`` on.

    Raises
    ------
    UnsupportedFunction
        It cannot be one function: it is too large for the IR.
    """
    parts = (("in", graph.inputs), ("const", graph.constants), ("out", graph.outputs))
    usual = {value: f"{what}{n}" for what, part in parts for n, value in enumerate(part)}
    values = dict(zip(usual, names, strict=True)) if names else usual
    tensors: dict[str, Tensor] = {}
    for value in (*graph.inputs, *graph.constants):
        kind = graph.type_of(value)
        tensors[value] = te.placeholder(kind.shape, kind.dtype, values[value])
    for place, node in enumerate(graph.nodes):
        operands = [tensors[value] for value in node.inputs]
        made = node.schema.lower(*operands, **node.attributes)
        name = values.get(node.output, f"{node.operator}_{place}")
        tensors[node.output] = replace(made, name=name)
    try:
        return te.function(graph.name, [tensors[value] for value in values])
    except FarmError as error:
        raise UnsupportedFunction(
            f"graph {graph.name}: no CPU function: {error.message}"
        ) from error
