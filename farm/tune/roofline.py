"""What a machine could do at best: arithmetic of a function, and ceilings that are measured on the device.

Owns: counting operations and bytes, the functions that reach the ceilings, and the bound. Does not own: measuring.

Notes: Williams, Waterman and Patterson, "Roofline" (2009). The ceilings are what small kernels of this compiler reach
with their data in the first cache (arithmetic) and with large arrays (memory), so a kernel can come somewhat above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import farm.te as te
from farm.ir import DType, Function
from farm.ir.expr import Binary, Expr, Load, Math
from farm.ops import matmul
from farm.ops.schedules import scheduled
from farm.schedule import Schedule
from farm.target import Target

STREAM_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Work:
    """What one call does.

    Attributes
    ----------
    operations
        Arithmetic on elements; a multiplication and an addition count two.
    size_bytes
        Of all parameters: what has to move at least.
    """

    operations: int
    size_bytes: int

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.operations / max(1, self.size_bytes)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Operations and bytes a unit of time (ns or cycles)."""

    operations: float
    bytes_: float

    def bound(self, work: Work) -> float:
        """Return the least time that a call can take."""
        return max(work.operations / self.operations, work.size_bytes / self.bytes_)


def work_of(function: Function) -> Work:
    """Count what a call of a function does."""
    sch = Schedule(function)
    operations = 0
    for name in sch.block_names():
        leaf = sch.block(name)
        steps = math.prod(each.extent for each in leaf.iters)
        operations += steps * (_arithmetic(leaf.value) + (leaf.reduction is not None))
    return Work(operations, sum(param.buffer.size_bytes for param in function.params))


def _arithmetic(expr: Expr) -> int:
    """Count operations on elements; indices are not counted."""
    count = int(isinstance(expr, Binary | Math))
    if isinstance(expr, Load):
        return 0
    return count + sum(map(_arithmetic, expr.children()))


def ceiling_functions(target: Target, dtype: DType) -> list[tuple[Function, Work]]:
    """Return functions that reach what a target can do: arithmetic of a type first, memory second.

    A target without recipes, or whose machine does something else best, gets what it runs best: a product of bytes.
    """
    accelerator = target.is_accelerator
    kind = "int8" if accelerator else dtype.value if dtype.is_float else "int32"
    n = 128 if accelerator else 64
    a, b = (te.placeholder((n, n), kind, name=name) for name in "ab")
    product = te.function("ceiling_arithmetic", [a, b, matmul(a, b)])
    size = STREAM_BYTES // (64 if accelerator else 4)
    moved = "int32" if accelerator else "float32"
    x = te.placeholder((size // 1024, 1024) if accelerator else (size,), moved, name="x")
    stream = te.function(
        "ceiling_memory", [x, te.compute(x.shape, lambda *i: x[i] + x[i], name="y")]
    )
    return [(scheduled(each, target), work_of(each)) for each in (product, stream)]


def main_dtype(function: Function) -> DType:
    """Return the element type that a function computes in: of its last block."""
    sch = Schedule(function)
    return sch.block(sch.block_names()[-1]).buffer.dtype
