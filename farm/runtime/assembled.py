"""Code of the runtime's own that is written in LLVM's language, compiled for this machine.

Owns: compiling such a file of this folder, once in a process. Does not own: what the files do, or linking them.

Invariant: a process that is forked has what its parent compiled.
"""

from __future__ import annotations

import functools
from pathlib import Path

import llvmlite.binding as llvm


@functools.cache
def object_of(name: str) -> bytes:
    """Return the object of a file of this folder, such as ``pool.ll``."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = Path(__file__).with_name(name).read_text()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(opt=2, reloc="pic")
    module = llvm.parse_assembly(text, llvm.create_context())
    module.triple, module.data_layout = target.triple, str(machine.target_data)
    module.verify()
    found: bytes = machine.emit_object(module)
    return found
