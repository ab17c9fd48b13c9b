"""Targets: what device code and the calling code are compiled for.

Owns: the text form, its canonical form and id, what a target requires of a device, and what this machine is.
Does not own: code generation for a target (`farm.codegen`) or whether a given LLVM knows a triple.

Invariant: `Target.parse(str(target)) == target`; equal targets have equal canonical texts and ids.
"""

from farm.target.selector import Selector
from farm.target.target import Target, as_target

__all__ = ["Selector", "Target", "as_target"]
