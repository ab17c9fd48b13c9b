"""Each operator: the reference against the tensor expression that the CPU runs, and what schemas refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farm.errors import InvalidGraph
from farm.graph import OPERATORS, GraphBuilder, execute, find_operator, from_json, to_json
from farm.graph.arithmetic import COMPUTE
from farm.graph.cost import cpu_seconds, operations
from farm.ir import as_dtype, interpret
from farm.te import function, placeholder

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(11)


def whole(*shape: int, dtype: str = "float32") -> Array:
    low = 0 if dtype.startswith("u") else -9
    return RNG.integers(low, 10, shape).astype(dtype)


INT8, INT32 = "int8", "int32"
AROUND = [(1, 0), (0, 2)]
CASES: list[tuple[str, list[Array], dict[str, Any]]] = [
    ("matmul", [whole(2, 3, 4), whole(4, 5)], {}),
    (
        "matmul",
        [whole(4, 3, dtype=INT8), whole(5, 4, dtype=INT8)],
        {"transpose_a": True, "transpose_b": True},
    ),
    ("matmul", [whole(3, 4, dtype=INT32) * 99999, whole(4, 2, dtype=INT32) * 99999], {}),
    ("dense", [whole(3, 4), whole(5, 4), whole(5)], {}),
    ("dense", [whole(3, 4, dtype="uint8"), whole(5, 4, dtype="uint8")], {}),
    (
        "conv2d",
        [whole(1, 4, 5, 6), whole(2, 2, 3, 2)],
        {"groups": 2, "stride": [2, 1], "padding": [1, 0], "dilation": [1, 2]},
    ),
    (
        "conv2d",
        [whole(2, 5, 5, 3, dtype=INT8), whole(3, 3, 1, 3, dtype=INT8)],
        {"groups": 3, "layout": "NHWC"},
    ),
    ("conv1d", [whole(1, 4, 9), whole(6, 2, 3)], {"groups": 2, "stride": 2, "padding": 1}),
    ("max_pool2d", [whole(1, 2, 5, 5)], {"kernel": [2, 3], "stride": [2, 1], "padding": [1, 1]}),
    ("max_pool2d", [whole(1, 2, 4, 4, dtype=INT8)], {"kernel": [2, 2], "stride": [2, 2]}),
    ("avg_pool2d", [whole(1, 2, 4, 4)], {"kernel": [2, 2], "stride": [2, 2], "padding": [1, 0]}),
    *(
        (
            name,
            [whole(2, 5, 4, 3, dtype=INT8) * 13],
            {"kernel": [3, 2], "stride": [2, 1], "padding": [1, 0], "layout": "NHWC"},
        )
        for name in ("max_pool2d", "avg_pool2d")
    ),
    ("avg_pool2d", [whole(1, 2, 4, 4, dtype="uint8")], {"kernel": [2, 2], "stride": [1, 1]}),
    ("lookup", [whole(3, 4, dtype=INT8) * 14, np.arange(256, dtype=np.int32)[::-1]], {}),
    *(
        (name, [whole(3, 4), whole(4) + 0.5], {})
        for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum")
    ),
    *(
        (name, [whole(3, 4, dtype=INT8) * 11, whole(3, 1, dtype=INT8) * 11], {})
        for name in ("add", "subtract", "multiply", "maximum", "minimum")
    ),
    *(
        (name, [whole(3, 4) / 4], {})
        for name in ("exp", "gelu", "sigmoid", "tanh", "relu", "leaky_relu")
    ),
    ("sqrt", [np.abs(whole(3, 4))], {}),
    ("relu", [whole(3, 4, dtype=INT8)], {}),
    ("clip", [whole(3, 4, dtype=INT8)], {"low": -3, "high": 4}),
    ("clip", [whole(3, 4)], {"low": -2.5, "high": 4}),
    ("cast", [whole(3, 4) * 77.7], {"dtype": "uint8"}),
    ("cast", [np.float32([np.nan, np.inf, -np.inf, 3e9, -3e9, 2.9, -2.9])], {"dtype": INT32}),
    ("cast", [whole(3, 4, dtype=INT32) * 999], {"dtype": INT8}),
    ("cast", [whole(3, 4)], {"dtype": "bool"}),
    *((name, [whole(2, 3, 4)], {"axes": [0, 2]}) for name in ("sum", "mean", "max", "min")),
    ("sum", [whole(2, 30, dtype=INT8) * 11], {"keepdims": True}),
    ("softmax", [whole(3, 4) / 2], {}),
    ("layer_norm", [whole(3, 8) + 0.5, whole(8), whole(8)], {"epsilon": 1e-3}),
    ("transpose", [whole(2, 3, 4, dtype=INT8)], {"axes": [1, 2, 0]}),
    ("transpose", [whole(2, 3)], {}),
    ("reshape", [whole(2, 6, dtype=INT8)], {"shape": [3, -1]}),
    ("pad", [whole(2, 3, dtype=INT8)], {"around": AROUND, "value": 7}),
    ("concat", [whole(2, 3, dtype=INT8), whole(2, 1, dtype=INT8)], {"axis": 1}),
    ("resize", [whole(1, 1, 4, 3, dtype=INT8)], {"size": [6, 7]}),
    ("resize", [whole(1, 1, 4, 3)], {"size": [6, 7], "method": "bilinear"}),
    ("quantize", [whole(3, 4) / 3, np.full((), 0.1, np.float32)], {}),
    (
        "quantize",
        [whole(3, 4) * 99, np.float32([0.1, 0.2, 0.5]), whole(3, dtype="uint8")],
        {"axis": 0, "dtype": "uint8"},
    ),
    (
        "dequantize",
        [whole(3, 4, dtype=INT8), np.float32([0.1, 0.2, 0.5, 2]), whole(4, dtype=INT8)],
        {},
    ),
    (
        "requantize",
        [
            whole(3, 4, dtype=INT32) * 9999,
            whole(3, dtype=INT32) + (1 << 30),
            whole(3, dtype=INT32) + 45,
        ],
        {"axis": 0, "zero_point": -5},
    ),
    (
        "requantize",
        [
            whole(3, 4, dtype=INT32) * 99999999,
            whole(4, dtype=INT32) * 99999999,
            whole(4, dtype=INT32) + 20,
        ],
        {"dtype": "uint8", "zero_point": 9},
    ),
]


@pytest.mark.parametrize(
    ("operator", "arrays", "attributes"), CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)]
)
def test_reference_and_tensor_expression_agree(
    operator: str, arrays: list[Array], attributes: dict[str, Any]
) -> None:
    b = GraphBuilder("one")
    names = [b.input(f"in{n}", a.shape, a.dtype.name) for n, a in enumerate(arrays)]
    graph = b.finish(b.op(operator, *names, **attributes))
    (node,) = graph.nodes
    (wanted,) = execute(graph, arrays)
    tensors = [placeholder(a.shape, a.dtype.name, f"in{n}") for n, a in enumerate(arrays)]
    lowered = function("f", [*tensors, node.schema.lower(*tensors, **node.attributes)])
    (found,) = interpret(lowered, arrays)
    kind = graph.types[node.output]
    assert (found.dtype.name, found.shape) == (str(kind.dtype), kind.shape)
    assert wanted.shape == kind.shape
    if kind.dtype.is_float:
        assert wanted.dtype == np.float64
        np.testing.assert_allclose(found, wanted, rtol=3e-5, atol=1e-6)
    else:
        assert wanted.dtype == found.dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("operator", ["relu", "add", "cast"])
def test_other_floats_are_computed_in_float64(kind: str, operator: str) -> None:
    b = GraphBuilder("one")
    x = b.input("x", (2, 3), kind)
    c = b.constant(np.float64([[0.5, 1, -2]]).astype(as_dtype(kind).numpy), "c")
    operands, attributes = {
        "relu": ((x,), {}),
        "add": ((x, c), {}),
        "cast": ((x,), {"dtype": kind}),
    }[operator]
    graph = from_json(to_json(b.finish(b.op(operator, *operands, **attributes))))
    values = np.float64([[-1, 0.25, 3], [2, -4, 0]])
    (found,) = execute(graph, [values.astype(as_dtype(kind).numpy)])
    wanted = {
        "relu": np.maximum(values, 0),
        "add": values + np.float64([0.5, 1, -2]),
        "cast": values,
    }
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, wanted[operator])


def test_rough_count_of_work_is_that_of_the_loops() -> None:
    b = GraphBuilder("g")
    x = b.input("x", (1, 4, 9))
    y = b.op("conv1d", x, b.input("w", (6, 2, 3)), groups=2, name="c1")  # 1 x 6 x 7, 2 x 3 each
    flat = b.op("reshape", y, shape=[6, 7], name="flat")
    d = b.op("dense", flat, b.input("v", (5, 7)), name="d")
    m = b.op("matmul", d, b.input("u", (6, 2)), transpose_a=True, name="m")
    image = b.op("reshape", m, shape=[1, 1, 5, 2], name="image")
    p = b.op("max_pool2d", image, kernel=[2, 2], stride=[1, 1], name="p")
    graph = b.finish(b.op("exp", p, name="e"))
    counts = {node.name: operations(graph, node) for node in graph.nodes}
    assert counts == {"c1": 252, "flat": 42, "d": 210, "m": 60, "image": 10, "p": 16, "e": 40}
    assert cpu_seconds(graph, graph.nodes) > 0


def test_every_operator_has_a_meaning_and_a_case() -> None:
    assert set(OPERATORS) == set(COMPUTE) == {case[0] for case in CASES}


def test_operator_of_unknown_name_or_version_is_refused_by_name() -> None:
    with pytest.raises(InvalidGraph, match="operator 'gemm': unknown; known are add, "):
        find_operator("gemm")
    with pytest.raises(InvalidGraph, match="operator dense: version 7 is unknown here"):
        find_operator("dense", 7)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"strides": [1, 1]},
            "unknown attribute 'strides'; it has dilation, groups, layout, padding",
        ),
        ({"stride": "2"}, "attribute stride is '2'; give a list of integers"),
        ({"stride": [1, True]}, "attribute stride is .*; give a list of integers"),
        ({"stride": [1] * 65}, "attribute stride is .*; give a list of integers"),
        ({"groups": 1.5}, "attribute groups is '1.5'; give an integer"),
        ({"groups": True}, "attribute groups is 'True'; give an integer"),
        ({"layout": 3}, "attribute layout is '3'; give text"),
        ({"layout": "CHWN"}, "conv2d: layout 'CHWN'; use one of NCHW, NHWC"),
        ({"groups": 3}, "conv2d: 4 channels and 2 outputs in 3 groups"),
    ],
)
def test_bad_attribute_is_refused_with_node_and_reason(
    attributes: dict[str, Any], message: str
) -> None:
    b = GraphBuilder("g")
    x, w = b.input("x", (1, 4, 5, 5)), b.input("w", (2, 4, 3, 3))
    with pytest.raises(InvalidGraph, match=rf"^graph g: node c \(conv2d\): {message}"):
        b.op("conv2d", x, w, name="c", **attributes)


@pytest.mark.parametrize(
    ("operator", "attributes", "message"),
    [
        ("clip", {"low": 0}, "attribute high is missing; give a finite number"),
        ("clip", {"low": 0, "high": float("inf")}, "attribute high is 'inf'; give a finite number"),
        ("cast", {"dtype": "int9"}, "attribute dtype: dtype: unknown"),
        ("sum", {"keepdims": 1}, "attribute keepdims is '1'; give true or false"),
        ("sum", {"axes": 1}, "attribute axes is '1'; give a list of integers, or nothing"),
        ("pad", {"around": [(1, 2, 3)]}, "attribute around is .*; give a list of two integers"),
        ("dense", {}, "1 operands; it takes 2 to 3"),
        ("reshape", {"shape": [5]}, "reshape: shape \\(5,\\) of \\(2, 3\\)"),
    ],
)
def test_bad_use_is_refused(operator: str, attributes: dict[str, Any], message: str) -> None:
    b = GraphBuilder("g")
    x = b.input("x", (2, 3))
    with pytest.raises(InvalidGraph, match=message):
        b.op(operator, x, **attributes)
