"""The emulated accelerator `ea` as a machine: what it is and what it does.

Owns everything below a compiler: what a program is, what it means, and a reference machine that
runs it bit for bit. Does not own code generation (`farm.codegen`) or how a device is reached
(`farm.runtime`). The normative description is ``docs/ea-isa.md``.

Invariant: every number of the machine comes from one `MachineConfig`.
"""
