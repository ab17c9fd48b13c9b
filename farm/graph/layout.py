"""Layouts: the same graph with the channels of its images last, as accelerators want them.

Owns: turning convolutions, pools and what stands between them. Does not own: which layout a backend takes.

Invariant: inputs, outputs and their names stay as they are, and so does every result, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from farm.graph.attributes import Attribute
from farm.graph.graph import Graph, Node
from farm.graph.types import Array, ValueType

TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
WINDOWS = ("conv2d", "max_pool2d", "avg_pool2d")
ON_AXIS = ("concat", "requantize", "quantize", "dequantize")
"""What names an axis of its first operand."""
PAIRS = ("add", "subtract", "multiply", "divide", "maximum", "minimum")


def channels_last(graph: Graph) -> Graph:
    """Return an equal graph whose convolutions (of constant weights) and pools are NHWC.

    Images are transposed where they come in and go out, not in between: element-wise nodes, rescaling, tables and
    concatenations are turned with them.
    """
    turning = _Turning(graph)
    for node in graph.nodes:
        turning.node(node)
    for name in graph.outputs:
        turning.first(name)
    return turning.result()


class _Turning:
    """The new graph so far."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.types = {name: graph.types[name] for name in graph.inputs}
        self.constants: dict[str, Array] = {}
        self.last_names: dict[str, str] = {}

    def result(self) -> Graph:
        """Return the graph without what nothing reads."""
        used = {*self.graph.outputs, *(v for node in self.nodes for v in node.inputs)}
        nodes = tuple(node for node in self.nodes if node.output in used)
        constants = {name: array for name, array in self.constants.items() if name in used}
        made = {*self.graph.inputs, *constants, *(node.output for node in nodes)}
        types = {name: kind for name, kind in self.types.items() if name in made}
        graph = self.graph
        return Graph(graph.name, nodes, graph.inputs, graph.outputs, types, constants)

    def node(self, node: Node) -> None:
        """Take over one node, turned if it is about images."""
        attributes = self.attributes(node)
        operands = None if attributes is None else self.operands(node)
        if attributes is None or operands is None:
            inputs = tuple(map(self.first, node.inputs))
            self.add(replace(node, inputs=inputs), self.graph.types[node.output])
            return
        name = self.name_last(node.output)
        turned = replace(node, inputs=operands, output=name, attributes=attributes)
        self.add(turned, _turned(self.graph.types[node.output]))
        self.last_names[node.output] = name

    def add(self, node: Node, kind: ValueType) -> None:
        """Append a node."""
        self.nodes.append(node)
        self.types[node.output] = kind

    def attributes(self, node: Node) -> Mapping[str, Attribute] | None:
        """Return a node's attributes with channels last; None if it stays as it is."""
        given = node.attributes
        if node.operator in WINDOWS:
            constant = node.operator != "conv2d" or node.inputs[1] in self.graph.constants
            return {**given, "layout": "NHWC"} if given["layout"] == "NCHW" and constant else None
        turned = any(value in self.last_names for value in node.inputs)
        if not turned or len(self.graph.types[node.output].shape) != 4:
            return None  # not about images, or no operand was turned
        if node.operator in ON_AXIS:
            axis = given["axis"]
            assert isinstance(axis, int)
            return {**given, "axis": TO_LAST.index(axis % 4)}
        return given if node.schema.elementwise or node.operator == "lookup" else None

    def operands(self, node: Node) -> tuple[str, ...] | None:
        """Return a node's operands with channels last; None if one cannot be."""
        if node.operator == "conv2d":
            weights = f"{node.inputs[1][:200]}/rsco"
            self.constants[weights] = _array(self.graph.constants[node.inputs[1]], (2, 3, 1, 0))
            return self.last(node.inputs[0]), weights
        if node.operator not in PAIRS:
            images = len(node.inputs) if node.operator == "concat" else 1
            if any(value in self.graph.constants for value in node.inputs[:images]):
                return None
            rest = tuple(map(self.first, node.inputs[images:]))
            return (*map(self.last, node.inputs[:images]), *rest)
        found = []
        for value in node.inputs:
            if value in self.graph.constants:
                found.append(self.broadcast(value))
            elif len(self.graph.type_of(value).shape) == 4:
                found.append(self.last(value))
            else:
                return None
        return tuple(found)

    def broadcast(self, value: str) -> str:
        """Return a constant that meets images, turned with them."""
        array = self.graph.constants[value]
        if array.size == 1:
            return self.first(value)
        name = f"{value[:200]}/last"
        whole = array.reshape((1,) * (4 - array.ndim) + array.shape)
        turned = _array(whole, TO_LAST)
        while turned.ndim > 1 and turned.shape[0] == 1:
            turned = turned[0]
        self.constants[name] = np.ascontiguousarray(turned)
        return name

    def name_last(self, value: str) -> str:
        """Return the name of a value with its channels last."""
        return f"{value[:200]}/nhwc"

    def last(self, value: str) -> str:
        """Return the name of an image with its channels last, which is made if need be."""
        if value not in self.last_names:
            name = self.name_last(value)
            self.transpose(self.first(value), TO_LAST, name, _turned(self.graph.type_of(value)))
            self.last_names[value] = name
        return self.last_names[value]

    def first(self, value: str) -> str:
        """Return the name of a value as it was, which is made if need be."""
        if value in self.graph.constants:
            self.constants[value] = self.graph.constants[value]
            if value in self.graph.types:
                self.types[value] = self.graph.types[value]
        elif value not in self.types:
            self.transpose(self.last_names[value], TO_FIRST, value, self.graph.types[value])
        return value

    def transpose(self, value: str, axes: Sequence[int], name: str, kind: ValueType) -> None:
        """Append a transposition."""
        self.add(Node(f"{name}/turned", "transpose", (value,), name, {"axes": tuple(axes)}), kind)


def _array(array: Array, axes: Sequence[int]) -> Array:
    return np.ascontiguousarray(np.transpose(array, axes))


def _turned(kind: ValueType) -> ValueType:
    quantisation = kind.quantisation
    if quantisation is not None and quantisation.axis is not None:
        quantisation = replace(quantisation, axis=TO_LAST.index(quantisation.axis))
    shape = tuple(kind.shape[axis] for axis in TO_LAST)
    return ValueType(shape, kind.dtype, quantisation)
