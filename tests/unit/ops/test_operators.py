"""Each operator against numpy, through the interpreter."""

from __future__ import annotations

import doctest
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import farm.ops
import farm.ops as ops
import farm.te as te
from farm.errors import InvalidFunction
from farm.ir import interpret

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)


def whole(*shape: int, dtype: str = "float32") -> Array:
    low = 0 if dtype.startswith("u") else -6
    return RNG.integers(low, 7, shape).astype(dtype)


def run(operator: Callable[..., te.Tensor], *arrays: Array, **options: Any) -> Array:
    tensors = [te.placeholder(a.shape, a.dtype.name, f"in{n}") for n, a in enumerate(arrays)]
    (found,) = interpret(te.function("f", [*tensors, operator(*tensors, **options)]), list(arrays))
    return found


def same(found: Array, wanted: Array) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind == "f":
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("ta", "tb"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype", ["float32", "int8", "int32", "uint8"])
@pytest.mark.parametrize("batches", [((), ()), ((2,), ()), ((2, 1), (3,))])
def test_matmul(ta: bool, tb: bool, dtype: str, batches: Any) -> None:
    a = whole(*batches[0], *((4, 3) if ta else (3, 4)), dtype=dtype)
    b = whole(*batches[1], *((5, 4) if tb else (4, 5)), dtype=dtype)
    wide = "int32" if dtype in ("int8", "uint8") else dtype
    left, right = (np.swapaxes(x, -1, -2) if t else x for x, t in ((a, ta), (b, tb)))
    wanted = np.matmul(left.astype(wide), right.astype(wide))
    same(run(ops.matmul, a, b, transpose_a=ta, transpose_b=tb), wanted)


def test_dense() -> None:
    x, w, bias = whole(3, 4), whole(5, 4), whole(5)
    same(run(ops.dense, x, w, bias), x @ w.T + bias)


def convolved(x: Array, w: Array, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    """Return an NCHW convolution, place by place."""
    (sh, sw), (ph, pw), (dh, dw) = stride, padding, dilation
    x = np.pad(x, [(0, 0), (0, 0), (ph, ph), (pw, pw)])
    n, _, height, width = x.shape
    outputs, each, kh, kw = w.shape
    oh, ow = (height - dh * (kh - 1) - 1) // sh + 1, (width - dw * (kw - 1) - 1) // sw + 1
    y = np.zeros((n, outputs, oh, ow), x.dtype)
    for o, i, j in itertools.product(range(outputs), range(oh), range(ow)):
        first = o // (outputs // groups) * each
        part = x[:, first : first + each, i * sh :, j * sw :]
        part = part[:, :, : dh * (kh - 1) + 1 : dh, : dw * (kw - 1) + 1 : dw]
        y[:, o, i, j] = (part * w[o]).sum((1, 2, 3))
    return y


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("channels", "outputs", "groups", "stride", "padding", "dilation"),
    [
        (2, 3, 1, (1, 1), (0, 0), (1, 1)),
        (2, 2, 1, (2, 1), (1, 1), (1, 1)),
        (1, 2, 1, (1, 1), (1, 2), (2, 1)),
        (4, 2, 2, (1, 1), (1, 0), (1, 1)),
        (3, 3, 3, (1, 1), (1, 1), (1, 1)),
        (2, 4, 2, (2, 2), (0, 1), (1, 2)),
    ],
)
def test_conv2d(
    layout: str,
    channels: int,
    outputs: int,
    groups: int,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> None:
    x, w = whole(1, channels, 5, 6), whole(outputs, channels // groups, 2, 3)
    wanted = convolved(x, w, stride, padding, dilation, groups)
    options: dict[str, Any] = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "layout": layout,
    }
    if layout == "NCHW":
        same(run(ops.conv2d, x, w, **options), wanted)
    else:
        turned = (x.transpose(0, 2, 3, 1).copy(), w.transpose(2, 3, 1, 0).copy())
        same(run(ops.conv2d, *turned, **options), wanted.transpose(0, 2, 3, 1))


def test_convolution_of_bytes_sums_in_int32() -> None:
    x, w = whole(1, 2, 4, 4, dtype="int8") * 20, whole(2, 2, 3, 3, dtype="int8") * 20
    wide = convolved(x.astype("int32"), w.astype("int32"), (1, 1), (1, 1), (1, 1), 1)
    same(run(ops.conv2d, x, w, padding=1), wide)


def test_conv1d() -> None:
    x, w = whole(2, 4, 7), whole(6, 2, 3)
    wanted = convolved(x[:, :, None], w[:, :, None], (1, 2), (0, 1), (1, 2), 2)[:, :, 0]
    same(run(ops.conv1d, x, w, stride=2, padding=1, dilation=2, groups=2), wanted)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(2, None, 0), (3, 2, 1), ((2, 3), (1, 2), (1, 0))]
)
def test_pooling(dtype: str, kernel: Any, stride: Any, padding: Any) -> None:
    x = whole(1, 2, 6, 5, dtype=dtype)
    size = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    step = size if stride is None else stride if isinstance(stride, tuple) else (stride, stride)
    border = padding if isinstance(padding, tuple) else (padding, padding)
    edges = [(0, 0), (0, 0), *((b, b) for b in border)]

    def windows(outside: float) -> Array:
        padded = np.pad(x, edges, constant_values=outside)
        view = np.lib.stride_tricks.sliding_window_view(padded, size, (2, 3))
        return view[:, :, :: step[0], :: step[1]]

    lowest = -np.inf if dtype == "float32" else -128
    found = run(ops.max_pool2d, x, kernel=kernel, stride=stride, padding=padding)
    same(found, windows(lowest).max((-1, -2)))
    if dtype == "float32":
        found = run(ops.avg_pool2d, x, kernel=kernel, stride=stride, padding=padding)
        same(found, windows(0).mean((-1, -2)).astype(dtype))


BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((3,), ())])
def test_binary_broadcasts(name: str, shapes: Any) -> None:
    a, b = (whole(*shape, dtype="int32") for shape in shapes)
    same(run(getattr(ops, name), a, b), np.asarray(BINARY[name](a, b)))


UNARY: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, np.float32(0.01) * x),
    "exp": np.exp,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    x = np.linspace(0 if name == "sqrt" else -4, 4, 17, dtype=np.float32)
    same(run(getattr(ops, name), x), UNARY[name](x).astype(np.float32))


def test_divide_and_clip() -> None:
    a, b = whole(4), whole(4) + np.float32(9)
    same(run(ops.divide, a, b), a / b)
    same(run(ops.clip, whole(9, dtype="int8"), low=2, high=2), np.full(9, 2, np.int8))


@pytest.mark.parametrize("axes", [None, 0, -1, (0, 2), (1,)])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "max", "min", "mean"])
def test_reduction(name: str, axes: Any, keepdims: bool) -> None:
    x = whole(2, 3, 4)
    wanted = np.asarray(getattr(np, name)(x, axis=axes, keepdims=keepdims), np.float32)
    same(run(getattr(ops, name), x, axes=axes, keepdims=keepdims), wanted)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 2, 3)])
def test_softmax_and_layer_norm(shape: tuple[int, ...]) -> None:
    x, gamma, beta = whole(*shape), whole(shape[-1]), whole(shape[-1])
    power = np.exp(x - x.max(-1, keepdims=True))
    same(run(ops.softmax, x), power / power.sum(-1, keepdims=True))
    centred = x - x.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    same(run(ops.layer_norm, x, gamma, beta), (centred * scale * gamma + beta).astype(np.float32))


def test_moving_elements() -> None:
    x = whole(2, 3, 4)
    same(run(ops.transpose, x), x.T)
    same(run(ops.transpose, x, axes=(1, 0, 2)), x.transpose(1, 0, 2))
    same(run(ops.reshape, x, shape=(4, -1)), x.reshape(4, 6))
    same(run(ops.reshape, x, shape=(24,)), x.reshape(24))
    around = [(0, 1), (2, 0), (0, 0)]
    same(run(ops.pad, x, around=around, value=5), np.pad(x, around, constant_values=5))
    parts = [whole(2, n) for n in (1, 3, 2)]
    same(run(lambda *t: ops.concat(t, axis=-1), *parts), np.concatenate(parts, -1))


def test_resize() -> None:
    x = whole(1, 2, 3, 4)
    rows, columns = np.arange(5) * 3 // 5, np.arange(6) * 4 // 6
    same(run(ops.resize, x, size=(5, 6)), x[:, :, rows][:, :, :, columns])

    def places(old: int, new: int) -> tuple[Array, Array, Array]:
        at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        low = np.floor(at).astype(int)
        return low, np.minimum(low + 1, old - 1), at - low

    (t, b, d), (le, r, o) = places(3, 5), places(4, 6)
    upper = x[:, :, t][..., le] * (1 - o) + x[:, :, t][..., r] * o
    lower = x[:, :, b][..., le] * (1 - o) + x[:, :, b][..., r] * o
    wanted = upper * (1 - d)[:, None] + lower * d[:, None]
    same(run(ops.resize, x, size=(5, 6), method="bilinear"), wanted.astype(np.float32))


def test_quantisation() -> None:
    x = np.linspace(-5, 5, 21, dtype=np.float32)
    wanted = np.clip(np.floor(x / np.float32(0.03) + 0.5) + 3, -128, 127).astype(np.int8)
    same(run(ops.quantize, x, scale=0.03, zero_point=3), wanted)
    back = (wanted.astype(np.float32) - 3) * np.float32(0.03)
    same(run(ops.dequantize, wanted, scale=0.03, zero_point=3), back)
    sums = (RNG.integers(-(2**20), 2**20, (4, 3))).astype(np.int32)
    multiplier, shift = (
        np.array([1 << 30, 3 << 28, 5 << 28], np.int32),
        np.array([43, 44, 40], np.int32),
    )
    exact = (sums.astype(object) * multiplier + (1 << (shift.astype(object) - 1))) >> shift.astype(
        object
    )
    wanted = np.clip(exact.astype(np.int64) + 2, 0, 255).astype(np.uint8)
    same(run(ops.requantize, sums, multiplier, shift, zero_point=2, dtype="uint8"), wanted)


X = te.placeholder((2, 3, 4, 5), name="x")
W = te.placeholder((2, 4, 1, 1), name="w")
I = te.placeholder((4,), "int32", name="i")  # noqa: E741


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.matmul(X, I), "matmul: x is float32, i is int32; use one type"),
        (lambda: ops.matmul(I, I), r"matmul: shapes \(4,\) and \(4,\); each needs two dimensions"),
        (lambda: ops.matmul(X, X), "matmul: inner extents 5 and 4 of"),
        (lambda: ops.conv2d(X, W), "conv2d: 3 channels and 2 outputs in 1 groups"),
        (lambda: ops.conv2d(X, X, layout="HW"), "conv2d: layout 'HW'; use one of NCHW, NHWC"),
        (lambda: ops.conv2d(X, I), "conv2d: i has shape .*; its rank must be 4"),
        (
            lambda: ops.conv2d(X, X, stride=0),
            "conv2d: stride, dilation and groups .*; use integers",
        ),
        (
            lambda: ops.conv2d(X, X, stride=(1, 2, 3)),
            "conv2d: stride .*; use one number, or one for",
        ),
        (lambda: ops.max_pool2d(X, 6), "max_pool2d: a window of 6 does not fit into 4"),
        (lambda: ops.max_pool2d(X, 2, padding=2), r"max_pool2d: padding \(2, 2\); use 0 to less"),
        (lambda: ops.max_pool2d(X, 2, layout="HW"), "max_pool2d: layout 'HW'; use one of"),
        (
            lambda: ops.avg_pool2d(te.placeholder((1, 1, 4, 4), "int32", name="z"), 2),
            "avg_pool2d: z is int32, with a window of 4; use floats, or integers of 8 or 16 bits",
        ),
        (lambda: ops.lookup(X, I), r"lookup: x is float32 and i has shape \(4,\); use int8"),
        (lambda: ops.add(X, te.placeholder((3,))), "add: shapes .* do not broadcast"),
        (lambda: ops.exp(I), "exp: i is int32; use a float type"),
        (lambda: ops.sum(X, (0, 0)), r"sum: axes \(0, 0\) of shape .*; name each once"),
        (lambda: ops.sum(X, 4), "sum: axis 4; x has shape"),
        (lambda: ops.softmax(te.placeholder((), name="s")), "softmax: s is a scalar"),
        (lambda: ops.layer_norm(X, X, X), "layer_norm: gamma .*, beta .*; use"),
        (lambda: ops.transpose(X, (0, 1)), "transpose: axes .*; name each once"),
        (lambda: ops.reshape(X, (7, -1)), "reshape: shape .*; keep the number of elements"),
        (lambda: ops.pad(X, [(0, 0)]), "pad: around .*; use two numbers for each axis"),
        (lambda: ops.concat([]), "concat: no tensors"),
        (lambda: ops.concat([X, te.placeholder((2, 3))]), "concat: shapes .* differ beside axis 0"),
        (lambda: ops.resize(X, 3, method="cubic"), "resize: method 'cubic'; use one of nearest"),
        (lambda: ops.quantize(X, 0.0), "quantize: scale 0.0; use a positive number"),
        (lambda: ops.quantize(X, 1.0, 300), "quantize: int8 with zero point 300; use"),
        (lambda: ops.dequantize(X, 1.0), "dequantize: from float32 to float32; use an integer"),
        (lambda: ops.requantize(X, I, I), "requantize: x is float32; use int32"),
        (lambda: ops.requantize(I, I, te.placeholder((3,), "int32")), "requantize: multiplier"),
    ],
)
def test_operands_that_do_not_fit_are_refused(call: Callable[[], te.Tensor], message: str) -> None:
    with pytest.raises(InvalidFunction, match=f"^{message}"):
        call()


def test_example_in_the_documentation_runs() -> None:
    assert doctest.testmod(farm.ops).failed == 0
