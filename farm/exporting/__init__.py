"""Export: a target's functions as a file that programs without Python use.

Owns: shared objects, static libraries, programs and WebAssembly modules of an artifact's functions, and the C header
for them. Does not own: compiling functions, or the tools (`farm.runtime.toolchain`).

Invariant: only public functions can be linked to; equal artifacts give equal files.
"""

from farm.exporting.export import Exported, export

__all__ = ["Exported", "export"]
