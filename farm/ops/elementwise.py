"""Element-wise operators, with broadcasting as numpy's.

Owns: arithmetic of two tensors and functions of one. Types: both operands have one, which the result has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import farm.te as te
from farm.ir.dtype import DType
from farm.ir.expr import Expr, Scalar, const
from farm.ops.checks import computed_in, floats, refuse, same_type
from farm.te import Tensor


def broadcast(operator: str, a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that two shapes broadcast to."""
    count = max(len(a), len(b))
    left, right = (1,) * (count - len(a)) + tuple(a), (1,) * (count - len(b)) + tuple(b)
    if any(x != y and 1 not in (x, y) for x, y in zip(left, right, strict=True)):
        raise refuse(operator, f"shapes {tuple(a)} and {tuple(b)} do not broadcast")
    return tuple(max(x, y) for x, y in zip(left, right, strict=True))


def element(tensor: Tensor, at: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """Return the element that broadcasting to a shape puts at some indices."""
    skipped = len(shape) - len(tensor.shape)
    own = zip(tensor.shape, shape[skipped:], at[skipped:], strict=True)
    return tensor[tuple(0 if size < extent else index for size, extent, index in own)]


def _binary(name: str, a: Tensor, b: Tensor, combine: Callable[[Expr, Expr], Expr]) -> Tensor:
    same_type(name, a, b)
    shape = broadcast(name, a.shape, b.shape)
    return te.compute(
        shape, lambda *at: combine(element(a, at, shape), element(b, at, shape)), name=name
    )


def add(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a + b``."""
    return _binary("add", a, b, lambda x, y: x + y)


def subtract(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a - b``."""
    return _binary("subtract", a, b, lambda x, y: x - y)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a * b``."""
    return _binary("multiply", a, b, lambda x, y: x * y)


def divide(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a / b`` of floats."""
    floats("divide", a, b)
    return _binary("divide", a, b, lambda x, y: x / y)


def maximum(a: Tensor, b: Tensor) -> Tensor:
    """Return the larger element of each pair."""
    return _binary("maximum", a, b, te.maximum)


def minimum(a: Tensor, b: Tensor) -> Tensor:
    """Return the smaller element of each pair."""
    return _binary("minimum", a, b, te.minimum)


def _unary(name: str, x: Tensor, function: Callable[[Expr], Expr]) -> Tensor:
    wide = computed_in(x.dtype)
    return te.compute(x.shape, lambda *at: function(x[at].astype(wide)).astype(x.dtype), name=name)


def relu(x: Tensor) -> Tensor:
    """Return ``max(x, 0)``."""
    return _unary("relu", x, lambda v: te.maximum(v, 0))


def leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    """Return ``x`` where it is positive, else ``slope * x``."""
    floats("leaky_relu", x)
    return _unary("leaky_relu", x, lambda v: te.where(v > 0, v, v * slope))


def clip(x: Tensor, low: Scalar, high: Scalar) -> Tensor:
    """Return ``x``, at least `low` and at most `high`."""
    return _unary("clip", x, lambda v: te.clip(v, low, high))


def exp(x: Tensor) -> Tensor:
    """Return e to the power of each element."""
    floats("exp", x)
    return _unary("exp", x, te.exp)


def sqrt(x: Tensor) -> Tensor:
    """Return the square root of each element."""
    floats("sqrt", x)
    return _unary("sqrt", x, te.sqrt)


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent of each element."""
    floats("tanh", x)
    return _unary("tanh", x, te.tanh)


def sigmoid(x: Tensor) -> Tensor:
    """Return ``1 / (1 + exp(-x))``."""
    floats("sigmoid", x)
    return _unary("sigmoid", x, lambda v: const(1, v.dtype) / (te.exp(-v) + 1))


def lookup(x: Tensor, table: Tensor) -> Tensor:
    """Return for each int8 its entry of a table: ``table[x + 128]``.

    Parameters
    ----------
    table
        256 entries of any type, the first for -128: any function of an int8, such as a quantised sigmoid.
    """
    if x.dtype is not DType.INT8 or table.shape != (256,):
        raise refuse(
            "lookup",
            f"{x.name} is {x.dtype} and {table.name} has shape {table.shape}; use int8 and 256 entries",
        )
    return te.compute(x.shape, lambda *at: table[x[at].astype("int32") + 128], name="lookup")


def gelu(x: Tensor) -> Tensor:
    """Return ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``: GELU's usual approximation."""
    floats("gelu", x)

    def value(v: Expr) -> Expr:
        inner = (v + v * v * v * 0.044715) * 0.7978845608028654
        return v * 0.5 * (te.tanh(inner) + 1)

    return _unary("gelu", x, value)
