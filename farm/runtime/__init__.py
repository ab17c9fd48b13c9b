"""Device runtimes: load what was built, call it, time it.

Owns: running code in this process, on emulated accelerators, and under qemu-user.
Does not own: building, leases, time limits, or surviving a crash of native code (the agent's worker
runs this in a child).

Invariant: importing this package loads no native library; its loaders do.
"""

from farm.runtime.interface import CallResult, LoadedFunction, LoadedModule, Loader

__all__ = ["CallResult", "LoadedFunction", "LoadedModule", "Loader"]
