"""softmax and layer norm, over the last axis.

Owns: both. Types: floats; the result has the operand's; float16 and bfloat16 are
computed in float32 and rounded at the end.
"""

from __future__ import annotations

import farm.te as te
from farm.ir.expr import Expr, const
from farm.ops.checks import computed_in, floats, refuse, same_type
from farm.te import Tensor


def softmax(x: Tensor) -> Tensor:
    """Return ``exp(x - max) / sum(exp(x - max))`` over the last axis."""
    floats("softmax", x)
    *rows, n = _rows("softmax", x)
    k, q, wide = te.reduce_axis(n, "k"), te.reduce_axis(n, "q"), computed_in(x.dtype)
    top = te.compute(rows, lambda *at: te.max(x[(*at, k)].astype(wide), k), name="softmax_max")
    power = te.compute(
        x.shape, lambda *at: te.exp(x[at].astype(wide) - top[at[:-1]]), name="softmax_exp"
    )
    total = te.compute(rows, lambda *at: te.sum(power[(*at, q)], q), name="softmax_sum")
    inverse = te.compute(rows, lambda *at: const(1, wide) / total[at], name="softmax_inverse")

    def out(*at: Expr) -> Expr:
        return (power[at] * inverse[at[:-1]]).astype(x.dtype)

    return te.compute(x.shape, out, name="softmax")


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Return ``(x - mean) / sqrt(variance + epsilon) * gamma + beta`` over the last axis."""
    floats("layer_norm", x)
    same_type("layer_norm", x, gamma)
    same_type("layer_norm", x, beta)
    *rows, n = _rows("layer_norm", x)
    if gamma.shape != (n,) or beta.shape != (n,):
        raise refuse(
            "layer_norm", f"gamma {gamma.shape}, beta {beta.shape}; use ({n},) for {x.shape}"
        )
    k, q, wide = te.reduce_axis(n, "k"), te.reduce_axis(n, "q"), computed_in(x.dtype)
    total = te.compute(rows, lambda *at: te.sum(x[(*at, k)].astype(wide), k), name="norm_sum")
    mean = te.compute(rows, lambda *at: total[at] * (1.0 / n), name="norm_mean")

    def square(*at: Expr) -> Expr:
        centred = x[(*at, q)].astype(wide) - mean[at]
        return te.sum(centred * centred, q)

    squares = te.compute(rows, square, name="norm_squares")

    def factor(*at: Expr) -> Expr:
        return const(1, wide) / te.sqrt(squares[at] * (1.0 / n) + epsilon)

    scale = te.compute(rows, factor, name="norm_scale")

    def out(*at: Expr) -> Expr:
        row, j = at[:-1], at[-1]
        centred = (x[at].astype(wide) - mean[row]) * scale[row]
        return (centred * gamma[j].astype(wide) + beta[j].astype(wide)).astype(x.dtype)

    return te.compute(x.shape, out, name="layer_norm")


def _rows(name: str, x: Tensor) -> tuple[int, ...]:
    if not x.shape:
        raise refuse(name, f"{x.name} is a scalar; use one dimension or more")
    return x.shape
