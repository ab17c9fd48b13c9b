"""LLVM types of elements and of DLTensor, and constants.

Owns: how a value and an element in memory are represented: bool is i1 as a value and one byte (0 or 1) in memory; a
value that differs between the iterations of a vectorized loop is a vector, any other a scalar. Floats of 16 bits are
float32 as values, and integers in memory (`halves`).

Invariant: `DLTENSOR` is laid out as DLPack 1.0's C struct under each target's own data layout.
"""

from __future__ import annotations

import enum
import functools

from llvmlite import ir

from farm.ir.dtype import DType, Kind
from farm.ir.expr import Scalar

PTR = ir.PointerType()
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()

DLTENSOR = ir.LiteralStructType([PTR, I32, I32, I32, I8, I8, I16, PTR, PTR, I64])


class Field(enum.IntEnum):
    """Members of `DLTENSOR` by position."""

    DATA = 0
    DEVICE_TYPE = 1
    DEVICE_ID = 2
    NDIM = 3
    CODE = 4
    BITS = 5
    LANES = 6
    SHAPE = 7
    STRIDES = 8
    BYTE_OFFSET = 9


def memory_type(dtype: DType) -> ir.Type:
    """Return the type of an element in memory."""
    if dtype.is_float and not dtype.is_half:
        return F32 if dtype is DType.FLOAT32 else F64
    return ir.IntType(dtype.bits)


def value_type(dtype: DType) -> ir.Type:
    """Return the type of a value in a register."""
    if dtype.is_half:
        return F32
    return I1 if dtype is DType.BOOL else memory_type(dtype)


def constant(value: Scalar, dtype: DType) -> ir.Constant:
    """Return a constant of the value type."""
    if dtype.is_float:
        return ir.Constant(value_type(dtype), float(value))
    if dtype is DType.BOOL:
        return ir.Constant(I1, int(value))
    number = int(value)
    if dtype.kind is Kind.UINT and number >> (dtype.bits - 1):
        number -= 1 << dtype.bits  # LLVM reads all integers as signed
    return ir.Constant(value_type(dtype), number)


def element_of(kind: ir.Type) -> ir.Type:
    """Return the type of one lane; of a scalar itself."""
    return kind.element if isinstance(kind, ir.VectorType) else kind


def lanes_of(value: ir.Value) -> int:
    """Return the number of lanes of a value, 1 of a scalar."""
    return value.type.count if isinstance(value.type, ir.VectorType) else 1


def vector(kind: ir.Type, lanes: int) -> ir.Type:
    """Return a vector of `lanes` elements; the element's type itself for one lane."""
    return ir.VectorType(kind, lanes) if lanes > 1 else kind


def shaped(kind: ir.Type, value: ir.Value) -> ir.Type:
    """Return the type with elements of `kind` and as many lanes as `value`."""
    return vector(kind, lanes_of(value))


def int_type_of(float_type: ir.Type) -> ir.Type:
    """Return the integer type as wide as a float type, lane for lane."""
    lanes = float_type.count if isinstance(float_type, ir.VectorType) else 1
    return vector(I32 if element_of(float_type) == F32 else I64, lanes)


def intrinsic_suffix(kind: ir.Type) -> str:
    """Return how an intrinsic's name ends for an overload."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{kind.element.intrinsic_name}"
    name: str = "p0" if kind == PTR else kind.intrinsic_name
    return name


class _Undefined(ir.Constant):  # type: ignore[misc]  # llvmlite has no types
    """A value that nothing uses, in one word; llvmlite itself writes one for each lane of a vector."""

    def _get_reference(self) -> str:
        return "undef"


@functools.cache
def undefined(kind: ir.Type) -> ir.Constant:
    """Return a value of which nothing is used."""
    return _Undefined(kind, ir.Undefined)


@functools.cache
def zeros(kind: ir.Type) -> ir.Constant:
    """Return a constant of zeros."""
    return ir.Constant(kind, 0)


def field(builder: ir.IRBuilder, tensor: ir.Value, member: Field) -> ir.Value:
    """Return a pointer to a member of a DLTensor."""
    return _pointer(builder, tensor, [ir.Constant(I32, 0), ir.Constant(I32, int(member))], DLTENSOR)


def element(
    builder: ir.IRBuilder, base: ir.Value, index: ir.Value, kind: ir.Type, *, inside: bool = True
) -> ir.Value:
    """Return a pointer to element `index` of an array of `kind`; `inside` promises that it is one."""
    return _pointer(builder, base, [index], kind, inside=inside)


def _pointer(
    builder: ir.IRBuilder,
    base: ir.Value,
    indices: list[ir.Value],
    kind: ir.Type,
    *,
    inside: bool = True,
) -> ir.Value:
    pointer = builder.gep(base, indices, inbounds=inside, source_etype=kind)
    pointer.type = PTR  # llvmlite would type it by the base's pointee and refuse other stores
    return pointer


def alloca(
    builder: ir.IRBuilder, kind: ir.Type, align: int | None = None, name: str = ""
) -> ir.Value:
    """Return a stack slot in the function's entry block."""
    with builder.goto_entry_block():
        slot = builder.alloca(kind, name=name)
    slot.align = align
    slot.type = PTR
    return slot
