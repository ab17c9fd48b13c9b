"""Public symbols of ABI 1: argument checks, then the kernel or an accelerator's launcher.

Owns: the order of the checks, the exported globals of host stubs, the object's entry in section `farm_functions`.

Invariant: nothing behind a DLTensor is touched before its count, pointers, rank, dtype, shape, strides and alignment
have been checked, in this order, argument by argument. Arguments must not overlap unless both are only read; the stub
cannot check that. The device type is not checked: a caller passes memory that this CPU can reach.

Notes
-----
Stubs are LLVM's text, filled in, and are not optimised: one loop over a table of what is wanted, run once a call. To
build them node by node and optimise them cost more than most kernels did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from farm.artifact.abi import (
    DTYPES,
    FUNCTIONS_SECTION,
    ReturnKind,
    context_symbol,
    encode_return,
    launch_symbol,
)
from farm.codegen.llvm.types import DLTENSOR, I32, PTR, alloca, element
from farm.codegen.llvm.unit import Unit
from farm.ir import Buffer, Function

Body = Callable[[ir.IRBuilder, Sequence[ir.Value]], ir.Value]

_LAUNCH_TYPE = ir.FunctionType(I32, [PTR, PTR])

_WANTED = "{ i32, i8, i8, i16, i64, ptr }"  # rank, type code, bits, lanes, alignment - 1, extents

_CHECK = f"""
define internal i32 @__farm_check(ptr %tensor, ptr %wanted, ptr %slot) nounwind noinline optnone {{
entry:
  %no_tensor = icmp eq ptr %tensor, null
  br i1 %no_tensor, label %null, label %pointers
pointers:
  %data = load ptr, ptr %tensor
  %no_data = icmp eq ptr %data, null
  br i1 %no_data, label %null, label %ranks
ranks:
  %at_rank = getelementptr {DLTENSOR}, ptr %tensor, i32 0, i32 3
  %rank = load i32, ptr %at_rank
  %wanted_rank = load i32, ptr %wanted
  %same_rank = icmp eq i32 %rank, %wanted_rank
  br i1 %same_rank, label %types, label %wrong_rank
types:
  %at_code = getelementptr {DLTENSOR}, ptr %tensor, i32 0, i32 4
  %code = load i32, ptr %at_code
  %at_wanted_code = getelementptr {_WANTED}, ptr %wanted, i32 0, i32 1
  %wanted_code = load i32, ptr %at_wanted_code
  %same_code = icmp eq i32 %code, %wanted_code
  br i1 %same_code, label %scalars, label %wrong_dtype
scalars:
  %is_scalar = icmp eq i32 %rank, 0
  br i1 %is_scalar, label %offsets, label %shapes
shapes:
  %at_shape = getelementptr {DLTENSOR}, ptr %tensor, i32 0, i32 7
  %shape = load ptr, ptr %at_shape
  %no_shape = icmp eq ptr %shape, null
  br i1 %no_shape, label %null, label %extents
extents:
  %at_wanted_shape = getelementptr {_WANTED}, ptr %wanted, i32 0, i32 5
  %wanted_shape = load ptr, ptr %at_wanted_shape
  br label %extent
extent:
  %axis = phi i32 [ 0, %extents ], [ %axis_next, %extent_right ]
  %at_extent = getelementptr i64, ptr %shape, i32 %axis
  %given_extent = load i64, ptr %at_extent
  %at_wanted_extent = getelementptr i64, ptr %wanted_shape, i32 %axis
  %wanted_extent = load i64, ptr %at_wanted_extent
  %same_extent = icmp eq i64 %given_extent, %wanted_extent
  br i1 %same_extent, label %extent_right, label %wrong_shape
extent_right:
  %axis_next = add i32 %axis, 1
  %more_extents = icmp slt i32 %axis_next, %rank
  br i1 %more_extents, label %extent, label %strides
strides:
  %at_strides = getelementptr {DLTENSOR}, ptr %tensor, i32 0, i32 8
  %given_strides = load ptr, ptr %at_strides
  %dense = icmp eq ptr %given_strides, null
  br i1 %dense, label %offsets, label %stride
stride:
  %left = phi i32 [ %rank, %strides ], [ %back, %stride_right ]
  %wanted_stride = phi i64 [ 1, %strides ], [ %stride_next, %stride_right ]
  %back = sub i32 %left, 1
  %at_stride = getelementptr i64, ptr %given_strides, i32 %back
  %given_stride = load i64, ptr %at_stride
  %at_length = getelementptr i64, ptr %wanted_shape, i32 %back
  %length = load i64, ptr %at_length
  %same_stride = icmp eq i64 %given_stride, %wanted_stride
  %is_one = icmp eq i64 %length, 1
  %right_stride = or i1 %same_stride, %is_one
  br i1 %right_stride, label %stride_right, label %wrong_strides
stride_right:
  %stride_next = mul i64 %wanted_stride, %length
  %more_strides = icmp sgt i32 %back, 0
  br i1 %more_strides, label %stride, label %offsets
offsets:
  %at_offset = getelementptr {DLTENSOR}, ptr %tensor, i32 0, i32 9
  %offset = load i64, ptr %at_offset
  %start = getelementptr i8, ptr %data, i64 %offset
  %address = ptrtoint ptr %start to i64
  %at_mask = getelementptr {_WANTED}, ptr %wanted, i32 0, i32 4
  %mask = load i64, ptr %at_mask
  %low = and i64 %address, %mask
  %aligned = icmp eq i64 %low, 0
  br i1 %aligned, label %right, label %misaligned
right:
  store ptr %start, ptr %slot
  ret i32 0
null:
  ret i32 {ReturnKind.NULL_POINTER:d}
wrong_rank:
  ret i32 {ReturnKind.WRONG_NDIM:d}
wrong_dtype:
  ret i32 {ReturnKind.WRONG_DTYPE:d}
wrong_shape:
  ret i32 {ReturnKind.WRONG_SHAPE:d}
wrong_strides:
  ret i32 {ReturnKind.NOT_CONTIGUOUS:d}
misaligned:
  ret i32 {ReturnKind.MISALIGNED:d}
}}
"""


def emit_stub(unit: Unit, function: Function, symbol: str, body: Body | ir.Function) -> None:
    """Define the public symbol of a function.

    Parameters
    ----------
    body
        The function over the checked data pointers that returns the status, or what emits one.
    """
    if not isinstance(body, ir.Function):
        body = _outlined(unit, len(function.params), body)
    buffers = [param.buffer for param in function.params]
    unit.texts += [_CHECK, *_table(buffers), _stub(symbol, len(buffers), body.name)]


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
    size = len(symbol) + 1
    unit.texts.append(
        f"""
@__farm_name = internal constant [{size} x i8] c"{symbol}\\00"
@__farm_entry = internal constant {{ ptr, ptr }} {{ ptr @__farm_name, ptr @"{symbol}" }}, section "{FUNCTIONS_SECTION}"
@llvm.used = appending global [1 x ptr] [ptr @__farm_entry], section "llvm.metadata"
"""
    )


def _exported_pointer(unit: Unit, name: str) -> ir.Value:
    variable = ir.GlobalVariable(unit.module, PTR, name)
    variable.initializer = ir.Constant(PTR, None)
    return variable


def _outlined(unit: Unit, count: int, body: Body) -> ir.Function:
    function = ir.Function(unit.module, ir.FunctionType(I32, [PTR] * count), "__farm_call")
    function.linkage = "internal"
    function.attributes.add("nounwind")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    builder.ret(body(builder, function.args))
    return function


def _table(buffers: Sequence[Buffer]) -> list[str]:
    """Return the globals that say what each argument must be."""
    texts, rows = [], []
    for index, buffer in enumerate(buffers):
        extents = ", ".join(f"i64 {extent}" for extent in buffer.shape)
        shape = "null"
        if buffer.shape:
            shape = f"@__farm_extents_{index}"
            texts.append(f"{shape} = internal constant [{len(buffer.shape)} x i64] [{extents}]\n")
        code, bits = DTYPES[str(buffer.dtype)]
        values = (
            f"i32 {len(buffer.shape)}, i8 {code}, i8 {bits}, i16 1, "
            f"i64 {buffer.align_bytes - 1}, ptr {shape}"
        )
        rows.append(f"{_WANTED} {{ {values} }}")
    kind = f"[{len(buffers)} x {_WANTED}]"
    return [*texts, f"@__farm_wanted = internal constant {kind} [{', '.join(rows)}]\n"]


def _stub(symbol: str, count: int, body: str) -> str:
    """Return the public function: check all arguments in a loop, then call the body."""
    loads = "\n".join(
        f"  %at{i} = getelementptr ptr, ptr %slots, i32 {i}\n  %data{i} = load ptr, ptr %at{i}"
        for i in range(count)
    )
    passed = ", ".join(f"ptr %data{i}" for i in range(count))
    return f"""
define i32 @"{symbol}"(ptr %arguments, i32 %count) nounwind noinline optnone {{
entry:
  %slots = alloca [{count} x ptr]
  %counted = icmp eq i32 %count, {count}
  br i1 %counted, label %list, label %wrong_count
list:
  %no_list = icmp eq ptr %arguments, null
  br i1 %no_list, label %null, label %each
each:
  %index = phi i32 [ 0, %list ], [ %next, %right ]
  %at = getelementptr ptr, ptr %arguments, i32 %index
  %tensor = load ptr, ptr %at
  %wanted = getelementptr {_WANTED}, ptr @__farm_wanted, i32 %index
  %slot = getelementptr ptr, ptr %slots, i32 %index
  %kind = call i32 @__farm_check(ptr %tensor, ptr %wanted, ptr %slot)
  %fits = icmp eq i32 %kind, 0
  br i1 %fits, label %right, label %refused
right:
  %next = add i32 %index, 1
  %more = icmp slt i32 %next, {count}
  br i1 %more, label %each, label %run
run:
{loads}
  %status = call i32 @{body}({passed})
  ret i32 %status
refused:
  %shifted = shl i32 %index, 8
  %code = or i32 %kind, %shifted
  ret i32 %code
wrong_count:
  ret i32 {encode_return(ReturnKind.WRONG_COUNT)}
null:
  ret i32 {encode_return(ReturnKind.NULL_POINTER)}
}}
"""
