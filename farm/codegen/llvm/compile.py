"""Functions to built modules: the entry of the LLVM backend.

Owns: putting a module together, finding what the target lacks, refusing what it cannot run.

Invariant: an object that leaves here refers only to callees, memcpy, memmove and memset.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from farm.artifact import BuiltModule
from farm.artifact.abi import ALLOWED_IMPORTS
from farm.artifact.module import Kind
from farm.codegen.llvm.foreign import compile_foreign
from farm.codegen.llvm.machine import Machine, machine_for, toolchain
from farm.codegen.llvm.statements import Kernel
from farm.codegen.llvm.stubs import emit_launch, emit_stub, emit_table_entry
from farm.codegen.llvm.symbols import undefined_symbols
from farm.codegen.llvm.unit import Dots, Software, Unit
from farm.codegen.symbol import symbol_of
from farm.errors import InvalidFunction, UnsupportedFunction
from farm.ir import Function, LoopKind, signature_of
from farm.ir.source import Source
from farm.ir.stmt import For, walk
from farm.target import Target

__all__ = ["compile_device", "compile_host", "toolchain"]

FORMAT_VERSION = 1
_STACK_BYTES = 64 << 10
_WASM_STACK_BYTES = 16 << 10  # a WebAssembly module's whole stack has 64 KiB by default

# Library functions that LLVM falls back to, and what to emit in their place.
_LIBRARY = {
    name: software
    for software, names in {
        Software.FLOOR: "floor floorf",
        Software.DIVISION_32: (
            "__divsi3 __udivsi3 __modsi3 __umodsi3 __divmodsi4 __udivmodsi4 "
            "__aeabi_idiv __aeabi_uidiv __aeabi_idivmod __aeabi_uidivmod"
        ),
        Software.DIVISION_64: (
            "__divdi3 __udivdi3 __moddi3 __umoddi3 __divmoddi4 __udivmoddi4 "
            "__aeabi_ldivmod __aeabi_uldivmod"
        ),
        Software.CONVERSION_64: (
            "__floatdisf __floatdidf __floatundisf __floatundidf "
            "__fixsfdi __fixdfdi __fixunssfdi __fixunsdfdi "
            "__aeabi_l2f __aeabi_l2d __aeabi_ul2f __aeabi_ul2d "
            "__aeabi_f2lz __aeabi_d2lz __aeabi_f2ulz __aeabi_d2ulz"
        ),
        Software.HALF: (
            "__extendhfsf2 __truncsfhf2 __gnu_h2f_ieee __gnu_f2h_ieee __aeabi_h2f __aeabi_f2h"
        ),
    }.items()
    for name in names.split()
}


def compile_device(function: Function, target: Target) -> BuiltModule:
    """Compile a function for a CPU or WebAssembly.

    Notes
    -----
    A callee's name in the IR is its linker symbol: the public name, or `farm.artifact.abi.private_symbol` of a private
    helper's name, which whoever places the functions writes.

    Raises
    ------
    InvalidTarget
        LLVM does not know the target.
    InvalidFunction
        The name is reserved.
    UnsupportedFunction
        The target lacks an operation, or the memory.
    """
    symbol = symbol_of(function, target)
    if isinstance(function.body, Source):
        machine = machine_for(target)
        data = compile_foreign(function, function.body, symbol, machine)
        return _module(function, "device", symbol, target, machine, data)

    def fill(unit: Unit) -> None:
        kernel = Kernel(unit, function, symbol).emit()
        emit_stub(unit, function, symbol, kernel)

    return _compile(function, "device", symbol, target, fill)


def compile_host(function: Function, target: Target) -> BuiltModule:
    """Compile the stub through which a host calls an accelerator's function.

    Raises
    ------
    InvalidFunction
        The function is private: only its accelerator calls it. Or its name is reserved.
    InvalidTarget
        LLVM does not know the target_host.
    """
    if function.private:
        raise InvalidFunction(
            f"function {function.name}: private, so no host calls it; drop its host item"
        )
    symbol = symbol_of(function, target)

    def fill(unit: Unit) -> None:
        emit_stub(unit, function, symbol, emit_launch(unit, function))

    return _compile(function, "host", symbol, target, fill)


def _compile(
    function: Function, kind: Kind, symbol: str, target: Target, fill: Callable[[Unit], None]
) -> BuiltModule:
    machine = machine_for(target)
    _check_memory(function, machine)
    data = _object(function, symbol, machine, fill)
    return _module(function, kind, symbol, target, machine, data)


def _module(
    function: Function, kind: Kind, symbol: str, target: Target, machine: Machine, data: bytes
) -> BuiltModule:
    return BuiltModule(
        kind=kind,
        symbol=symbol,
        target=str(target),
        format=machine.format,
        format_version=FORMAT_VERSION,
        requires=target.requires,
        toolchain=toolchain(target),
        signature=signature_of(function),
        data=data,
    )


def _object(
    function: Function, symbol: str, machine: Machine, fill: Callable[[Unit], None]
) -> bytes:
    """Emit the object; once more, in software, what turned out to need a library function."""
    allowed = {*ALLOWED_IMPORTS, *function.callees}
    software: frozenset[Software] = frozenset(() if machine.has_halves else (Software.HALF,))
    # Plain loops end up waiting for memory or for their own sums, whether they are unrolled or not
    unroll = any(
        isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZED for stmt in walk(function.body)
    )
    while True:
        text = _module_text(symbol, machine, software, fill)
        data = machine.compile(text, unroll=unroll)
        missing = [name for name in undefined_symbols(data) if name not in allowed]
        if not missing:
            return data
        wanted = software | {_LIBRARY[name] for name in missing if name in _LIBRARY}
        if wanted == software:
            raise UnsupportedFunction(
                f"function {function.name}: {machine.triple} with CPU {machine.cpu} would need library "
                f"functions ({', '.join(missing)}); add the -mattr it lacks, or use another target"
            )
        software = wanted


def _module_text(
    symbol: str, machine: Machine, software: frozenset[Software], fill: Callable[[Unit], None]
) -> str:
    module = ir.Module(context=ir.Context())
    module.triple = machine.triple
    module.data_layout = machine.data_layout()
    stack_bytes = _STACK_BYTES if machine.is_elf else _WASM_STACK_BYTES
    unit = Unit(
        module,
        software,
        stack_bytes,
        float32_lanes=not machine.flushes_denormals,
        dots=_dots(machine),
        lines=machine.lines,
    )
    fill(unit)
    if machine.is_elf:
        emit_table_entry(unit, symbol)
    return unit.text()


def _dots(machine: Machine) -> Dots:
    if machine.architecture == "x86-64":
        return Dots.PAIRS
    return Dots.QUARTERS if machine.has_dotprod else Dots.NONE


def _check_memory(function: Function, machine: Machine) -> None:
    pointer_bits = 32 if machine.architecture in ("arm", "thumb", "riscv32", "wasm32") else 64
    for param in function.params:
        if pointer_bits == 32 and param.buffer.size_bytes >= 1 << 31:
            raise UnsupportedFunction(
                f"function {function.name}: {param.buffer.name} has {param.buffer.size_bytes} bytes, too "
                f"many for {machine.architecture}; use less than 2 GiB"
            )
