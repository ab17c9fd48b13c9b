"""A quantised pair of layers, random graphs of small integers, and backends that take random parts of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from farm.graph import (
    FunctionCode,
    Graph,
    GraphBuilder,
    Options,
    Pattern,
    Region,
    any_op,
    op,
    wildcard,
)
from farm.graph.lower import lower
from farm.graph.match import Match

Array = np.ndarray[Any, Any]


def quantised_pair(rows: int = 6, seed: int = 3) -> Graph:
    """Return int8 dense, a float step, int8 dense; scales are powers of two, so that floats are exact."""
    rng = np.random.default_rng(seed)

    def whole(*shape: int, dtype: str = "int8", low: int = -90, high: int = 90) -> Array:
        return rng.integers(low, high, shape).astype(dtype)

    b = GraphBuilder("pair")
    value = b.input("x", (rows, 24), "int8")
    for number, (inputs, outputs) in enumerate(((24, 20), (20, 12)), 1):
        weight = b.constant(whole(outputs, inputs), f"weight{number}")
        bias = b.constant(whole(outputs, dtype="int32", low=-999, high=999), f"bias{number}")
        multiplier = whole(outputs, dtype="int32", low=1 << 30, high=(1 << 31) - 1)
        shift = np.full(outputs, 38, np.int32)
        product = b.op("dense", value, weight, name=f"product{number}")
        total = b.op("add", product, bias, name=f"total{number}")
        scaled = (
            b.constant(multiplier, f"multiplier{number}"),
            b.constant(shift, f"shift{number}"),
        )
        value = b.op("requantize", total, *scaled, name=f"layer{number}")
        if number == 1:
            scale = b.constant(np.float32(0.25), "scale")
            real = b.op("dequantize", value, scale, name="real")
            bent = b.op("leaky_relu", real, slope=0.125, name="bent")
            fine = b.constant(np.float32(0.03125), "fine")
            value = b.op("quantize", bent, fine, name="again")
    return b.finish(value)


UNARY, BINARY = ("relu", "clip"), ("add", "subtract", "multiply", "maximum")
ALL = "|".join((*UNARY, *BINARY, "leaky_relu"))


@st.composite
def graphs(draw: st.DrawFn, most: int = 18) -> Graph:
    """Return a graph of element-wise nodes in which anything may read anything before it."""
    b = GraphBuilder("random")
    values = [b.input(f"x{n}", (3,), "int32") for n in range(draw(st.integers(1, 3)))]
    values.append(b.constant(np.int32([1, -2, 3]), "c"))
    used: set[str] = set()
    for number in range(draw(st.integers(1, most))):
        operator = draw(st.sampled_from((*UNARY, *BINARY)))
        recent = values[-draw(st.integers(1, len(values))) :]
        operands = [draw(st.sampled_from(recent)) for _ in range(1 + (operator in BINARY))]
        limits = {"low": -9, "high": 9} if operator == "clip" else {}
        used.update(operands)
        values.append(b.op(operator, *operands, name=f"n{number}", **limits))
    made = [value for value in values if value.startswith("n")]
    outputs = [v for v in made if v not in used or draw(st.booleans())]
    return b.finish(*outputs)


@dataclass
class Takes:
    """A backend that takes some nodes, alone or two at a time."""

    name: str
    wanted: frozenset[str]
    joins: bool = True
    pairs: bool = False
    knobs: dict[str, Sequence[int]] = field(default_factory=dict)
    compiled: list[str] = field(default_factory=list)
    fails: frozenset[str] = frozenset()

    @property
    def patterns(self) -> Sequence[Pattern]:
        def check(match: Match) -> str | None:
            if all(node.name in self.wanted for node in match.nodes):
                return None
            return "not wanted"

        one = Pattern("one", any_op(ALL), 0, check)
        inner = any_op(ALL)
        two = [
            Pattern("two", op("add|multiply", inner, wildcard()), 5, check),
            Pattern("chain", op("relu", inner), 7, check),
        ]
        return [one, *(two if self.pairs else [])]

    def compile(self, region: Region, options: Options) -> FunctionCode:
        if self.fails & {node.name for node in region.nodes}:
            raise ValueError("no")
        self.compiled.append(region.name)
        return FunctionCode(lower(region.graph), "llvm")


@st.composite
def backends(draw: st.DrawFn, graph: Graph) -> list[Takes]:
    """Return one to three backends."""
    names = [node.name for node in graph.nodes]
    some = st.frozensets(st.sampled_from(names))
    return [
        Takes(
            f"b{number}",
            draw(some),
            joins=draw(st.booleans()),
            pairs=draw(st.booleans()),
            fails=draw(st.one_of(st.just(frozenset()), some)),
        )
        for number in range(draw(st.integers(1, 3)))
    ]
