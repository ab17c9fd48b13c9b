"""Random quantised networks, built for the accelerator and the CPU and run: equal to the reference bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from graph_examples import Takes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import farm
from farm.graph import Graph, GraphBuilder, GraphModule, TargetBackend, build_graph, execute

Array = np.ndarray[Any, Any]


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    """Return a network of int8 matrices in which branches part and meet again."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    b = GraphBuilder("net")
    rows = draw(st.integers(1, 9))
    values = [b.input("x", (rows, draw(st.integers(1, 20))), "int8")]
    for _ in range(draw(st.integers(2, 7))):
        value = draw(st.sampled_from(values[-2:]))
        values.append(_grown(draw, rng, b, value))
    used = {operand for node in b.finish(*values[1:]).nodes for operand in node.inputs}
    return b.finish(*(value for value in values[1:] if value not in used))


def _grown(draw: st.DrawFn, rng: np.random.Generator, b: GraphBuilder, value: str) -> str:
    _, columns = b.type_of(value).shape
    match draw(st.sampled_from(("layer", "layer", "float", "turn", "join", "pad", "sum"))):
        case "layer":
            outputs = draw(st.integers(1, 20))
            weight = b.constant(rng.integers(-128, 128, (outputs, columns)).astype(np.int8))
            bias = b.constant(rng.integers(-9999, 9999, outputs).astype(np.int32))
            total = b.op("add", b.op("dense", value, weight), bias)
            factors = b.constant(rng.integers(1 << 30, 1 << 31, outputs).astype(np.int32))
            shift = b.constant(rng.integers(36, 41, outputs).astype(np.int32))
            zero = draw(st.integers(-5, 5))
            made = b.op("requantize", total, factors, shift, zero_point=zero)
            return b.op("relu", made) if draw(st.booleans()) else made
        case "float":
            real = b.op("dequantize", value, b.constant(np.float32(0.5)))
            return b.op(
                "quantize", b.op("leaky_relu", real, slope=0.25), b.constant(np.float32(0.25))
            )
        case "turn":
            turned = b.op("transpose", value)
            return b.op("transpose", b.op("clip", turned, low=-100, high=90))
        case "join":
            return b.op("concat", value, value, axis=1)
        case "pad":
            return b.op("pad", value, around=[(0, 0), (1, 0)], value=-7)
        case _:
            return b.op("add", value, b.op("relu", value))


@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow])
@given(networks(), st.booleans())
def test_random_network_equals_the_reference_whoever_runs_it(graph: Graph, more: bool) -> None:
    wanted_by_other = frozenset(node.name for node in graph.nodes if node.operator == "relu")
    backends = [TargetBackend("ea"), *([Takes("other", wanted_by_other)] if more else [])]
    built = build_graph(graph, backends)
    source = np.random.default_rng(0)
    inputs = {
        n: source.integers(-128, 128, graph.types[n].shape).astype(np.int8) for n in graph.inputs
    }
    with farm.load(built.artifact) as module:
        outputs = GraphModule(built, module)(inputs)
    for found, wanted in zip(outputs, execute(graph, inputs), strict=True):
        np.testing.assert_array_equal(found, wanted)
    layers = [node for node in graph.nodes if node.operator == "requantize"]
    taken = {
        node.name
        for p in built.partition.regions
        if p.region.backend == "ea"
        for node in p.region.nodes
    }
    assert {node.name for node in layers} <= taken
