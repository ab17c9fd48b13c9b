"""The text of a function's kernels.

Owns: statements, declarations, the order of the text. Does not own: the cut into kernels (`kernels`), expressions.

Invariant: the text depends on the function alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from farm.codegen.opencl.expressions import MEMORY, Expressions, buffer_name, variable_name
from farm.codegen.opencl.kernels import Kernel
from farm.ir.buffer import Buffer
from farm.ir.function import Function, Role
from farm.ir.stmt import Allocate, Block, For, If, LoopKind, Stmt, Store

_SCRATCH = "farm_scratch"


def kernel_text(function: Function, kernels: Sequence[Kernel], *, doubles: bool) -> str:
    """Return the whole source.

    Parameters
    ----------
    doubles
        Whether it uses float64.
    """
    expressions = Expressions()
    bodies = ["\n".join(_kernel(function, kernel, expressions)) for kernel in kernels]
    pragmas = [] if function.fast_math.contract else ["#pragma OPENCL FP_CONTRACT OFF"]
    if doubles:
        pragmas.append("#pragma OPENCL EXTENSION cl_khr_fp64 : enable")
    return "\n".join([*pragmas, "", *expressions.helpers.values(), *bodies, ""])


def _kernel(function: Function, kernel: Kernel, expressions: Expressions) -> Iterator[str]:
    arguments = [_argument(param.buffer, param.role) for param in function.params]
    arguments.append(f"__global uchar *restrict {_SCRATCH}")
    yield f"__kernel void {kernel.name}({', '.join(arguments)}) {{"
    for dimension, (name, _) in enumerate(kernel.items):
        yield f"  const long {variable_name(name)} = (long)get_global_id({dimension});"
    for buffer, offset in kernel.scratch:
        kind = f"__global {MEMORY[buffer.dtype]} *"
        yield f"  {kind}{buffer_name(buffer.name)} = ({kind})({_SCRATCH} + {offset});"
    for buffer in kernel.private:
        kind = MEMORY[buffer.dtype]
        yield f"  {kind} {buffer_name(buffer.name)}[{buffer.elements}];"
    yield from _lines(kernel.body, expressions, 1)
    yield "}"


def _argument(buffer: Buffer, role: Role) -> str:
    const = "const " if role is Role.INPUT else ""
    return f"__global {const}{MEMORY[buffer.dtype]} *restrict {buffer_name(buffer.name)}"


def _lines(stmt: Stmt, expressions: Expressions, depth: int) -> Iterator[str]:
    pad = "  " * depth
    match stmt:
        case For(var, extent, body):
            name = variable_name(var.name)
            if stmt.kind is LoopKind.UNROLLED:
                yield f"{pad}__attribute__((opencl_unroll_hint({extent})))"
            yield f"{pad}for (long {name} = 0; {name} < {extent}L; {name}++) {{"
            yield from _lines(body, expressions, depth + 1)
            yield f"{pad}}}"
        case Store(buffer, indices, value):
            yield f"{pad}{expressions.element(buffer, indices)} = {expressions.stored(value)};"
        case If(condition, then_body, else_body):
            yield f"{pad}if ({expressions.text(condition)}) {{"
            yield from _lines(then_body, expressions, depth + 1)
            if else_body is not None:
                yield f"{pad}}} else {{"
                yield from _lines(else_body, expressions, depth + 1)
            yield f"{pad}}}"
        case Block(stmts):
            for inner in stmts:
                yield from _lines(inner, expressions, depth)
        case Allocate(_, body):
            yield from _lines(body, expressions, depth)
        case _:
            raise AssertionError(f"unknown statement {type(stmt).__name__}")
