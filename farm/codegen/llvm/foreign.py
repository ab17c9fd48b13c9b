"""Functions whose body is C or LLVM IR: the body is joined with the stub that every function has.

Owns: what is checked before the body is used, and joining. Does not own: C (`clang`), the stub (`stubs`), or passes
and emission (`machine`).

Invariant: the object exports the function alone, runs on every device that the target says, and reads no file while it
is compiled.

Notes
-----
A body may hold anything that compiles but: inline or module assembler, which can include files and whose instructions
nobody has checked against the target; constructors and indirect functions, which loaders would not run; thread-local
variables; aliases. CPU and features that the body names are replaced by the target's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from llvmlite import binding as llvm
from llvmlite import ir

from farm.artifact.abi import ALLOWED_IMPORTS
from farm.codegen.llvm.clang import compile_c, is_by_value
from farm.codegen.llvm.library import LIBRARY, library_text
from farm.codegen.llvm.machine import Machine
from farm.codegen.llvm.statements import KERNEL
from farm.codegen.llvm.stubs import emit_stub, emit_table_entry
from farm.codegen.llvm.symbols import undefined_symbols
from farm.codegen.llvm.types import I32, PTR, memory_type, value_type
from farm.codegen.llvm.unit import Unit
from farm.errors import InvalidFunction, UnsupportedFunction
from farm.ir import DType, Function
from farm.ir.source import Language, Source

_BITCODE = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")
_TARGET_ATTRIBUTES = re.compile(r'\s"(?:target-cpu|target-features|tune-cpu)"="[^"]*"')
_EMPTY_GROUP = re.compile(r"^(attributes #[0-9]+ =) \{ *\}", re.M)
_NAME = r'@(?:[-a-zA-Z$._0-9]+|"[^"]*")'
_FORBIDDEN = (
    (re.compile(r"^module asm ", re.M), "module assembler"),
    (re.compile(r"^[^;\n]*\basm\b(?: [a-z]+)* \"", re.M), "inline assembler"),
    (re.compile(r"^@llvm\.global_(?:ctors|dtors) = ", re.M), "constructors"),
    (re.compile(rf"^{_NAME} = [^\n]*\bifunc\b", re.M), "indirect functions"),
    (re.compile(rf"^{_NAME} = [^\n]*\balias\b", re.M), "aliases"),
    (re.compile(rf"^{_NAME} = [^\n]*\bthread_local\b", re.M), "thread-local variables"),
)
_UNUSUAL = re.compile(
    r"\b(byval|byref|sret|inalloca|preallocated|inreg|nest|swift[a-z]+|elementtype)\b"
)
_CONVENTION = re.compile(
    r"^define (?:(?:dso_local|dso_preemptable|hidden|protected|default|internal|private|weak|weak_odr|linkonce|"
    r"linkonce_odr|unnamed_addr|local_unnamed_addr) )*(?P<convention>[a-z_0-9]+cc|cc [0-9]+)?"
)


def compile_foreign(function: Function, source: Source, symbol: str, machine: Machine) -> bytes:
    """Return the object of a function whose body is C or LLVM IR.

    Raises
    ------
    InvalidFunction
        The body does not parse, lacks the function, has another signature, or something that is not allowed.
    UnsupportedFunction
        It needs functions that neither a device nor `library` has.
    InvalidTarget, InfrastructureError
        As `compile_c`.
    """
    code = source.text
    if source.language is Language.C:
        code = compile_c(function, source, machine)
    library: tuple[str, ...] = ()
    while True:
        data = machine.emit(_linked(function, code, symbol, machine, library))
        missing = sorted(set(undefined_symbols(data)).difference(ALLOWED_IMPORTS))
        if not missing:
            return data
        if unknown := [name for name in missing if name not in LIBRARY or name in library]:
            raise UnsupportedFunction(
                f"function {function.name}: its source needs functions that no device has "
                f"({', '.join(unknown)[:500]}); define them in it"
            )
        library = (*library, *missing)


def _linked(
    function: Function, code: bytes, symbol: str, machine: Machine, library: Sequence[str]
) -> llvm.ModuleRef:
    """Return the module of a body, the stub, and what it needs of the library."""
    context = llvm.create_context()
    body = _prepared(function, code, machine, context)
    entry = next((f for f in body.functions if f.name == function.name), None)
    if entry is None or entry.is_declaration:
        names = ", ".join(f.name for f in body.functions if not f.is_declaration)
        raise _refused(
            function, f"it defines no function of that name (it defines {names or 'none'})"
        )
    convention = _check_entry(function, entry)
    entry.name, entry.linkage = KERNEL, "external"
    if machine.lines:  # the stub, which it would become a part of, has none
        entry.add_function_attribute("noinline")
    module = llvm.parse_assembly(_stub(function, symbol, convention, machine), context)
    module.link_in(body)
    module.get_function(KERNEL).linkage = "internal"
    if library:
        module.link_in(llvm.parse_assembly(library_text(library, machine), context))
        for name in library:
            module.get_function(name).linkage = "internal"
    module.verify()
    return module


def _prepared(
    function: Function, code: bytes, machine: Machine, context: llvm.ContextRef
) -> llvm.ModuleRef:
    """Parse a body, check it, and give it the machine's triple, layout and features."""
    found = _parsed(function, code, llvm.create_context())
    text = _EMPTY_GROUP.sub(r"\1 { nounwind }", _TARGET_ATTRIBUTES.sub("", str(found)))
    for pattern, what in _FORBIDDEN:
        if pattern.search(text):
            raise _refused(function, f"it has {what}, which is not allowed")
    layout = machine.data_layout()
    if found.data_layout and found.data_layout != layout:
        raise _refused(
            function, f"it is for another machine (data layout {found.data_layout}, not {layout})"
        )
    body = _parsed(function, text.encode(), context)
    body.triple, body.data_layout = machine.triple, layout
    for value in (*body.functions, *body.global_variables):
        if value.name.startswith("__farm"):
            raise _refused(function, f"{value.name[:80]} is a reserved name; rename it")
        if not value.is_declaration:
            value.linkage = "internal"
    for defined in body.functions:
        if not defined.is_declaration:
            defined.add_function_attribute("nounwind")  # else Arm's objects want a personality
    return body


def _parsed(function: Function, code: bytes, context: llvm.ContextRef) -> llvm.ModuleRef:
    try:
        if code.startswith(_BITCODE):
            module = llvm.parse_bitcode(code, context)
        else:
            module = llvm.parse_assembly(code.decode(), context)
        module.verify()
    except (RuntimeError, UnicodeDecodeError) as error:
        raise _refused(function, f"LLVM does not read it ({str(error).strip()[:1000]})") from error
    return module


def _check_entry(function: Function, entry: llvm.ValueRef) -> str:
    """Check the type of a body's function; return its calling convention, empty for C's."""
    first = str(entry).partition("{")[0].strip().splitlines()[-1]
    has = str(entry.global_value_type)
    needs = f"void ({', '.join(_type_text(function))})"
    if has != needs:
        raise _refused(
            function, f"{function.name} has type {has}; declared as it is, it needs {needs}"
        )
    if unusual := _UNUSUAL.search(first):
        raise _refused(function, f"{function.name} has a parameter that is {unusual[1]}")
    match = _CONVENTION.match(first)
    return (match["convention"] or "").strip() if match else ""


def _types(function: Function) -> Sequence[ir.Type]:
    return [
        _value_type(param.buffer.dtype) if is_by_value(param) else PTR for param in function.params
    ]


def _value_type(dtype: DType) -> ir.Type:
    """Return the type of a number passed by its value; floats of 16 bits are passed as integers."""
    return memory_type(dtype) if dtype.is_half else value_type(dtype)


def _type_text(function: Function) -> list[str]:
    return [str(kind).replace("i8*", "ptr") for kind in _types(function)]


def _stub(function: Function, symbol: str, convention: str, machine: Machine) -> str:
    module = ir.Module(context=ir.Context())
    module.triple, module.data_layout = machine.triple, machine.data_layout()
    unit = Unit(module)
    kernel = ir.Function(module, ir.FunctionType(ir.VoidType(), _types(function)), KERNEL)
    kernel.calling_convention = convention

    def body(builder: ir.IRBuilder, data: Sequence[ir.Value]) -> ir.Value:
        values, attributes = [], {}
        for index, (param, pointer) in enumerate(zip(function.params, data, strict=True)):
            values.append(pointer)
            if is_by_value(param):
                dtype = param.buffer.dtype
                values[-1] = builder.load(pointer, typ=memory_type(dtype))
                if dtype is DType.BOOL:
                    values[-1] = builder.trunc(values[-1], value_type(dtype))
                if dtype.bits <= 32 and dtype is not DType.FLOAT32:
                    attributes[index] = (_extension(dtype, machine),)
        builder.call(kernel, values, cconv=convention or None, arg_attrs=attributes)
        return ir.Constant(I32, 0)

    emit_stub(unit, function, symbol, body)
    if machine.is_elf:
        emit_table_entry(unit, symbol)
    return unit.text()


def _extension(dtype: DType, machine: Machine) -> str:
    """Return how C's callers widen a small integer: RISC-V wants 32 bits signed whatever their type."""
    if dtype.bits == 32 and machine.architecture == "riscv64":
        return "signext"
    return "signext" if dtype.is_signed and not dtype.is_half else "zeroext"


def _refused(function: Function, why: str) -> InvalidFunction:
    return InvalidFunction(f"function {function.name}: its source is refused: {why}")
