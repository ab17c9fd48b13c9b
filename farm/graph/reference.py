"""The reference executor: what a graph means.

Owns: walking a graph, checking what goes in, the types of what comes out. Does not own: arithmetic of operators
(`farm.graph.arithmetic`).

Invariant: integers are exact; floats are float64 from the inputs to the outputs, never rounded to a value's own type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from farm.core.elements import is_float
from farm.errors import InvalidArguments
from farm.graph.arithmetic import COMPUTE
from farm.graph.graph import Graph, Node
from farm.graph.types import Array


def execute(graph: Graph, inputs: Sequence[Array] | Mapping[str, Array]) -> tuple[Array, ...]:
    """Compute a graph's outputs.

    Parameters
    ----------
    inputs
        One array for each input of the graph: in order, or by name.

    Returns
    -------
    tuple
        One array for each output: integers in their own type, floats in float64.

    Raises
    ------
    InvalidArguments
        An array is missing, or has another type or shape than its input.
    """
    values = evaluate(graph, inputs)
    return tuple(values[name] for name in graph.outputs)


def evaluate(
    graph: Graph, inputs: Sequence[Array] | Mapping[str, Array], *, keep: bool = False
) -> dict[str, Array]:
    """Compute a graph as `execute` does; return its outputs by name, with `keep` every value."""
    values = checked_inputs(graph, inputs) | dict(graph.constants)
    values = {name: _held(array) for name, array in values.items()}
    left = {name: len(readers) for name, readers in graph.readers.items()}
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            values[node.output] = compute(graph, node, [values[name] for name in node.inputs])
            for name in dict.fromkeys(node.inputs):
                left[name] -= 1
                if not left[name] and not keep and name not in graph.outputs:
                    del values[name]
    return values


def compute(graph: Graph, node: Node, operands: Sequence[Array]) -> Array:
    """Compute one node; integers in their type, floats in float64."""
    kind = graph.types[node.output].dtype
    result = COMPUTE[node.operator](kind, operands, node.attributes)
    return np.asarray(result, np.float64) if kind.is_float else result.astype(kind.numpy)


def checked_inputs(graph: Graph, inputs: Sequence[Array] | Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs of a graph by name, checked; raises as `execute`."""
    if isinstance(inputs, Mapping):
        unknown = sorted(str(name) for name in set(inputs) - set(graph.inputs))
        missing = [name for name in graph.inputs if name not in inputs]
        if unknown or missing:
            what = f"no input {unknown[0]}" if unknown else f"input {missing[0]} is missing"
            raise InvalidArguments(
                f"graph {graph.name}: {what}; pass {', '.join(graph.inputs) or 'nothing'}"
            )
        found = {name: inputs[name] for name in graph.inputs}
    else:
        if len(inputs) != len(graph.inputs):
            raise InvalidArguments(
                f"graph {graph.name}: {len(inputs)} inputs; pass {len(graph.inputs)}: "
                f"{', '.join(graph.inputs) or 'nothing'}"
            )
        found = dict(zip(graph.inputs, inputs, strict=True))
    for name, array in found.items():
        kind = graph.types[name]
        has = (
            f"{array.dtype}{list(array.shape)}"
            if isinstance(array, np.ndarray)
            else type(array).__name__
        )
        if has != f"{kind.dtype}{list(kind.shape)}":
            raise InvalidArguments(
                f"graph {graph.name}: input {name} does not fit (has {has}); "
                f"pass {kind.dtype}{list(kind.shape)}"
            )
    return found


def _held(array: Array) -> Array:
    return array.astype(np.float64) if is_float(array.dtype) else array
