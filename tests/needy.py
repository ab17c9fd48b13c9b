"""C that needs functions of a library on some CPUs, and what it computes."""

from __future__ import annotations

import ctypes
import math

import numpy as np

SOURCE = b"""#include <math.h>
void needy(const int32_t *n, const int64_t *w, const float *x, int32_t *q, int64_t *r, uint64_t *u, float *y,
           double *z) {
  const uint64_t *v = (const uint64_t *)w;
  for (int i = 0; i < 6; i++) {
    q[i] = n[i] / (n[i] % 7 + 9) + (int)((unsigned)n[i] / ((unsigned)n[i] % 5 + 3));
    r[i] = w[i] / (w[i] % 7 + 9) + (int64_t)x[i];
    u[i] = v[i] / (v[i] % 7 + 9) + v[i] % 11 + (uint64_t)(x[i] * x[i]);
    y[i] = expf(x[i]) + tanhf(x[i]) + floorf(x[i]) + (float)w[i];
    z[i] = exp(x[i]) + tanh(x[i]) + floor(x[i]) + (double)v[i];
  }
}
"""
DECLARED = (
    "needy(n: int32[6], w: int64[6], x: float32[6], q: int32[6] output, r: int64[6] output, "
    "u: uint64[6] output, y: float32[6] output, z: float64[6] output)"
)
INPUTS = [
    np.array([7, -100, 2**31 - 1, -(2**31), 0, 12345], np.int32),
    np.array([-7, 10**18 + 1, 2**63 - 1, -(2**63), 0, -(10**12)], np.int64),
    np.array([-3.5, 0.25, 2.75, -0.0, 11.5, -20.0], np.float32),
]


def _divide(a, b):
    """Quotient and remainder as C has them."""
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return quotient, a - quotient * b


def results():
    """What the source computes of the inputs."""
    q, r, u, y, z = [], [], [], [], []
    for n, w, x in zip(*(each.tolist() for each in INPUTS), strict=True):
        m, v = n & (2**32 - 1), w & (2**64 - 1)
        q.append(ctypes.c_int32(_divide(n, _divide(n, 7)[1] + 9)[0] + m // (m % 5 + 3)).value)
        r.append(_divide(w, _divide(w, 7)[1] + 9)[0] + math.trunc(x))
        u.append(v // (v % 7 + 9) + v % 11 + math.trunc(x * x))
        y.append(math.exp(x) + math.tanh(x) + math.floor(x) + w)
        z.append(math.exp(x) + math.tanh(x) + math.floor(x) + v)
    types = (np.int32, np.int64, np.uint64, np.float32, np.float64)
    return [np.array(values, dtype) for values, dtype in zip((q, r, u, y, z), types, strict=True)]


def check(found):
    """Compare outputs: integers exactly, floats but for the last places of exp and tanh."""
    for a, b in zip(found, results(), strict=True):
        assert a.dtype == b.dtype
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=5e-7 if a.dtype.itemsize == 4 else 1e-14)
        else:
            np.testing.assert_array_equal(a, b)
