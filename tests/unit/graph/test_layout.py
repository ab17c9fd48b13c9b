"""Channels last: the same graph, with transpositions at its edges only."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farm
from farm.graph import (
    Graph,
    GraphBuilder,
    GraphModule,
    TargetBackend,
    build_graph,
    channels_last,
    execute,
    partition,
)

EXAMPLE = Path(__file__).resolve().parents[3] / "docs/examples/graph/residual.py"
RNG = np.random.default_rng(5)


def whole(*shape: int, dtype: str = "int8", low: int = -90, high: int = 90) -> Any:
    return RNG.integers(low, high, shape).astype(dtype)


def rescale(b: GraphBuilder, value: str, channels: int, axis: int) -> str:
    multiplier = b.constant(whole(channels, dtype="int32", low=1 << 30, high=(1 << 31) - 1))
    shift = b.constant(np.full(channels, 38, np.int32))
    return b.op("requantize", value, multiplier, shift, axis=axis)


def network(layout: str) -> Graph:
    """A small residual network: convolution, pool, a block with a way around it, a table, a mean, a product."""
    last = layout == "NHWC"
    axis = 3 if last else 1

    def image(*sizes: int) -> tuple[int, ...]:  # of channels first
        return sizes if not last else (sizes[0], sizes[2], sizes[3], sizes[1])

    def weights(outputs: int, inputs: int, kernel: int) -> Any:
        shape = (outputs, inputs, kernel, kernel)
        return whole(*((kernel, kernel, inputs, outputs) if last else shape))

    def each(channels: int) -> tuple[int, ...]:
        return (channels,) if last else (channels, 1, 1)

    b = GraphBuilder("residual")
    x = b.input("x", image(2, 3, 13, 9), "int8")
    options = {"layout": layout}
    y = b.op("conv2d", x, b.constant(weights(8, 3, 3)), stride=[2, 1], padding=[1, 1], **options)
    y = b.op("add", y, b.constant(whole(*each(8), dtype="int32") * 50))
    y = b.op("relu", rescale(b, y, 8, axis))
    y = b.op("max_pool2d", y, kernel=[3, 3], stride=[2, 2], padding=[1, 1], name="pool", **options)
    z = b.op("conv2d", y, b.constant(weights(8, 8, 3)), padding=[1, 1], name="inner", **options)
    kept = b.op("multiply", b.op("cast", y, dtype="int32"), b.constant(np.int32(77)), name="kept")
    z = b.op("add", b.op("add", z, kept), b.constant(whole(*each(8), dtype="int32")))
    z = b.op("relu", rescale(b, z, 8, axis), name="block")
    z = b.op("lookup", z, b.constant(whole(256)), name="bent")
    z = b.op("avg_pool2d", z, kernel=[4, 5], stride=[4, 5], name="mean", **options)
    flat = b.op("reshape", z, shape=[2, 8])
    return b.finish(b.op("dense", flat, b.constant(whole(4, 8)), name="y"), "bent")


def arrays(graph: Graph) -> list[Any]:
    return [whole(*graph.types[name].shape) for name in graph.inputs]


def test_turned_network_computes_the_same_and_transposes_at_its_edges_only() -> None:
    graph = network("NCHW")
    turned = channels_last(graph)
    assert (turned.inputs, turned.outputs) == (graph.inputs, graph.outputs)
    assert all(turned.types[name] == graph.types[name] for name in (*graph.inputs, *graph.outputs))
    given = arrays(graph)
    for found, wanted in zip(execute(turned, given), execute(graph, given), strict=True):
        np.testing.assert_array_equal(found, wanted)
    turns = [node for node in turned.nodes if node.operator == "transpose"]
    assert [node.inputs[0] for node in turns] == ["x", "mean/nhwc", "bent/nhwc"]
    layouts = {node.attributes["layout"] for node in turned.nodes if "layout" in node.attributes}
    assert layouts == {"NHWC"}
    assert channels_last(turned).nodes == turned.nodes


@pytest.mark.parametrize("config", ["ea8", "ea16"])
def test_network_with_channels_last_runs_on_the_accelerator_bit_for_bit(config: str) -> None:
    graph = network("NHWC")
    built = build_graph(graph, [TargetBackend(f"ea -config={config}")])
    given = arrays(graph)
    with farm.load(built.artifact) as module:
        outputs = GraphModule(built, module)(given)
    for found, wanted in zip(outputs, execute(graph, given), strict=True):
        np.testing.assert_array_equal(found, wanted)
    on_cpu = {
        node.operator
        for placed in built.partition.regions
        for node in placed.region.nodes
        if placed.region.backend == "cpu"
    }
    assert on_cpu == {"reshape"}


def test_network_with_channels_first_is_refused_with_what_to_do_until_it_is_turned() -> None:
    graph = network("NCHW")
    reasons = partition(graph, [TargetBackend()]).reasons
    assert "(use NHWC" in reasons["inner"]
    assert "(use NHWC" in reasons["pool"]
    placed = partition(channels_last(graph), [TargetBackend()])
    assert {placed.region_of(name).region.backend for name in ("inner", "pool", "mean")} == {"ea"}


def test_graphs_that_cannot_be_turned_stay_as_they_are() -> None:
    b = GraphBuilder("other")
    x, w = b.input("x", (1, 2, 5, 5)), b.input("w", (3, 2, 3, 3))
    y = b.op("conv2d", x, w)  # weights that are no constant
    graph = b.finish(b.op("relu", y))
    assert channels_last(graph).nodes == graph.nodes


def test_channels_that_meet_in_concatenations_and_constants_are_turned() -> None:
    b = GraphBuilder("joined")
    x = b.input("x", (1, 2, 6, 5))
    parts = [b.op("conv2d", x, b.constant(whole(n, 2, 2, 2).astype("float32"))) for n in (3, 4)]
    y = b.op("concat", *parts, axis=1)
    y = b.op("multiply", y, b.constant(whole(1, 7, 1, 1).astype("float32")))
    y = b.op("add", y, b.constant(whole(5, 4).astype("float32")))
    graph = b.finish(y)
    turned = channels_last(graph)
    given = [whole(1, 2, 6, 5).astype("float32")]
    np.testing.assert_allclose(execute(turned, given)[0], execute(graph, given)[0])
    assert sum(node.operator == "transpose" for node in turned.nodes) == 2


def test_example_of_a_residual_network_is_the_accelerator_s(capsys: Any) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    report = capsys.readouterr().out
    cpu = {
        line.split()[1]
        for line in report.splitlines()
        if "residual_cpu" in "".join(line.split()[2:3])
    }
    assert cpu == {"transpose", "reshape", "dequantize", "softmax"}
