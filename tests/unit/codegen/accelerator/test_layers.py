"""What a function computes is recognised for what it is, whatever it was written from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm import ops, te
from farm.codegen.accelerator import layer_of
from farm.errors import UnsupportedFunction
from farm.ir import interpret
from farm.schedule import Schedule

PAIRS = st.tuples(st.integers(1, 2), st.integers(1, 3))


@settings(max_examples=60)
@given(
    nhwc=st.booleans(),
    n=st.integers(1, 2),
    c=st.integers(1, 3),
    o=st.integers(1, 3),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=PAIRS,
    dilation=PAIRS,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    swapped=st.booleans(),
    scheduled=st.booleans(),
    seed=st.integers(0, 99),
)
def test_convolution_is_recognised_with_its_sizes(
    nhwc, n, c, o, kernel, stride, dilation, padding, swapped, scheduled, seed
):
    h, w = 7, 8
    x = te.placeholder((n, h, w, c) if nhwc else (n, c, h, w), "int8", name="x")
    k = te.placeholder((*kernel, c, o) if nhwc else (o, c, *kernel), "int8", name="k")
    y = ops.conv2d(
        x, k, stride=stride, dilation=dilation, padding=padding, layout="NHWC" if nhwc else "NCHW"
    )
    f = te.function("layer", [k, x, y] if swapped else [x, k, y])
    f = Schedule(f).function if scheduled else f
    layer = layer_of(f)
    rng = np.random.default_rng(seed)
    arrays = {t.name: rng.integers(-128, 128, t.shape, np.int8) for t in (x, k)}
    given_ = [arrays[t.name] for t in ((k, x) if swapped else (x, k))]
    assert layer.is_plain
    assert layer.kind == "conv2d" or 1 in (*kernel, c)  # else it may be read in two ways
    if layer.kind != "conv2d":
        return
    (wanted,) = interpret(f, given_)
    found = convolve(layer.sizes, given_[layer.sizes["arg_x"]], given_[layer.sizes["arg_w"]])
    assert np.array_equal(found, wanted)


def convolve(s, x, k):
    """Compute a convolution from nothing but its sizes."""
    if not s["nhwc"]:
        x, k = x.transpose(0, 2, 3, 1), k.transpose(2, 3, 1, 0)
    x = np.pad(
        x.astype(np.int32), ((0, 0), (s["top"], s["bottom"]), (s["left"], s["right"]), (0, 0))
    )
    out = np.zeros((s["n"], s["oh"], s["ow"], s["o"]), np.int32)
    for r in range(s["kh"]):
        for q in range(s["kw"]):
            rows = slice(r * s["dh"], r * s["dh"] + (s["oh"] - 1) * s["sh"] + 1, s["sh"])
            columns = slice(q * s["dw"], q * s["dw"] + (s["ow"] - 1) * s["sw"] + 1, s["sw"])
            out += x[:, rows, columns] @ k[r, q].astype(np.int32)
    return out if s["nhwc"] else out.transpose(0, 3, 1, 2)


@pytest.mark.parametrize("transposed", [False, True])
def test_product_is_recognised_with_what_is_around_it(transposed):
    x = te.placeholder((5, 7), "int8", name="x")
    w = te.placeholder((3, 7) if transposed else (7, 3), "int8", name="w")
    b = te.placeholder((3,), "int32", name="b")
    product = ops.matmul(x, w, transpose_b=transposed)
    y = te.compute((5, 3), lambda i, j: te.maximum(product[i, j] + b[j], 0), name="y")
    layer = layer_of(te.function("layer", [x, w, b, y]))
    assert (layer.kind, layer.is_plain) == ("dense", False)
    assert dict(layer.sizes) == {
        "m": 5, "n": 3, "k": 7, "transposed": int(transposed), "arg_x": 0, "arg_w": 1, "arg_out": 3
    }  # fmt: skip


def test_element_wise_function_has_no_product():
    x = te.placeholder((4,), "int32", name="x")
    layer = layer_of(te.function("f", [x, te.compute((4,), lambda i: x[i] + 1, name="y")]))
    assert (layer.kind, layer.product, layer.sizes) == ("elementwise", None, {"arg_out": 1})


def unlike(kind):
    x, w = (te.placeholder((4, 4), "int8", name=name) for name in "xw")
    k, i = te.reduce_axis(4, "k"), te.reduce_axis(4, "i")
    if kind == "maximum":
        return [x, te.compute((4,), lambda a: te.max(x[a, k], k), name="y")]
    if kind == "square":
        return [x, te.compute((4,), lambda a: te.sum(x[a, k] + x[k, a], k), name="y")]
    if kind == "two":
        first = ops.matmul(x, w)
        return [
            x,
            w,
            te.compute((4, 4), lambda a, b: te.sum(first[a, i] * first[i, b], i), name="y"),
        ]
    if kind == "part":
        whole = ops.matmul(x, w)
        return [x, w, te.compute((2, 4), lambda a, b: whole[a, b] + 1, name="y")]
    if kind == "plane":
        v = te.placeholder((4, 4, 2), "int8", name="v")
        plane = te.compute((4, 4), lambda a, b: te.where(a < 3, v[a, b, 0], 0), name="plane")
        return [v, w, ops.matmul(plane, w)]
    moved = te.compute((4, 4), lambda a, b: x[a, b] + x[b, a], name="moved")
    return [x, w, ops.matmul(moved, moved)]


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("maximum", "not as a sum of products"),
        ("square", "not as a sum of products"),
        ("two", "no layer"),
        ("moved", "neither factor of its products is an input"),
        ("part", "y has not all of matmul"),
        ("plane", "plane is no input, nor an input with zeros around it"),
    ],
)
def test_function_that_is_no_layer_is_refused_with_the_reason(kind, problem):
    buffers = unlike(kind)
    used = [b for b in buffers if b.name != "w" or kind in ("two", "part", "plane")]
    with pytest.raises(UnsupportedFunction, match=problem):
        layer_of(te.function("f", used))
