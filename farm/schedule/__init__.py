"""Schedules: checked rewrites of a function that change how it runs, never what it computes.

Owns: primitives under the names of TVM's ``tir.Schedule``, the analysis that refuses wrong ones, and traces that print,
parse and replay. Does not own: what users compute (`farm.te`), what code generators make of loops, or which schedule is
good (`farm.ops`, tuning).

Invariant: a schedule's function gives, bit for bit, what the original gives; only where `Schedule.fast_math` allows it
may floats round otherwise.
"""

from farm.schedule.primitive import BlockRV, LoopRV
from farm.schedule.schedule import Schedule
from farm.schedule.tensorize import TensorIntrin, register_intrin
from farm.schedule.trace import Step, Trace

__all__ = ["BlockRV", "LoopRV", "Schedule", "Step", "TensorIntrin", "Trace", "register_intrin"]
