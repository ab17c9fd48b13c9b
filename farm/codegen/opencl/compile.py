"""The entry of the OpenCL backend: a function in, its source with a head in the first line out.

Owns: the order of the stages, the format's version. Does not own: any stage, or the head (`farm.artifact.opencl`).

Invariant: equal functions give equal text.
"""

from __future__ import annotations

from farm.artifact import BuiltModule
from farm.artifact.module import OPENCL_SOURCE
from farm.artifact.opencl import Head, Launch, with_head
from farm.codegen.opencl.expressions import DTYPES
from farm.codegen.opencl.kernels import Kernel, find_kernels
from farm.codegen.opencl.source import kernel_text
from farm.codegen.symbol import symbol_of
from farm.errors import UnsupportedFunction
from farm.ir import DType, Function, signature_of
from farm.ir.expr import Cast, Const, walk
from farm.ir.source import Source
from farm.ir.stmt import Allocate, expressions
from farm.ir.stmt import walk as walk_statements
from farm.target import Target

VERSION = 1  # raise it whenever the same function gives other text
FORMAT_VERSION = 1
FP64 = "opencl-extension:cl_khr_fp64"
MAX_SCRATCH_BYTES = 1 << 30


def compile_opencl(function: Function, target: Target) -> BuiltModule:
    """Write a function as OpenCL C.

    Raises
    ------
    UnsupportedFunction
        OpenCL C cannot say it; the message says what.
    """
    body = function.body
    if function.private or function.callees or isinstance(body, Source):
        what = "is private" if function.private else f"calls {', '.join(function.callees)}"
        if isinstance(body, Source):
            what = f"has a body of {body.language.value}"
        raise UnsupportedFunction(
            f"function {function.name} on opencl: it {what}; place it on the CPU"
        )
    types = _types(function)
    unknown = sorted(str(dtype) for dtype in types if dtype not in DTYPES)
    if unknown:
        raise UnsupportedFunction(
            f"function {function.name} on opencl: no type {', '.join(unknown)} there; cast to float32"
        )
    kernels, scratch_bytes = find_kernels(function)
    if scratch_bytes > MAX_SCRATCH_BYTES:
        raise UnsupportedFunction(
            f"function {function.name} on opencl: inner buffers too large ({scratch_bytes} bytes); use at most "
            f"{MAX_SCRATCH_BYTES}"
        )
    head = Head(launches=tuple(_launch(kernel) for kernel in kernels), scratch_bytes=scratch_bytes)
    text = kernel_text(function, kernels, doubles=DType.FLOAT64 in types)
    return BuiltModule(
        kind="device",
        symbol=symbol_of(function, target),
        target=str(target),
        format=OPENCL_SOURCE,
        format_version=FORMAT_VERSION,
        requires=tuple(sorted({*target.requires, *([FP64] if DType.FLOAT64 in types else [])})),
        toolchain=toolchain(target),
        signature=signature_of(function),
        data=with_head(head, text),
    )


def toolchain(target: Target) -> str:
    """Return the name and version of this code generator."""
    return f"kernel-farm {target.kind} codegen {VERSION}"


def _launch(kernel: Kernel) -> Launch:
    return Launch(kernel.name, tuple(extent for _, extent in kernel.items) or (1,))


def _types(function: Function) -> set[DType]:
    found = {param.buffer.dtype for param in function.params}
    for stmt in walk_statements(function.body):
        if isinstance(stmt, Allocate):
            found.add(stmt.buffer.dtype)
        for expr in expressions(stmt):
            found.update(node.dtype for node in walk(expr) if isinstance(node, Const | Cast))
    return found
