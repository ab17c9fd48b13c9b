"""Tensor expressions: how users write functions.

Owns: tensors, the functions that combine them, and their lowering to the loop-level IR. Names follow TVM's.
Does not own: rewriting loops (schedules) or what a function means (`farm.ir`).

Invariant: what `function` returns passes the verifier.

Examples
--------
>>> import numpy as np
>>> import farm.te as te
>>> from farm.ir import interpret
>>> a = te.placeholder((2, 3), "int8", name="a")
>>> b = te.placeholder((3, 2), "int8", name="b")
>>> k = te.reduce_axis(3, name="k")
>>> c = te.compute((2, 2), lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), k), name="c")
>>> matmul = te.function("matmul", [a, b, c])
>>> interpret(matmul, [np.ones((2, 3), np.int8), np.ones((3, 2), np.int8)])[0].tolist()
[[3, 3], [3, 3]]
"""

from farm.te.lower import call, function, sequence
from farm.te.ops import (
    clip,
    const,
    exp,
    floor,
    max,  # noqa: A004 - TVM's name
    maximum,
    min,  # noqa: A004 - TVM's name
    minimum,
    requantize,
    saturating_add,
    saturating_sub,
    sqrt,
    sum,  # noqa: A004 - TVM's name
    tanh,
    where,
)
from farm.te.tensor import Axis, Tensor, compute, placeholder, reduce_axis

__all__ = [
    "Axis",
    "Tensor",
    "call",
    "clip",
    "compute",
    "const",
    "exp",
    "floor",
    "function",
    "max",
    "maximum",
    "min",
    "minimum",
    "placeholder",
    "reduce_axis",
    "requantize",
    "saturating_add",
    "saturating_sub",
    "sequence",
    "sqrt",
    "sum",
    "tanh",
    "where",
]
