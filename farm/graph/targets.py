"""Accelerators that are targets as backends of a graph: `ea`, and any other that compiles functions.

Owns: patterns of quantised layers, and functions that such targets compile. Does not own: the code generators
(`farm.codegen`), which also say why they refuse a layer.

Invariant: a layer is claimed only after it was compiled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
from farm.graph.pattern import Pattern, constant, either, op, optional, wildcard
from farm.graph.types import Array, value_type
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
        """Products and convolutions with a bias, rescaling and limits, as far as they are there."""
        x, w = wildcard("x"), constant("weight")
        plain = op("matmul", x, w, name="product", transpose_a=False)
        product = either(op("dense", x, w, name="product"), plain)
        convolution = op("conv2d", x, w, name="product")
        biased = either(op("dense", x, w, constant("bias"), name="product"), product, convolution)
        total = optional("add", biased, constant("bias"), name="total")
        scaled = optional("requantize", total, constant("multiplier"), constant("shift"))
        return (Pattern("layer", optional("clip|relu", scaled), 10, self._check),)

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


def layer_function(graph: Graph) -> tuple[Function, tuple[Array, ...]]:
    """Return a layer as a function whose product is ``A[i, k] * W[k, j]``, and its constants in that form."""
    nodes: list[Node] = []
    types, turned = dict(graph.types), dict[str, str]()
    for node in graph.nodes:
        at = len(nodes)
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
    packed = Graph(graph.name, tuple(nodes), graph.inputs, graph.outputs, types, constants)
    return lower(packed), tuple(packed.constants.values())
