"""The OpenCL backend: a function becomes OpenCL C, which the device's own compiler builds.

Owns: what runs as one work item, the text of expressions and statements, the section's head.
Does not own: building and launching (`farm.runtime.opencl`).

Invariant: results are the interpreter's bit for bit, but for what OpenCL leaves to devices: `exp` and `tanh` are the
device's (the standard allows 3 and 5 units in the last place), and a device without correctly rounded division and
square root, or without denormals, has its own (the loader asks for the exact ones where a device has them).
"""
