"""What the WebAssembly engine is as a device, without loading it.

Owns: its target and what it provides. Does not own: running modules (`farm.runtime.wasm`).

Invariant: the engine runs by default every feature that is listed.
"""

from __future__ import annotations

PROVIDES = (
    "arch:wasm32",
    *(
        f"cpu-feature:{name}"
        for name in (
            *("bulk-memory", "bulk-memory-opt", "extended-const", "multivalue", "mutable-globals"),
            *("nontrapping-fptoint", "reference-types", "relaxed-simd", "sign-ext", "simd128"),
        )
    ),
)
"""What wasmtime runs by default, as LLVM names it."""
TARGET = "llvm -mtriple=wasm32-unknown-unknown -mcpu=generic -mattr=+simd128"
