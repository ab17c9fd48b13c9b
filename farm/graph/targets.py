"""Accelerators that are targets as backends of a graph: `ea`, and any other that compiles functions.

Owns: patterns of quantised layers, and functions that such targets compile. Does not own: the code generators
(`farm.codegen`), which also say why they refuse a layer.

Invariant: a layer is claimed only after it was compiled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from farm.artifact import BuiltModule
from farm.artifact.module import EA_PROGRAM
from farm.codegen import compile_function
from farm.ea.config import find_config
from farm.errors import UnsupportedFunction
from farm.graph.backend import FunctionCode, Knobs, Options, Region
from farm.graph.graph import Graph, Node, extract
from farm.graph.lower import lower
from farm.graph.match import Match
from farm.graph.pattern import Pattern, PatternNode, constant, either, op, optional, wildcard
from farm.graph.types import Array, ValueType, value_type
from farm.ir import Function, serialise
from farm.target import Target

_WHERE = re.compile(r"^function layer on [^:]{1,80}: |; (?:or )?place it (?:on the CPU|elsewhere)$")
"""What a report says in other places."""


class TargetBackend:
    """Gives a target the layers that its code generator compiles, each as one function.

    Parameters
    ----------
    target
        Such as ``ea -config=ea16``.
    name
        In reports; None: the target's kind.
    """

    joins = False

    def __init__(self, target: str = "ea", name: str | None = None) -> None:
        self.target = Target.parse(target)
        self.name = name or self.target.kind.replace("-", "_")
        self.knobs: Knobs = {}
        self._compiled: dict[bytes, BuiltModule] = {}

    @property
    def patterns(self) -> Sequence[Pattern]:
        """Quantised layers; pools; sums of two values; tables. What follows them is fused as far as it is there."""
        x, w = wildcard("x"), constant("weight")
        plain = op("matmul", x, w, name="product", transpose_a=False)
        product = either(op("dense", x, w, name="product"), plain)
        convolution = op("conv2d", x, w, name="product")
        biased = either(op("dense", x, w, constant("bias"), name="product"), product, convolution)
        total = optional("add", biased, constant("bias"), name="total")
        kept = _scaled(wildcard("kept"), "kept_factor")  # what goes around the layer
        summed = either(op("add", total, kept), total)
        pool = op("max_pool2d|avg_pool2d", x)
        both = op("add", _scaled(x, "factor"), _scaled(wildcard("y"), "other_factor"))
        return (
            Pattern("layer", _finished(optional("add", summed, constant("more"))), 10, self._check),
            Pattern("pool", _finished(pool), 9, self._check),
            Pattern("sum", _finished(both), 8, self._check),
            Pattern("table", op("lookup", x, constant("table")), 7, self._check),
        )

    def _check(self, match: Match) -> str | None:
        graph = extract(match.graph, "layer", match.nodes, match.outputs)
        function, _ = layer_function(graph)
        try:
            self._compile(function)
        except UnsupportedFunction as error:
            return _WHERE.sub("", error.message)
        return None

    def compile(self, region: Region, options: Options) -> FunctionCode:
        """Return a region's function, its weights turned to inputs x outputs."""
        function, constants = layer_function(region.graph)
        return FunctionCode(function, str(self.target), constants)

    def predict(self, region: Region, options: Options) -> float:
        """Return seconds by the machine's own cycle model; raises UnsupportedFunction where there is none."""
        function, _ = layer_function(region.graph)
        module = self._compile(function)
        if module.format != EA_PROGRAM:
            raise UnsupportedFunction(f"target {self.target}: it has no cycle model here")
        from farm.runtime.ea.machine import CompiledMachine  # makes a machine, once for this user
        from farm.runtime.ea.program import LoadedProgram

        config = find_config(self.target.option("config") or "")
        timing = CompiledMachine(config).time(LoadedProgram(module.data, config))
        return timing.cycles / timing.clock_hz

    def _compile(self, function: Function) -> BuiltModule:
        code = serialise(replace(function, name="layer"))
        if code not in self._compiled:
            self._compiled[code] = compile_function(code, "device", self.target)
        return self._compiled[code]


def _scaled(value: PatternNode, factor: str) -> PatternNode:
    """Return a pattern of an int8 as int32, and maybe times a constant."""
    return optional("multiply", op("cast", value, dtype="int32"), constant(factor))


def _finished(value: PatternNode) -> PatternNode:
    """Return a pattern of a value, what rescales it, its limits and a table, each if it is there."""
    scaled = optional("requantize", value, constant("multiplier"), constant("shift"))
    return optional("lookup", optional("clip|relu", scaled), constant("table"))


def layer_function(graph: Graph) -> tuple[Function, tuple[Array, ...]]:
    """Return a layer as a function, and its constants, in the form that code generators know.

    Matrix products are ``A[i, k] * W[k, j]``; a constant that is one number for all channels is one for each.
    """
    nodes: list[Node] = []
    types, turned = dict(graph.types), dict[str, str]()
    spread: dict[str, Array] = {}
    for node in graph.nodes:
        at = len(nodes)
        if node.operator in ("add", "multiply"):
            node = _spread(node, types, graph.constants, spread)
        if node.operator == "dense":
            x, weight, *bias = node.inputs
            product = f"{node.output[:200]}/product" if bias else node.output
            nodes.append(Node(product, "matmul", (x, weight), product))
            if bias:
                kind = value_type(types[node.output].shape, types[node.output].dtype)
                types[product] = kind
                nodes.append(Node(node.name, "add", (product, *bias), node.output))
        else:
            nodes.append(node)
            if node.operator != "matmul" or not node.attributes["transpose_b"]:
                continue
            x, weight = node.inputs
        turned[weight] = f"{weight[:200]}/turned"  # others may read it as it is
        nodes[at] = replace(nodes[at], inputs=(x, turned[weight]), attributes={})
    read = {value for node in nodes for value in node.inputs}
    constants: dict[str, Array] = {}
    for name, array in graph.constants.items():
        if name in turned:
            constants[turned[name]] = np.ascontiguousarray(np.swapaxes(array, -1, -2))
        if name in read:
            constants[name] = array
        else:
            types.pop(name, None)
    constants |= spread
    packed = Graph(graph.name, tuple(nodes), graph.inputs, graph.outputs, types, constants)
    return lower(packed), tuple(packed.constants.values())


def _spread(
    node: Node,
    types: Mapping[str, ValueType],
    constants: Mapping[str, Array],
    spread: dict[str, Array],
) -> Node:
    """Return a node whose constants of one number are one for each channel of its result, added to `spread`."""
    channels = types[node.output].shape[-1:]
    inputs = list(node.inputs)
    for place, value in enumerate(inputs):
        if channels and value in constants and constants[value].size == 1:
            inputs[place] = f"{value[:200]}/each of {channels}"
            number = constants[value].reshape(1)
            spread[inputs[place]] = np.ascontiguousarray(np.broadcast_to(number, channels))
    return replace(node, inputs=tuple(inputs))
