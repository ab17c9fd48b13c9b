"""A small quantised network of convolutions, channels first as most are made, for the accelerator.

As a program it shows who runs what: all integer layers are the accelerator's, nothing is unfolded on the CPU, which
only turns the image, and makes floats and chances of the last layer.
"""

import numpy as np

from farm.graph import GraphBuilder, TargetBackend, channels_last, partition, placement

RNG = np.random.default_rng(3)


def rescaled(b, sums, channels, name):
    """Return sums with a bias, rescaled to int8, and ReLU."""
    bias = b.constant(RNG.integers(-2000, 2000, (channels, 1, 1)).astype(np.int32))
    multiplier = b.constant(RNG.integers(1 << 30, 1 << 31, channels).astype(np.int32))
    shift = b.constant(np.full(channels, 40, np.int32))
    value = b.op("requantize", b.op("add", sums, bias), multiplier, shift, axis=1)
    return b.op("relu", value, name=name)


def convolution(b, value, inputs, outputs, kernel, groups=1, **options):
    """Return the sums of a convolution."""
    shape = (outputs, inputs // groups, kernel, kernel)
    weight = b.constant(RNG.integers(-127, 128, shape).astype(np.int8))
    border = [kernel // 2, kernel // 2]
    return b.op("conv2d", value, weight, padding=border, groups=groups, **options)


def make_graph():
    """Return convolution and pool, a residual block, a separable convolution, a mean and a product."""
    b = GraphBuilder("residual")
    value = b.input("image", (1, 3, 32, 32), "int8")
    value = rescaled(b, convolution(b, value, 3, 16, 3), 16, "stem")
    value = b.op("max_pool2d", value, kernel=[2, 2], stride=[2, 2], name="pool")
    sums = convolution(b, value, 16, 16, 3)
    kept = b.op("multiply", b.op("cast", value, dtype="int32"), b.constant(np.int32(300)))
    value = rescaled(b, b.op("add", sums, kept), 16, "block")
    value = rescaled(b, convolution(b, value, 16, 16, 3, groups=16, stride=[2, 2]), 16, "depthwise")
    value = rescaled(b, convolution(b, value, 16, 32, 1), 32, "pointwise")
    value = b.op("avg_pool2d", value, kernel=[8, 8], stride=[8, 8], name="mean")
    flat = b.op("reshape", value, shape=[1, 32])
    weight = b.constant(RNG.integers(-127, 128, (10, 32)).astype(np.int8))
    logits = b.op("dense", flat, weight, name="logits")
    real = b.op("dequantize", logits, b.constant(np.float32(1 / 4096)))
    return b.finish(b.op("softmax", real, name="chances"))


graph = channels_last(make_graph())
backends = [TargetBackend("ea")]

if __name__ == "__main__":
    parts = partition(graph, backends)
    print(placement(parts).to_text())
    layers = ("stem", "pool", "block", "depthwise", "pointwise", "mean", "logits")
    assert {parts.region_of(name).region.backend for name in layers} == {"ea"}
