"""The surface by which an accelerator joins the farm: one object with optional hooks, found by entry point.

Owns: `Accelerator` and its parts, finding and loading it, calling it so that whatever it does is told with
its name. Does not own: code generation from it (`farm.codegen.accelerator`), launching (`farm.runtime.plugin`), or the
contract tests for authors (`farm.porting`).

Invariant: nothing is registered and nothing of a package is imported before its accelerator is asked for by name. The
project's own accelerator `ea` is such an object too.
"""

from farm.accel.accelerator import Accelerator, External, Knobs, Run, Space, Timing
from farm.accel.discovery import Loaded, load
from farm.accel.intrinsic import Intrinsic, Operand, Place

__all__ = [
    "Accelerator",
    "External",
    "Intrinsic",
    "Knobs",
    "Loaded",
    "Operand",
    "Place",
    "Run",
    "Space",
    "Timing",
    "load",
]
