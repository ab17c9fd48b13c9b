"""Graphs: what a whole network computes, and which device runs which part of it.

Owns: the graph with its operators and meaning, patterns, partition, the plan of an execution and its report. Does not
own: operators' computations and schedules (`farm.ops`), code generators (`farm.codegen`), the farm (`farm.client`).

Invariant: wherever the parts run, the result is that of `execute`: integers that no float was rounded to are equal bit
for bit.
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
from farm.graph.build import GraphBuild, build_graph
from farm.graph.builder import GraphBuilder
from farm.graph.document import from_json, to_json
from farm.graph.graph import Graph, Node
from farm.graph.layout import channels_last
from farm.graph.match import Match
from farm.graph.operators import OPERATORS, Operator, find_operator
from farm.graph.partition import Partition, partition
from farm.graph.pattern import Pattern, any_op, constant, either, op, optional, wildcard
from farm.graph.plan import Plan, make_plan
from farm.graph.printer import print_graph
from farm.graph.reference import execute
from farm.graph.report import PlacementReport, placement
from farm.graph.run import GraphModule, Measured
from farm.graph.targets import TargetBackend
from farm.graph.types import Quantisation, ValueType, value_type

__all__ = [
    "OPERATORS",
    "Backend",
    "FunctionCode",
    "Graph",
    "GraphBuild",
    "GraphBuilder",
    "GraphModule",
    "JsonCode",
    "Knobs",
    "Match",
    "Measured",
    "Node",
    "Operator",
    "Options",
    "Partition",
    "Pattern",
    "PlacementReport",
    "Plan",
    "Predicts",
    "Quantisation",
    "Region",
    "RegionCode",
    "TargetBackend",
    "ValueType",
    "any_op",
    "build_graph",
    "channels_last",
    "constant",
    "either",
    "execute",
    "find_operator",
    "from_json",
    "make_plan",
    "op",
    "optional",
    "partition",
    "placement",
    "print_graph",
    "to_json",
    "value_type",
    "wildcard",
]
