"""MARLANN, an open accelerator for small quantised networks, as a package for kernel-farm."""

from farm.accel import Accelerator
from marlann.codegen import compile_layer, knobs, supports
from marlann.host import assemble_plan, cycles, disassemble_plan, launch

MARLANN = Accelerator(
    name="marlann",
    version=1,
    timing="simulated",
    supports=supports,
    knobs=knobs,
    compile=compile_layer,
    launch=launch,
    assemble=assemble_plan,
    disassemble=disassemble_plan,
    cycles=cycles,
)
"""What the entry point names."""
