"""Matrix products.

Owns: all transposes and batches. Types: the operands have one; the result has it, or int32 for narrower
integers and float32 for floats of 16 bits.
"""

from __future__ import annotations

import farm.te as te
from farm.ir.expr import Expr
from farm.ops.checks import accumulator, refuse, same_type
from farm.ops.elementwise import add, broadcast
from farm.te import Tensor


def matmul(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """Return the product of matrices, or of batches of them, which broadcast.

    Parameters
    ----------
    a, b
        ``[..., m, k]`` and ``[..., k, n]``; ``[..., k, m]`` and ``[..., n, k]`` where transposed.

    Returns
    -------
    Tensor
        ``[..., m, n]``.
    """
    same_type("matmul", a, b)
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise refuse("matmul", f"shapes {a.shape} and {b.shape}; each needs two dimensions or more")
    m, depth = a.shape[-2:] if not transpose_a else a.shape[:-3:-1]
    rows, n = b.shape[-2:] if not transpose_b else b.shape[:-3:-1]
    if depth != rows:
        raise refuse(
            "matmul", f"inner extents {depth} and {rows} of {a.shape} and {b.shape} differ"
        )
    batch = broadcast("matmul", a.shape[:-2], b.shape[:-2])
    k = te.reduce_axis(depth, "k")
    wide = accumulator(a.dtype)

    def at(tensor: Tensor, z: tuple[Expr, ...], row: Expr, column: Expr) -> Expr:
        own = z[len(z) - (len(tensor.shape) - 2) :]
        first = [0 if s == 1 else i for s, i in zip(tensor.shape[:-2], own, strict=True)]
        return tensor[(*first, row, column)].astype(wide)

    def body(*index: Expr) -> Expr:
        *z, i, j = index
        left = at(a, tuple(z), k, i) if transpose_a else at(a, tuple(z), i, k)
        right = at(b, tuple(z), j, k) if transpose_b else at(b, tuple(z), k, j)
        return te.sum(left * right, k)

    return te.compute((*batch, m, n), body, name="matmul")


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``: a fully connected layer, weights as outputs x inputs."""
    product = matmul(x, weight, transpose_b=True)
    return product if bias is None else add(product, bias)
