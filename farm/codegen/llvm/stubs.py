"""Public symbols of ABI 1: argument checks, then the kernel or an accelerator's launcher.

Owns: the order of the checks, the exported globals of host stubs, the object's entry in section `farm_functions`.

Invariant: nothing behind a DLTensor is touched before its count, pointers, rank, dtype, shape, strides and alignment
have been checked, in this order, argument by argument. Arguments must not overlap unless both are only read; the stub
cannot check that. The device type is not checked: a caller passes memory that this CPU can reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llvmlite import ir

from farm.artifact.abi import (
    DTYPES,
    FUNCTIONS_SECTION,
    ReturnKind,
    context_symbol,
    encode_return,
    launch_symbol,
)
from farm.codegen.llvm.types import I8, I16, I32, I64, PTR, Field, alloca, element, field
from farm.codegen.llvm.unit import STATUS_TYPE, Unit
from farm.ir import Buffer, Function

Body = Callable[[ir.IRBuilder, Sequence[ir.Value]], ir.Value]

_LAUNCH_TYPE = ir.FunctionType(I32, [PTR, PTR])


def emit_stub(unit: Unit, function: Function, symbol: str, body: Body) -> None:
    """Define the public symbol of a function.

    Parameters
    ----------
    body
        Emits the call, given the checked data pointers, and returns the status.
    """
    stub = ir.Function(unit.module, STATUS_TYPE, symbol)
    stub.attributes.add("nounwind")
    builder = ir.IRBuilder(stub.append_basic_block("entry"))
    pointers = _Checks(builder).run([param.buffer for param in function.params], *stub.args)
    builder.ret(body(builder, pointers))


def emit_launch(unit: Unit, function: Function) -> Body:
    """Return the body of a host stub: call the launcher that the loader has stored."""
    launch_slot = _exported_pointer(unit, launch_symbol(function.name))
    context_slot = _exported_pointer(unit, context_symbol(function.name))

    def body(builder: ir.IRBuilder, pointers: Sequence[ir.Value]) -> ir.Value:
        launch = builder.load(launch_slot, typ=_LAUNCH_TYPE.as_pointer())
        missing = builder.icmp_unsigned("==", launch, ir.Constant(launch.type, None))
        with builder.if_then(missing, likely=False):
            builder.ret(ir.Constant(I32, encode_return(ReturnKind.NO_DEVICE)))
        buffers = alloca(builder, ir.ArrayType(PTR, len(pointers)))
        for position, pointer in enumerate(pointers):
            builder.store(pointer, element(builder, buffers, ir.Constant(I32, position), PTR))
        result = builder.call(launch, [builder.load(context_slot, typ=PTR), buffers])
        failed = builder.icmp_unsigned("!=", result, ir.Constant(I32, 0))
        status = ir.Constant(I32, encode_return(ReturnKind.LAUNCH_FAILED))
        return builder.select(failed, status, ir.Constant(I32, 0))

    return body


def emit_table_entry(unit: Unit, symbol: str) -> None:
    """Add ``{name, function}`` to the object's `farm_functions` section and keep it through linking."""
    module = unit.module
    text = bytearray(symbol.encode() + b"\0")
    name = ir.GlobalVariable(module, ir.ArrayType(I8, len(text)), "__farm_name")
    name.initializer = ir.Constant(name.value_type, text)
    pair = ir.LiteralStructType([PTR, PTR])
    entry = ir.GlobalVariable(module, pair, "__farm_entry")
    entry.initializer = ir.Constant(pair, [name, module.globals[symbol]])
    entry.section = FUNCTIONS_SECTION
    for variable in (name, entry):
        variable.linkage, variable.global_constant = "internal", True
    kept = ir.GlobalVariable(module, ir.ArrayType(PTR, 1), "llvm.used")
    kept.linkage, kept.section = "appending", "llvm.metadata"
    kept.initializer = ir.Constant(kept.value_type, [entry])


def _exported_pointer(unit: Unit, name: str) -> ir.Value:
    variable = ir.GlobalVariable(unit.module, PTR, name)
    variable.initializer = ir.Constant(PTR, None)
    return variable


@dataclass
class _Checks:
    """Emits checks that all leave through one block, which returns the code of the first that fails."""

    builder: ir.IRBuilder

    def __post_init__(self) -> None:
        entry = self.builder.block
        self.refused = self.builder.append_basic_block("refused")
        self.builder.position_at_end(self.refused)
        self.code = self.builder.phi(I32, "code")
        self.builder.ret(self.code)
        self.builder.position_at_end(entry)

    def run(self, buffers: Sequence[Buffer], args: ir.Value, count: ir.Value) -> list[ir.Value]:
        """Check all arguments; return their data pointers."""
        builder = self.builder
        wanted = ir.Constant(I32, len(buffers))
        self._require(builder.icmp_signed("==", count, wanted), ReturnKind.WRONG_COUNT, 0)
        self._require_pointer(args, 0)
        return [
            self._argument(
                builder.load(element(builder, args, ir.Constant(I32, i), PTR), typ=PTR), buffer, i
            )
            for i, buffer in enumerate(buffers)
        ]

    def _argument(self, tensor: ir.Value, buffer: Buffer, index: int) -> ir.Value:
        self._require_pointer(tensor, index)
        data = self._member(tensor, Field.DATA, PTR)
        self._require_pointer(data, index)
        rank = self._equals(self._member(tensor, Field.NDIM, I32), len(buffer.shape))
        self._require(rank, ReturnKind.WRONG_NDIM, index)
        code, bits = DTYPES[str(buffer.dtype)]
        parts = ((Field.CODE, I8, code), (Field.BITS, I8, bits), (Field.LANES, I16, 1))
        same = [
            self._equals(self._member(tensor, part, kind), value) for part, kind, value in parts
        ]
        self._require(self._all(same), ReturnKind.WRONG_DTYPE, index)
        if buffer.shape:
            self._layout(tensor, buffer.shape, index)
        data = element(self.builder, data, self._member(tensor, Field.BYTE_OFFSET, I64), I8)
        low = self.builder.and_(
            self.builder.ptrtoint(data, I64), ir.Constant(I64, buffer.align_bytes - 1)
        )
        self._require(self._equals(low, 0), ReturnKind.MISALIGNED, index)
        return data

    def _layout(self, tensor: ir.Value, shape: tuple[int, ...], index: int) -> None:
        """Check extents and, where they are given, strides; those of extents of 1 mean nothing."""
        extents = self._member(tensor, Field.SHAPE, PTR)
        self._require_pointer(extents, index)
        same = [self._equals(self._item(extents, axis), n) for axis, n in enumerate(shape)]
        self._require(self._all(same), ReturnKind.WRONG_SHAPE, index)
        strides = self._member(tensor, Field.STRIDES, PTR)
        given = self.builder.append_basic_block("strides")
        dense = self.builder.append_basic_block("dense")
        self.builder.cbranch(self._is_null(strides), dense, given)
        self.builder.position_at_end(given)
        same, stride = [], 1
        for axis in reversed(range(len(shape))):
            if shape[axis] != 1:
                same.append(self._equals(self._item(strides, axis), stride))
            stride *= shape[axis]
        if same:
            self._require(self._all(same), ReturnKind.NOT_CONTIGUOUS, index)
        self.builder.branch(dense)
        self.builder.position_at_end(dense)

    def _require_pointer(self, pointer: ir.Value, index: int) -> None:
        self._require(self.builder.not_(self._is_null(pointer)), ReturnKind.NULL_POINTER, index)

    def _require(self, holds: ir.Value, kind: ReturnKind, index: int) -> None:
        following = self.builder.append_basic_block("checked")
        self.code.add_incoming(ir.Constant(I32, encode_return(kind, index)), self.builder.block)
        self.builder.cbranch(holds, following, self.refused)
        self.builder.position_at_end(following)

    def _member(self, tensor: ir.Value, member: Field, kind: ir.Type) -> ir.Value:
        return self.builder.load(field(self.builder, tensor, member), typ=kind)

    def _item(self, array: ir.Value, index: int) -> ir.Value:
        return self.builder.load(
            element(self.builder, array, ir.Constant(I32, index), I64), typ=I64
        )

    def _equals(self, value: ir.Value, wanted: int) -> ir.Value:
        return self.builder.icmp_unsigned("==", value, ir.Constant(value.type, wanted))

    def _is_null(self, pointer: ir.Value) -> ir.Value:
        return self.builder.icmp_unsigned("==", pointer, ir.Constant(PTR, None))

    def _all(self, conditions: Sequence[ir.Value]) -> ir.Value:
        result = conditions[0]
        for condition in conditions[1:]:
            result = self.builder.and_(result, condition)
        return result
