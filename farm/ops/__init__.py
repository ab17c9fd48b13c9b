"""Operators: common computations as tensor expressions.

Owns: what each operator computes, with its checks of shapes and types. Does not own: how it runs fast
(`farm.ops.schedules` has good schedules that need no tuning), or tensors themselves (`farm.te`).

Invariant: an operator gives a tensor that `farm.te.function` takes, and refuses shapes and types that do not fit by
naming them. Nothing is widened or converted silently: types follow the operands', as each docstring says.

Examples
--------
>>> import farm.ops as ops
>>> import farm.te as te
>>> x, w = te.placeholder((1, 3, 8, 8), name="x"), te.placeholder((4, 3, 3, 3), name="w")
>>> y = ops.relu(ops.conv2d(x, w, padding=1))
>>> y.shape
(1, 4, 8, 8)
>>> f = te.function("layer", [x, w, y])
"""

from farm.ops.convolution import conv1d, conv2d
from farm.ops.elementwise import (
    add,
    clip,
    divide,
    exp,
    gelu,
    leaky_relu,
    lookup,
    maximum,
    minimum,
    multiply,
    relu,
    sigmoid,
    sqrt,
    subtract,
    tanh,
)
from farm.ops.matmul import dense, matmul
from farm.ops.normalisation import layer_norm, softmax
from farm.ops.pooling import avg_pool2d, max_pool2d
from farm.ops.quantisation import dequantize, quantize, requantize
from farm.ops.reduction import (
    max,  # noqa: A004 - numpy's name
    mean,
    min,  # noqa: A004 - numpy's name
    sum,  # noqa: A004 - numpy's name
)
from farm.ops.shape import concat, pad, reshape, resize, transpose

__all__ = [
    "add",
    "avg_pool2d",
    "clip",
    "concat",
    "conv1d",
    "conv2d",
    "dense",
    "dequantize",
    "divide",
    "exp",
    "gelu",
    "layer_norm",
    "leaky_relu",
    "lookup",
    "matmul",
    "max",
    "max_pool2d",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "pad",
    "quantize",
    "relu",
    "requantize",
    "reshape",
    "resize",
    "sigmoid",
    "softmax",
    "sqrt",
    "subtract",
    "sum",
    "tanh",
    "transpose",
]
