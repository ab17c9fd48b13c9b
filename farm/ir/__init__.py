"""The loop-level IR: the one form of a function that everything else works on.

Owns: element types, expressions, statements, functions; their printer, verifier, plain interpreter and wire form.
Does not own: how users write functions (`farm.te`), rewrite them (schedules) or compile them (`farm.codegen`).

The grammar::

    Function = (name, Param*, Stmt, target?, private, FastMath)   Param = (Buffer, input | output | inout)
    Buffer   = (name, DType, extents, alignment, global | stack | register)
    Stmt     = For(var, extent, Stmt, serial | parallel | vectorized | unrolled, annotations)
             | Store(Buffer, Expr*, Expr) | If(Expr, Stmt, Stmt?) | Block(Stmt*)
             | Allocate(Buffer, Stmt) | Call(callee, Buffer*) | Source(c | llvm, text, option*)
    Expr     = Const | Var | Load(Buffer, Expr*) | Binary(op, Expr, Expr) | Compare(op, Expr, Expr)
             | Select(Expr, Expr, Expr) | Cast(DType, Expr) | Math(op, Expr)

Invariant: nodes are immutable and well typed; a function that passes `verify` never leaves its buffers, unless it
is `Source`.
"""

from farm.ir.buffer import Buffer, Scope
from farm.ir.dtype import DType, as_dtype
from farm.ir.function import FastMath, Function, Param, Role
from farm.ir.interpreter import interpret
from farm.ir.printer import print_function
from farm.ir.signature import signature_of
from farm.ir.stmt import LoopKind
from farm.ir.verifier import verify
from farm.ir.wire import function_digest, parse, serialise

__all__ = [
    "Buffer",
    "DType",
    "FastMath",
    "Function",
    "LoopKind",
    "Param",
    "Role",
    "Scope",
    "as_dtype",
    "function_digest",
    "interpret",
    "parse",
    "print_function",
    "serialise",
    "signature_of",
    "verify",
]
