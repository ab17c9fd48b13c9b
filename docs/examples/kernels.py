"""Two functions: a sum of squares for CPUs, and an integer layer that the accelerator can run as well."""

from farm import te

ROWS, DEPTH, COLUMNS = 48, 40, 24


def scaled_squares():
    """Return ``y = x * x * 0.5`` over float32."""
    x = te.placeholder((1024,), "float32", name="x")
    y = te.compute((1024,), lambda i: x[i] * x[i] * 0.5, name="y")
    return te.function("scaled_squares", [x, y])


def layer():
    """Return an int8 dense layer: product, bias, ReLU, back to int8."""
    x = te.placeholder((ROWS, DEPTH), "int8", name="x")
    weight = te.placeholder((DEPTH, COLUMNS), "int8", name="weight")
    bias = te.placeholder((COLUMNS,), "int32", name="bias")
    k = te.reduce_axis(DEPTH, "k")
    product = te.compute(
        (ROWS, COLUMNS),
        lambda i, j: te.sum(x[i, k].astype("int32") * weight[k, j].astype("int32"), k),
        name="product",
    )
    y = te.compute(
        (ROWS, COLUMNS),
        lambda i, j: te.clip((product[i, j] + bias[j]) >> 8, 0, 127).astype("int8"),
        name="y",
    )
    return te.function("layer", [x, weight, bias, y])


# What `farm build` builds: the layer for the accelerator and both CPUs, the other for both CPUs.
request = {
    "ea": [layer()],
    "llvm": [layer(), scaled_squares()],
    "llvm -mtriple=aarch64-linux-gnu": [layer(), scaled_squares()],
}
