"""What each operator computes, in plain numpy: the definition that everything else is compared with.

Owns: values of single operators; floats in float64, integers exact, wrapping at the end as the IR does. Does not own:
walking a graph (`farm.graph.reference`).

Invariant: nothing here shares code with `farm.ops` or a code generator.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from farm.core.elements import is_float
from farm.graph.types import Array
from farm.ir import DType

Compute = Callable[..., Array]
"""``(result type, operands, attributes) -> array``; floats come and go as float64."""

_EXACT_BITS = 16
"""Sums of products of integers this narrow are exact in float64 (below 2**53 for 2**21 terms and more)."""
_EXACT_TERMS = 1 << 20


def wide(array: Array) -> Array:
    """Return an array in the type in which it is computed: float64, uint64 or int64."""
    if is_float(array.dtype):
        return array.astype(np.float64)
    return array.astype(np.uint64 if array.dtype == np.uint64 else np.int64)


def _einsum(text: str, a: Array, b: Array) -> Array:
    """Return a sum of products; exact for integers (modulo 2**64 for the widest)."""
    narrow = all(x.dtype.kind in "iu" and x.dtype.itemsize * 8 <= _EXACT_BITS for x in (a, b))
    if narrow and max(a.size, b.size) <= _EXACT_TERMS:
        product = np.einsum(text, a.astype(np.float64), b.astype(np.float64), optimize=True)
        return np.asarray(product.astype(np.int64))
    return np.asarray(np.einsum(text, wide(a), wide(b)))


def _matmul(_: DType, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    a, b = operands
    a = np.swapaxes(a, -1, -2) if attributes.get("transpose_a") else a
    b = np.swapaxes(b, -1, -2) if attributes.get("transpose_b") else b
    return _einsum("...ik,...kj->...ij", a, b)


def _dense(_: DType, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x, weight, *bias = operands
    product = _einsum("...ik,jk->...ij", x, weight)
    return np.asarray(product + wide(bias[0])) if bias else product


def _conv2d(_: DType, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x, w = operands
    last = attributes["layout"] == "NHWC"
    if last:
        x, w = x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1)
    (sh, sw), (ph, pw) = attributes["stride"], attributes["padding"]
    (dh, dw), groups = attributes["dilation"], attributes["groups"]
    x = np.pad(x, [(0, 0), (0, 0), (ph, ph), (pw, pw)])
    n, channels, height, width = x.shape
    outputs, each, kh, kw = w.shape
    oh, ow = (height - dh * (kh - 1) - 1) // sh + 1, (width - dw * (kw - 1) - 1) // sw + 1
    grouped = w.reshape(groups, outputs // groups, each, kh, kw)
    total: Array | None = None
    for r, s in itertools.product(range(kh), range(kw)):
        top, left = r * dh, s * dw
        part = x[:, :, top : top + sh * (oh - 1) + 1 : sh, left : left + sw * (ow - 1) + 1 : sw]
        part = part.reshape(n, groups, channels // groups, oh, ow)
        term = _einsum("ngcij,goc->ngoij", part, grouped[..., r, s])
        total = term if total is None else total + term
    assert total is not None
    y = total.reshape(n, outputs, oh, ow)
    return y.transpose(0, 2, 3, 1) if last else y


def _conv1d(kind: DType, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x, w = operands
    both = {name: (1, attributes[name]) for name in ("stride", "dilation")}
    both |= {"padding": (0, attributes["padding"])}
    options = {**both, "groups": attributes["groups"], "layout": "NCHW"}
    return _conv2d(kind, [x[:, :, None], w[:, :, None]], options)[:, :, 0]


def _windows(x: Array, attributes: Mapping[str, Any], fill: float) -> Array:
    """Return the windows of images in either layout, ``kh, kw`` behind the axes of the result."""
    (ph, pw), (sh, sw) = attributes["padding"], attributes["stride"]
    first = 1 if attributes["layout"] == "NHWC" else 2
    around, steps = [(0, 0)] * 4, [slice(None)] * 4
    around[first : first + 2] = [(ph, ph), (pw, pw)]
    steps[first : first + 2] = [slice(None, None, sh), slice(None, None, sw)]
    padded = np.pad(x, around, constant_values=fill)
    axes = (first, first + 1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, attributes["kernel"], axes)
    return windows[tuple(steps)]


def _max_pool(kind: DType, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    lowest = -np.inf if kind.is_float else kind.min
    return np.asarray(_windows(wide(operands[0]), attributes, lowest).max((-2, -1)))


def _avg_pool(kind: DType, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    windows = _windows(wide(operands[0]), attributes, 0)
    if kind.is_float:
        return np.asarray(windows.mean((-2, -1)))
    count = windows.shape[-1] * windows.shape[-2]
    total = windows.astype(np.int64).sum((-2, -1))
    return np.asarray(np.sign(total) * ((2 * np.abs(total) + count) // (2 * count)))


def _reduction(function: Callable[..., Any]) -> Compute:
    def compute(_: DType, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
        (x,), axes = operands, attributes["axes"]
        return np.asarray(function(wide(x), axis=axes, keepdims=attributes["keepdims"]))

    return compute


def _softmax(_: DType, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x = wide(operands[0])
    power = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(power / power.sum(-1, keepdims=True))


def _layer_norm(_: DType, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x, gamma, beta = map(wide, operands)
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    scaled: Array = centred / np.sqrt(variance + attributes["epsilon"]) * gamma + beta
    return scaled


def _channel(x: Array, values: Array, axis: int) -> Array:
    """Return values for each place on an axis of `x`, ready to broadcast."""
    if not values.shape:
        return values
    extents = [1] * x.ndim
    extents[axis] = len(values)
    return values.reshape(extents)


def _scaling(operands: Sequence[Array], axis: int) -> tuple[Array, Array, Array]:
    x, scale, *zero = operands
    points = zero[0] if zero else np.zeros((), np.int64)
    return wide(x), _channel(x, wide(scale), axis), _channel(x, wide(points), axis)


def _quantize(kind: DType, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x, scale, zero = _scaling(operands, attributes["axis"])
    rounded = np.clip(np.floor(x / scale + 0.5) + zero, kind.min, kind.max)
    return np.asarray(np.where(np.isnan(rounded), 0, rounded).astype(np.int64))


def _dequantize(_: DType, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x, scale, zero = _scaling(operands, attributes["axis"])
    return np.asarray((x.astype(np.int64) - zero).astype(np.float64) * scale)


def _requantize(kind: DType, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x, multiplier, shift = map(wide, operands)
    axis = attributes["axis"]
    multiplier, amount = _channel(x, multiplier, axis), _channel(x, shift & 63, axis)
    half = (np.uint64(1) << amount.astype(np.uint64) >> np.uint64(1)).astype(np.int64)
    scaled = np.clip((x * multiplier + half) >> amount, DType.INT32.min, DType.INT32.max)
    return np.asarray(np.clip(scaled + attributes["zero_point"], kind.min, kind.max))


def _resize(_: DType, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x = operands[0]
    height, width = attributes["size"]
    if attributes["method"] == "nearest":
        rows = np.arange(height) * x.shape[2] // height
        columns = np.arange(width) * x.shape[3] // width
        return np.asarray(x[:, :, rows][:, :, :, columns])
    taken = wide(x)
    for axis, new in ((2, height), (3, width)):
        old = taken.shape[axis]
        place = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        first = np.floor(place).astype(np.int64)
        second = np.minimum(first + 1, old - 1)
        part = _channel(taken, place - first, axis)
        taken = np.take(taken, first, axis) * (1 - part) + np.take(taken, second, axis) * part
    return taken


def _cast(kind: DType, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
    x = wide(operands[0])
    if kind is DType.BOOL:
        return np.asarray(x != 0)
    if x.dtype.kind == "f" and kind.is_integer:  # saturates; NaN is 0
        low, high = float(kind.min), float(kind.max)
        inside = np.trunc(np.where(np.isnan(x), 0, x))
        kept = np.where((inside > low) & (inside < high), inside, 0).astype(kind.numpy)
        return np.where(inside <= low, kind.min, np.where(inside >= high, kind.max, kept)).astype(
            kind.numpy
        )
    return x


def _binary(function: Callable[[Array, Array], Any]) -> Compute:
    def compute(_: DType, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
        a, b = map(wide, operands)
        return np.asarray(function(a, b))

    return compute


def _unary(function: Callable[..., Any]) -> Compute:
    def compute(_: DType, operands: Sequence[Array], attributes: Mapping[str, Any]) -> Array:
        return np.asarray(function(wide(operands[0]), **attributes))

    return compute


def _gelu(x: Array) -> Array:
    inner = (x + x * x * x * 0.044715) * 0.7978845608028654
    return np.asarray(x * 0.5 * (np.tanh(inner) + 1))


COMPUTE: dict[str, Compute] = {
    "add": _binary(np.add),
    "avg_pool2d": _avg_pool,
    "cast": _cast,
    "clip": _unary(lambda x, low, high: np.minimum(np.maximum(x, low), high)),
    "concat": lambda _, operands, attributes: np.concatenate(
        [wide(x) for x in operands], attributes["axis"]
    ),
    "conv1d": _conv1d,
    "conv2d": _conv2d,
    "dense": _dense,
    "dequantize": _dequantize,
    "divide": _binary(np.divide),
    "exp": _unary(np.exp),
    "gelu": _unary(_gelu),
    "layer_norm": _layer_norm,
    "leaky_relu": _unary(lambda x, slope: np.where(x > 0, x, x * slope)),
    "lookup": lambda _, operands, attributes: wide(operands[1])[operands[0].astype(int) + 128],
    "matmul": _matmul,
    "max": _reduction(np.max),
    "max_pool2d": _max_pool,
    "maximum": _binary(lambda a, b: np.where(a > b, a, b)),
    "mean": _reduction(np.mean),
    "min": _reduction(np.min),
    "minimum": _binary(lambda a, b: np.where(a < b, a, b)),
    "multiply": _binary(np.multiply),
    "pad": lambda _, operands, attributes: np.pad(
        wide(operands[0]), attributes["around"], constant_values=attributes["value"]
    ),
    "quantize": _quantize,
    "relu": _unary(lambda x: np.where(x > 0, x, 0)),
    "requantize": _requantize,
    "reshape": lambda _, operands, attributes: wide(operands[0]).reshape(attributes["shape"]),
    "resize": _resize,
    "sigmoid": _unary(lambda x: 1 / (1 + np.exp(-x))),
    "softmax": _softmax,
    "sqrt": _unary(np.sqrt),
    "subtract": _binary(np.subtract),
    "sum": _reduction(np.sum),
    "tanh": _unary(np.tanh),
    "transpose": lambda _, operands, attributes: wide(operands[0]).transpose(attributes["axes"]),
}
"""By operator; a version that changes its meaning gets an entry of its own."""
