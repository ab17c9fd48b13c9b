"""Library functions that code of others needs, as parts of its own module: no device has a C library.

Owns: which functions there are, and their definitions for a machine. Does not own: memcpy, memmove and memset, which
loaders provide.

Invariant: a definition calls nothing; it is found by the name that LLVM or the source calls, and by no other module.

Notes
-----
Arm's names are those of the "Run-time ABI for the Arm Architecture", whose functions take and give floats in integer
registers whatever the rest does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from farm.codegen.llvm.casts import emit_cast
from farm.codegen.llvm.division import Division
from farm.codegen.llvm.functions import emit_function
from farm.codegen.llvm.machine import Machine
from farm.codegen.llvm.types import F32, F64, I32, I64, value_type
from farm.codegen.llvm.unit import Software, Unit
from farm.ir.dtype import DType
from farm.ir.expr import MathOp

_Body = Callable[[Unit, ir.IRBuilder, Sequence[ir.Value]], ir.Value]
_Definition = tuple[ir.Type, Sequence[ir.Type], _Body]
_ARM = "__aeabi_"


def _division(kind: ir.Type, *, signed: bool, quotient: bool, remainder: bool) -> _Definition:
    both = quotient and remainder
    result = ir.LiteralStructType([kind, kind]) if both else kind

    def body(unit: Unit, builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        parts = Division(unit, builder, signed).truncated(*args, signed=signed)
        if not both:
            return parts[0] if quotient else parts[1]
        pair = builder.insert_value(ir.Constant(result, ir.Undefined), parts[0], 0)
        return builder.insert_value(pair, parts[1], 1)

    return result, [kind, kind], body


def _conversion(source: DType, dtype: DType) -> _Definition:
    def body(unit: Unit, builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return emit_cast(unit, builder, args[0], source, dtype)

    return value_type(dtype), [value_type(source)], body


def _function(op: MathOp, kind: ir.Type) -> _Definition:
    def body(unit: Unit, builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
        return emit_function(unit, builder, op, args[0])

    return kind, [kind], body


def _definitions() -> dict[str, _Definition]:
    found: dict[str, _Definition] = {}
    for kind, word, arm in ((I32, "si3", "i"), (I64, "di3", "l")):
        for signed in (True, False):
            u = "" if signed else "u"
            plain = _division(kind, signed=signed, quotient=True, remainder=False)
            rest = _division(kind, signed=signed, quotient=False, remainder=True)
            found[f"__{u}div{word}"], found[f"__{u}mod{word}"] = plain, rest
            if kind is I32:
                found[f"{_ARM}{u}idiv"] = plain
            found[f"{_ARM}{u}{arm}divmod"] = _division(
                kind, signed=signed, quotient=True, remainder=True
            )
    for dtype, mode, letter in ((DType.FLOAT32, "sf", "f"), (DType.FLOAT64, "df", "d")):
        for whole, u in ((DType.INT64, ""), (DType.UINT64, "u")):
            uns = "un" if u else ""
            found[f"__float{uns}di{mode}"] = found[f"{_ARM}{u}l2{letter}"] = _conversion(
                whole, dtype
            )
            found[f"__fix{uns and 'uns'}{mode}di"] = found[f"{_ARM}{letter}2{u}lz"] = _conversion(
                dtype, whole
            )
    for op in (MathOp.EXP, MathOp.TANH, MathOp.FLOOR):
        found[op.value], found[f"{op.value}f"] = _function(op, F64), _function(op, F32)
    return found


LIBRARY = _definitions()
"""Result, arguments and body of each function, by name."""


def library_text(names: Sequence[str], machine: Machine) -> str:
    """Return an LLVM module that defines some functions of `LIBRARY` and keeps them until code is emitted."""
    module = ir.Module(context=ir.Context())
    module.triple, module.data_layout = machine.triple, machine.data_layout()
    unit = Unit(module, frozenset(Software))
    for name in names:
        result, args, body = LIBRARY[name]
        function = ir.Function(module, ir.FunctionType(result, args), name)
        function.attributes.add("nounwind")
        function.attributes.add("noinline")
        if name.startswith(_ARM):
            function.calling_convention = "arm_aapcscc"
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        builder.ret(body(unit, builder, function.args))
    kept = ", ".join(f"ptr @{name}" for name in names)
    unit.texts.append(
        f"\n@llvm.compiler.used = appending global [{len(names)} x ptr] [{kept}], "
        'section "llvm.metadata"\n'
    )
    return unit.text()
