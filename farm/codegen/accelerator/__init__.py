"""Code for accelerators through their `farm.accel.Accelerator`: three ways, and what all of them need.

Owns: the entry for builders (`compile`), knobs, and recognising layers (`layer`), which authors use too; the library
way (`library`) and the tensorize way (`tensorized`). Does not own: the full target's code generator, which is the hook.

Invariant: whatever a hook does, the caller gets a checked module or an error that names the accelerator.
"""

from farm.codegen.accelerator.knobs import chosen_knobs, knobs_of, space_of, with_knobs
from farm.codegen.accelerator.layer import Layer, Product, layer_of

__all__ = [
    "Layer",
    "Product",
    "chosen_knobs",
    "knobs_of",
    "layer_of",
    "space_of",
    "with_knobs",
]
