"""Code generation: one function for one target in, one built module out.

Owns: the single entry for builders and the choice of a backend by target kind.
Does not own: which functions are built together (`farm.building`), the artifact's format (`farm.artifact`) or how built
modules are loaded (`farm.runtime`).

Invariant: the result depends on the function's canonical bytes, the kind and the target alone: the same request gives
the same bytes in every process. Importing this package loads no compiler; a backend is imported when it is needed.
"""

from farm.codegen.compile import compile_function, toolchain_of
from farm.codegen.symbol import symbol_of

__all__ = ["compile_function", "symbol_of", "toolchain_of"]
