"""Schedules that are good without tuning.

Owns: which recipe suits which function and target. Does not own: primitives (`farm.schedule`).

Invariant: a recipe that does not fit leaves the function as it is; what is returned computes the same, but that float
sums may be fused (`contract`) and, in reductions to one element, reordered (`reassociate`).

Examples
--------
>>> import farm.ops as ops
>>> import farm.te as te
>>> from farm.ops.schedules import scheduled
>>> a, b = te.placeholder((12, 16), name="a"), te.placeholder((16, 32), name="b")
>>> fast = scheduled(te.function("product", [a, b, ops.matmul(a, b)]), "llvm")
>>> "register" in str(fast)
True
"""

from farm.ops.schedules.choose import default_schedule, scheduled

__all__ = ["default_schedule", "scheduled"]
