"""Making a graph by hand.

Owns: names and types that the author does not care for. Does not own: any rule (`farm.graph.graph`).

Invariant: a mistake is refused at the call that makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from farm.errors import FarmError, InvalidGraph
from farm.graph.attributes import check_attributes
from farm.graph.graph import Graph, Node
from farm.graph.operators import Operator, find_operator
from farm.graph.types import (
    Array,
    Quantisation,
    ValueType,
    check_label,
    type_of_array,
    value_type,
)
from farm.ir import DType


class GraphBuilder:
    """Collects nodes; values are their names.

    Examples
    --------
    >>> import numpy as np
    >>> from farm.graph import GraphBuilder
    >>> b = GraphBuilder("layer")
    >>> x = b.input("x", (2, 3), "float32")
    >>> w = b.constant(np.ones((4, 3), np.float32), "w")
    >>> graph = b.finish(b.op("relu", b.op("dense", x, w)))
    >>> print(graph)
    graph layer(x: float32[2, 3]) -> relu_1
      const w: float32[4, 3]
      dense_1: float32[2, 4] = dense.1(x, w)
      relu_1: float32[2, 4] = relu.1(dense_1)
    """

    def __init__(self, name: str) -> None:
        self._name = check_label("graph", name)
        self._nodes: list[Node] = []
        self._inputs: list[str] = []
        self._types: dict[str, ValueType] = {}
        self._constants: dict[str, Array] = {}
        self._used: set[str] = set()

    def input(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str | DType = "float32",
        quantisation: Quantisation | None = None,
    ) -> str:
        """Declare an input; returns its name."""
        kind = value_type(tuple(shape), dtype, quantisation)
        self._types[self._take(name)] = kind
        self._inputs.append(name)
        return name

    def constant(
        self,
        array: Any,  # noqa: ANN401 - whatever numpy takes
        name: str = "",
        quantisation: Quantisation | None = None,
    ) -> str:
        """Add an array, or what numpy makes one of; returns its name."""
        held = self._held(array, name)
        kind = type_of_array(held, quantisation)
        name = self._take(name or self._free("const"))
        self._constants[name] = held
        self._types[name] = kind
        return name

    def op(
        self,
        operator: str,
        *operands: str,
        name: str = "",
        version: int | None = None,
        quantisation: Quantisation | None = None,
        **attributes: Any,
    ) -> str:
        """Add a node; returns the name of the value that it makes, which is also the node's.

        Parameters
        ----------
        operands
            Names of values.
        quantisation
            What the result's integers stand for; None: what the operator says.

        Raises
        ------
        InvalidGraph
            The operator, an attribute or an operand is unknown or does not fit; the message names it.
        """
        schema = find_operator(operator, version)
        name = self._take(name or self._free(operator))
        subject = f"graph {self._name}: node {name} ({operator})"
        try:
            for operand in operands:
                if not isinstance(operand, str):
                    what = type(operand).__name__
                    raise InvalidGraph(
                        f"{subject}: operand {what} is no value; pass its name, which `constant` gives for arrays"
                    )
                if operand not in self._types:
                    raise InvalidGraph(f"{subject}: no value {operand[:80]!r}; make it first")
            checked = check_attributes(subject, schema.attributes, attributes)
            result = self._result(subject, schema, operands, checked, quantisation)
        except FarmError:
            self._used.discard(name)
            raise
        self._types[name] = result
        self._nodes.append(Node(name, operator, tuple(operands), name, checked, schema.version))
        return name

    def finish(self, *outputs: str) -> Graph:
        """Return the graph with these outputs; raises InvalidGraph."""
        return Graph(
            self._name,
            tuple(self._nodes),
            tuple(self._inputs),
            outputs,
            self._types,
            self._constants,
        )

    def type_of(self, value: str) -> ValueType:
        """Return the type of a value so far; raises InvalidGraph if there is none of that name."""
        if not isinstance(value, str) or value not in self._types:
            raise InvalidGraph(f"graph {self._name}: no value {str(value)[:80]!r}; make it first")
        return self._types[value]

    def _result(
        self,
        subject: str,
        schema: Operator,
        operands: Sequence[str],
        attributes: Any,  # noqa: ANN401
        quantisation: Quantisation | None,
    ) -> ValueType:
        try:
            kinds = [self._types[operand] for operand in operands]
            result = schema.result_type(kinds, attributes)
            if quantisation is None and schema.name == "quantize":
                quantisation = self._of_scales(operands, attributes["axis"], result)
            if quantisation is not None:
                return ValueType(result.shape, result.dtype, quantisation)
        except FarmError as error:
            raise InvalidGraph(f"{subject}: {error.message}") from error
        return result

    def _of_scales(
        self, operands: Sequence[str], axis: int, result: ValueType
    ) -> Quantisation | None:
        """Return what a `quantize` node's result stands for, if its scales are constants."""
        given = [self._constants.get(operand) for operand in operands[1:]]
        if given[0] is None or any(each is None for each in given):
            return None
        scales = tuple(map(float, given[0].reshape(-1)))
        zeros = given[1] if len(given) > 1 and given[1] is not None else np.zeros(1, np.int64)
        points = tuple(map(int, np.broadcast_to(zeros.reshape(-1), (len(scales),))))
        channel = axis % len(result.shape) if given[0].shape else None
        return Quantisation(scales, points, channel)

    def _held(self, array: object, name: str) -> Array:
        """Return a dense array in this machine's byte order; raises InvalidGraph if numpy makes none."""
        try:
            held = np.asarray(array)
            dense = np.ascontiguousarray(held).reshape(held.shape)
            return dense.astype(dense.dtype.newbyteorder("="), copy=False)
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidGraph(
                f"graph {self._name}: constant {str(name)[:80]}: no array ({error}); pass numbers"
            ) from error

    def _take(self, name: str) -> str:
        check_label(f"graph {self._name}: value", name)
        if name in self._used:
            raise InvalidGraph(f"graph {self._name}: value {name} is made twice; rename one")
        self._used.add(name)
        return name

    def _free(self, stem: str) -> str:
        number = 1
        while f"{stem}_{number}" in self._used:
            number += 1
        return f"{stem}_{number}"
