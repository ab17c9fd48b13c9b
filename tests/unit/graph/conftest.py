"""Graphs that several tests use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farm.graph import Graph, GraphBuilder

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


@pytest.fixture
def pair() -> Graph:
    return quantised_pair()
