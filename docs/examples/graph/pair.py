"""Two quantised layers for the accelerator with a float step between them, which it cannot do.

As a program it builds the graph on the farm (FARM_TRACKER), runs it on an accelerator and shows what ran where.
"""

import itertools

import numpy as np

import farm
from farm.graph import GraphBuilder, GraphModule, TargetBackend, build_graph, execute, placement

ROWS, SIZES = 32, (64, 48, 16)


def make_graph():
    """Return dense, bias, rescaling to int8; back to floats, leaky ReLU, to int8 again; another layer."""
    rng = np.random.default_rng(7)
    b = GraphBuilder("pair")
    value = b.input("x", (ROWS, SIZES[0]), "int8")
    for number, (inputs, outputs) in enumerate(itertools.pairwise(SIZES), 1):
        weight = b.constant(rng.integers(-127, 128, (outputs, inputs)).astype(np.int8))
        bias = b.constant(rng.integers(-4000, 4000, outputs).astype(np.int32))
        multiplier = b.constant(rng.integers(1 << 30, 1 << 31, outputs).astype(np.int32))
        shift = b.constant(np.full(outputs, 40, np.int32))
        total = b.op("add", b.op("dense", value, weight), bias)
        value = b.op("requantize", total, multiplier, shift, name=f"layer{number}")
        if (
            number == 1
        ):  # scales are powers of two, so that floats are exact, and the result equal bit for bit
            real = b.op("dequantize", value, b.constant(np.float32(0.25)), name="real")
            bent = b.op("leaky_relu", real, slope=0.125, name="bent")
            value = b.op("quantize", bent, b.constant(np.float32(0.25)), name="again")
    return b.finish(value)


graph = make_graph()
backends = [TargetBackend("ea")]

if __name__ == "__main__":
    x = np.random.default_rng(1).integers(-128, 128, (ROWS, SIZES[0])).astype(np.int8)
    with farm.connect() as client:
        built = build_graph(graph, backends, builder=client.build)  # one artifact
        with client.acquire("kind=ea") as session:
            module = GraphModule(built, session.load(built.artifact))
            (result,) = module([x])
            report = placement(built.partition, module.measure([x]))
    assert (result == execute(graph, [x])[0]).all()
    print(report.to_text())
