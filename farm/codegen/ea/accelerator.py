"""`ea` as the farm sees it: an accelerator like any that a package brings.

Owns: the object. Does not own: its code generator (the modules beside this one), the machine (`farm.ea`) or running it
(`farm.runtime.ea`), which are loaded when a hook needs them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from farm.accel import Accelerator, Knobs, Run
from farm.ea.config import CONFIGS, MachineConfig
from farm.ea.isa import ISA_VERSION

if TYPE_CHECKING:
    from farm.ir import Function


def _compile(function: Function, config: MachineConfig, knobs: Knobs) -> bytes:
    from farm.codegen.ea.compile import compile_program

    return compile_program(function, config)


def _launch(program: bytes, config: MachineConfig, unit: str) -> Run:
    from farm.runtime.ea.machine import CompiledMachine
    from farm.runtime.ea.program import LoadedProgram

    loaded, machine = LoadedProgram(program, config), CompiledMachine(config)

    @functools.cache
    def cycles() -> int:  # of every run: they depend on no data
        return machine.time(loaded).cycles

    def run(arrays: Sequence[Any]) -> int:
        if machine.fault is not None:
            machine.reset()  # a fault stops the machine, as it would a real one
        machine.run(loaded, arrays)
        return cycles()

    return run


def _assemble(text: str) -> bytes:
    from farm.ea.assembly import assemble
    from farm.ea.encoding import encode_program

    return encode_program(assemble(text))


def _disassemble(program: bytes) -> str:
    from farm.ea.disassembly import disassemble
    from farm.ea.encoding import decode_program

    return disassemble(decode_program(program))


def _cycles(program: bytes, config: MachineConfig) -> int:
    from farm.ea.encoding import decode_program
    from farm.ea.timing import simulate

    return simulate(decode_program(program, config)).cycles


EA = Accelerator(
    name="ea",
    configs=CONFIGS,
    version=ISA_VERSION,
    timing="simulated",
    compile=_compile,
    launch=_launch,
    assemble=_assemble,
    disassemble=_disassemble,
    cycles=_cycles,
)
