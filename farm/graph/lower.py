"""Regions for CPUs: from nodes to one function.

Owns: the function of a CPU region, names of its parameters, and joining its element-wise steps. Does not own: operators
(`farm.ops`), or schedules for a CPU (`farm.ops.schedules`).

Invariant: the function takes the region's inputs, its constants and its outputs, in this order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from farm import te
from farm.errors import FarmError, ScheduleError, UnsupportedFunction
from farm.graph.graph import Graph
from farm.ir import Function
from farm.schedule import Schedule
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


def fuse(function: Function) -> Function:
    """Return a function in which steps that go over the same elements one after the other are one.

    A step is put into the one that reads it if that is the only one, no sum, and has no more elements: so nothing is
    computed twice. Results stay equal bit for bit.
    """
    sch = Schedule(function)
    for name in sch.block_names():
        readers = [sch.block(str(each)) for each in sch.get_consumers(name)]
        if len(readers) != 1 or readers[0].reduction is not None:
            continue
        counts = [math.prod(i.extent for i in leaf.iters) for leaf in (sch.block(name), *readers)]
        if counts[1] > counts[0]:
            continue
        trial = sch.copy()
        try:
            trial.compute_inline(name)
        except ScheduleError:  # a sum, an output, or too deep
            continue
        sch = trial
    return sch.function
