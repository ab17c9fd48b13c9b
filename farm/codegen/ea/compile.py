"""The entry of the code generator: a function in, a checked program out.

Owns: the order of the stages, and the generator's version. Does not own: any stage, or the module around the program
(`farm.codegen.accelerator`).

Invariant: a program that `farm.ea.verify` finds fault with never leaves here.
"""

from __future__ import annotations

from farm.codegen.ea.epilogue import compile_epilogue
from farm.codegen.ea.lift import lift
from farm.codegen.ea.schedule import schedule
from farm.codegen.ea.tiling import choose_tiling
from farm.ea.config import MachineConfig
from farm.ea.encoding import encode_program
from farm.ea.isa import ISA_VERSION, MAX_ARGS
from farm.ea.verify import verify
from farm.errors import InvalidProgram, UnsupportedFunction
from farm.ir import Function
from farm.target import Target

VERSION = 4  # raise it whenever the same function gives another program


def compile_program(function: Function, config: MachineConfig) -> bytes:
    """Compile a function for a machine; return the program's image.

    Raises
    ------
    UnsupportedFunction
        The accelerator cannot run it; the message says why. It belongs on the CPU.
    """
    if len(function.params) > MAX_ARGS:
        raise UnsupportedFunction(
            f"function {function.name} on ea: it has {len(function.params)} parameters; use at most {MAX_ARGS}"
        )
    layer = lift(function)
    epilogue = compile_epilogue(layer)
    tiling = choose_tiling(layer, epilogue, config, layer.hints)
    try:
        program = schedule(layer, epilogue, tiling, config)
    except InvalidProgram as error:  # too many instructions
        raise UnsupportedFunction(
            f"function {function.name} on ea: {error.message}; use larger tiles, split it, or place it on the CPU"
        ) from None
    findings = verify(program, max_findings=1)
    if (
        findings
    ):  # sizes beyond what the fields of an instruction can say; nothing else can come here
        raise UnsupportedFunction(
            f"function {function.name} on ea: its program breaks a limit ({findings[0]}); "
            f"split it, or place it on the CPU"
        )
    return encode_program(program)


def toolchain(target: Target) -> str:
    """Return the name and version of this code generator."""
    return f"kernel-farm {target.kind} codegen {VERSION} isa {ISA_VERSION}"
