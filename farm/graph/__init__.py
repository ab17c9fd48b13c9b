"""Graphs: what a whole network computes, and which device runs which part of it.

Owns: the graph with its operators and meaning, patterns, partition, the plan of an execution and its report. Does not
own: operators' computations and schedules (`farm.ops`), code generators (`farm.codegen`), the farm (`farm.client`).

Invariant: wherever the parts run, the result is that of `execute`: equal bit for bit in integers.
"""

from farm.graph.backend import (
    Backend,
    FunctionCode,
    JsonCode,
    Knobs,
    Options,
    Predicts,
    Region,
    RegionCode,
)
from farm.graph.builder import GraphBuilder
from farm.graph.document import from_json, to_json
from farm.graph.graph import Graph, Node
from farm.graph.match import Match
from farm.graph.operators import OPERATORS, Operator, find_operator
from farm.graph.pattern import Pattern, any_op, constant, either, op, optional, wildcard
from farm.graph.printer import print_graph
from farm.graph.reference import execute
from farm.graph.types import Quantisation, ValueType, value_type

__all__ = [
    "OPERATORS",
    "Backend",
    "FunctionCode",
    "Graph",
    "GraphBuilder",
    "JsonCode",
    "Knobs",
    "Match",
    "Node",
    "Operator",
    "Options",
    "Pattern",
    "Predicts",
    "Quantisation",
    "Region",
    "RegionCode",
    "ValueType",
    "any_op",
    "constant",
    "either",
    "execute",
    "find_operator",
    "from_json",
    "op",
    "optional",
    "print_graph",
    "to_json",
    "value_type",
    "wildcard",
]
