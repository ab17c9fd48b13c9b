"""blas: the matrix product of a library, called in place of generated code.

The library is numpy's BLAS, which knows floats only. Sums of products of int8 are whole numbers, and exact in float32
as long as none is above 2**24: up to 1024 products at a time; float64 holds any that a layer can have. So the result is
right bit for bit, and what is left to choose (`tunables`) is how the work is cut.
"""

import numpy as np

from farm.accel import Accelerator, External

EXACT = {"float32": 1 << 10, "float64": 1 << 38}
"""How many products of int8 each type sums exactly, in whatever order."""


def supports(layer, config):
    """Return why the library cannot do a layer, empty if it can."""
    if layer.kind != "dense" or not layer.is_plain:
        return f"it is {layer.kind} with something around it; the library multiplies matrices"
    names = ("x", "w", "out")
    types = [layer.function.params[layer.sizes[f"arg_{name}"]].buffer.dtype.value for name in names]
    return "" if types == ["int8", "int8", "int32"] else f"its types are {', '.join(types)}"


def tunables(layer, config):
    """Return the choices: the type that the library computes in, and how many rows and products it gets at a time."""
    m, k = layer.sizes["m"], layer.sizes["k"]
    depths = [min(depth, k) for depth in (1024, 512, 256, 128)]
    rows = [min(rows, m) for rows in (m, 256, 64, 16)]
    return {
        "type": ["float32", "float64"],
        "depth": list(dict.fromkeys(depths)),
        "rows": list(dict.fromkeys(rows)),
    }


def workspace(sizes, config, knobs):
    """Return the bytes that a call needs besides its arrays: parts of x and w, and of the result, as floats."""
    rows, depth, n = knobs["rows"], knobs["depth"], sizes["n"]
    return np.dtype(knobs["type"]).itemsize * (rows * depth + depth * n + rows * n)


def multiply(sizes, config, arrays, workspace, knobs):
    """Multiply int8 matrices by the library's float product."""
    kind, rows, depth = np.dtype(knobs["type"]), knobs["rows"], knobs["depth"]
    assert depth <= EXACT[kind.name]
    x, w, out = (arrays[sizes[f"arg_{name}"]] for name in ("x", "w", "out"))
    w = w.T if sizes["transposed"] else w
    m, n, k = (sizes[name] for name in "mnk")
    space = workspace.view(kind)
    left, right, result = np.split(space, [rows * depth, rows * depth + depth * n])
    out[...] = 0
    for start in range(0, k, depth):
        count = min(depth, k - start)
        b = right[: count * n].reshape(count, n)
        b[:] = w[start : start + count]
        for first in range(0, m, rows):
            height = min(rows, m - first)
            a = left[: height * count].reshape(height, count)
            a[:] = x[first : first + height, start : start + count]
            c = result[: height * n].reshape(height, n)
            np.matmul(a, b, out=c)
            out[first : first + height] += c.astype(np.int32)


BLAS = Accelerator(
    name="blas",
    timing="native",
    externals=(
        External(
            name="multiply",
            supports=supports,
            tunables=tunables,
            workspace=workspace,
            call=multiply,
        ),
    ),
)
