"""The entry of the code generator: a function in, a checked program out.

Owns: the order of the stages, and the generator's version. Does not own: any stage.

Invariant: a program that `farm.ea.verify` finds fault with never leaves here.
"""

from __future__ import annotations

from farm.artifact import BuiltModule
from farm.artifact.module import EA_PROGRAM
from farm.codegen.ea.epilogue import compile_epilogue
from farm.codegen.ea.lift import lift
from farm.codegen.ea.schedule import schedule
from farm.codegen.ea.tiling import choose_tiling
from farm.codegen.symbol import symbol_of
from farm.ea.config import find_config
from farm.ea.encoding import encode_program
from farm.ea.isa import ISA_VERSION, MAX_ARGS
from farm.ea.verify import verify
from farm.errors import UnsupportedFunction
from farm.ir import Function, signature_of
from farm.target import Target

VERSION = 1  # raise it whenever the same function gives another program


def compile_ea(function: Function, target: Target) -> BuiltModule:
    """Compile a function for the accelerator.

    Raises
    ------
    UnsupportedFunction
        The accelerator cannot run it; the message says why. It belongs on the CPU.
    """
    config = find_config(target.option("config") or "")
    if function.private or len(function.params) > MAX_ARGS:
        what = "is private" if function.private else f"has {len(function.params)} parameters"
        raise UnsupportedFunction(
            f"function {function.name} on ea: it {what}; make it public with at most {MAX_ARGS} parameters"
        )
    layer = lift(function)
    epilogue = compile_epilogue(layer)
    tiling = choose_tiling(layer, epilogue, config, layer.hints)
    program = schedule(layer, epilogue, tiling, config)
    findings = verify(program, max_findings=1)
    if (
        findings
    ):  # sizes beyond what the fields of an instruction can say; nothing else can come here
        raise UnsupportedFunction(
            f"function {function.name} on ea: its program breaks a limit ({findings[0]}); "
            f"split it, or place it on the CPU"
        )
    return BuiltModule(
        kind="device",
        symbol=symbol_of(function, target),
        target=str(target),
        format=EA_PROGRAM,
        format_version=ISA_VERSION,
        requires=target.requires,
        toolchain=toolchain(target),
        signature=signature_of(function),
        data=encode_program(program),
    )


def toolchain(target: Target) -> str:
    """Return the name and version of this code generator."""
    return f"kernel-farm {target.kind} codegen {VERSION} isa {ISA_VERSION}"
