"""Function bodies: stores, branches, inner buffers, calls of other functions.

Owns: the internal kernel function over data pointers. Does not own: argument checks and the public symbol (`stubs`),
loops (`loops`).

Invariant: the kernel returns 0, or at once the first non-zero status of a callee, unchanged: the argument index in it
then counts the callee's arguments.

Notes
-----
Inner buffers live on the stack while they fit into `Unit.stack_bytes` together, in program order; those that ask for
registers or the stack come first. Larger ones are zero-initialised internal globals: such a function is not
re-entrant, so no two threads may run it at once in one loaded module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llvmlite import ir

from farm.artifact.abi import DEVICE_TYPE_CPU, DTYPES, PRIVATE_PREFIX, is_public
from farm.codegen.llvm.context import Context
from farm.codegen.llvm.dots import DotLoop, emit_dot, find_dot_loop
from farm.codegen.llvm.expressions import Expressions
from farm.codegen.llvm.lines import Lines
from farm.codegen.llvm.loops import Loops
from farm.codegen.llvm.parallel import Parallel
from farm.codegen.llvm.types import (
    DLTENSOR,
    I8,
    I16,
    I32,
    I64,
    PTR,
    Field,
    alloca,
    element,
    field,
)
from farm.codegen.llvm.unit import Unit
from farm.errors import UndefinedReference, UnsupportedFunction
from farm.ir import Buffer, FastMath, Function, Scope
from farm.ir.stmt import Allocate, Block, Call, For, If, LoopKind, Stmt, Store, walk

KERNEL = "__farm_kernel"
MAX_INNER_BYTES = 1 << 30
_VECTOR_BYTES = 16


@dataclass
class Kernel:
    """Emits one function's body."""

    unit: Unit
    function: Function
    symbol: str

    def emit(self) -> ir.Function:
        """Return the internal function ``i32 (ptr...)`` over the parameters' data."""
        params = self.function.params
        kernel = ir.Function(self.unit.module, ir.FunctionType(I32, [PTR] * len(params)), KERNEL)
        kernel.linkage = "internal"
        kernel.attributes.add("nounwind")
        kernel.attributes.add(
            "noinline"
        )  # in the stub the promises about its arguments would be lost
        self.lines = Lines(self.unit.module, self.function) if self.unit.lines else None
        self.parallel = Parallel(self.unit, self.symbol, self._elsewhere)
        builder = ir.IRBuilder(kernel.append_basic_block("entry"))
        flags = _float_flags(self.function.fast_math)
        names = frozenset(param.buffer.name for param in params)
        self._enter(Context(self.unit, builder, float_flags=flags, parameters=names))
        for param, argument in zip(params, kernel.args, strict=True):
            for attribute in ("noalias", "nonnull", "noundef"):
                argument.add_attribute(attribute)
            argument.attributes.align = param.buffer.align_bytes
            argument.attributes.dereferenceable = param.buffer.size_bytes
            self.context.pointers[param.buffer.name] = argument
        self._place_inner_buffers()
        self._stmt(self.function.body)
        if self.unit.streams:
            builder.fence("seq_cst")
        builder.ret(ir.Constant(I32, 0))
        return kernel

    def _enter(self, context: Context) -> None:
        self.context = context
        self.expressions = Expressions(context)
        self.loops = Loops(context, self._stmt)

    def _elsewhere(self, context: Context, body: Stmt) -> None:
        """Emit a parallel loop's body, in another LLVM function, and come back."""
        outer = self.context
        self._enter(context)
        self._stmt(body)
        self._enter(outer)

    def _place_inner_buffers(self) -> None:
        """Place all but those inside parallel loops, which are each thread's own."""
        every = [stmt.buffer for stmt in walk(self.function.body) if isinstance(stmt, Allocate)]
        total = sum(buffer.size_bytes for buffer in every)
        if total > MAX_INNER_BYTES:
            raise UnsupportedFunction(
                f"function {self.function.name}: inner buffers too large ({total} bytes); use at most "
                f"{MAX_INNER_BYTES}, or pass them as parameters"
            )
        inner = [stmt.buffer for stmt in _outside_parallel(self.function.body)]
        used = 0
        for buffer in sorted(inner, key=lambda buffer: _PLACES.index(buffer.scope)):
            size = buffer.size_bytes + buffer.align_bytes
            if used + size <= self.unit.stack_bytes:
                used += size
                self.context.pointers[buffer.name] = self._on_stack(buffer)
            else:
                self.context.pointers[buffer.name] = self._static(buffer)

    def _on_stack(self, buffer: Buffer) -> ir.Value:
        array = ir.ArrayType(I8, buffer.size_bytes)
        return alloca(
            self.context.builder, array, max(buffer.align_bytes, _VECTOR_BYTES), buffer.name
        )

    def _static(self, buffer: Buffer) -> ir.Value:
        array = ir.ArrayType(I8, buffer.size_bytes)
        variable = ir.GlobalVariable(self.unit.module, array, f"__farm_inner_{buffer.name}")
        variable.linkage = "internal"
        variable.initializer = ir.Constant(array, None)
        variable.align = max(buffer.align_bytes, _VECTOR_BYTES)
        return variable

    def _stmt(self, stmt: Stmt) -> None:
        if self.lines is not None:
            self.lines.at(self.context.builder, stmt)
        self._emit(stmt)

    def _emit(self, stmt: Stmt) -> None:
        match stmt:
            case For(kind=LoopKind.PARALLEL) if stmt.extent > 1:
                self.parallel.emit(self.context, stmt)
            case For() if (dot := find_dot_loop(stmt, self.context)) is not None:
                self._dot_loop(dot)
            case For():
                self.loops.emit(stmt)
            case Store(buffer, indices, value):
                self.expressions.store(buffer, indices, value)
            case If():
                self._if(stmt)
            case Block(stmts):
                for inner in stmts:
                    self._stmt(inner)
            case Allocate(_, body):
                self._stmt(body)
            case Call():
                self._call(stmt)
            case _:
                raise AssertionError(f"unknown statement {type(stmt).__name__}")

    def _dot_loop(self, loop: DotLoop) -> None:
        memory, store = self.expressions.memory, loop.store
        total = memory.load(store.buffer, store.indices)
        for part in loop.parts:
            total = emit_dot(self.context, part, memory, total)
        memory.store(store.buffer, store.indices, total)

    def _if(self, stmt: If) -> None:
        condition = self.expressions.emit(stmt.condition)
        bodies = [(True, stmt.then_body)]
        if stmt.else_body is not None:
            bodies.append((False, stmt.else_body))
        if isinstance(condition.type, ir.VectorType):
            for holds, body in bodies:
                self._masked(stmt, condition, body, holds=holds)
            return
        builder = self.context.builder
        then, done = builder.append_basic_block("then"), builder.append_basic_block("endif")
        otherwise = done if stmt.else_body is None else builder.append_basic_block("else")
        builder.cbranch(condition, then, otherwise)
        for (holds, body), block in zip(bodies, (then, otherwise), strict=False):
            builder.position_at_end(block)
            with self.context.region():
                self.context.suppose(stmt.condition, holds=holds)
                self._stmt(body)
            builder.branch(done)
        builder.position_at_end(done)

    def _masked(self, stmt: If, condition: ir.Value, body: Stmt, *, holds: bool) -> None:
        """Run a branch in those lanes that take it; jump over loops that none takes."""
        context, builder = self.context, self.context.builder
        with context.region():
            on = condition if holds else builder.not_(condition)
            context.suppose(stmt.condition, holds=holds, on=on)
            if not any(isinstance(inner, For) for inner in walk(body)):
                self._stmt(body)
                return
            some, none = builder.append_basic_block("some"), builder.append_basic_block("none")
            builder.cbranch(context.any_lane(), some, none)
            builder.position_at_end(some)
            self._stmt(body)
            builder.branch(none)
            builder.position_at_end(none)

    def _call(self, stmt: Call) -> None:
        """Call another function with DLTensors made on the stack."""
        self._check_callee(stmt.callee)
        builder, count = self.context.builder, len(stmt.buffers)
        tensors = alloca(builder, ir.ArrayType(DLTENSOR, count))
        arguments = alloca(builder, ir.ArrayType(PTR, count))
        for position, buffer in enumerate(stmt.buffers):
            index = ir.Constant(I64, position)
            tensor = element(builder, tensors, index, DLTENSOR)
            self._fill(tensor, buffer)
            builder.store(tensor, element(builder, arguments, index, PTR))
        status = builder.call(self.unit.callee(stmt.callee), [arguments, ir.Constant(I32, count)])
        failed, done = builder.append_basic_block("failed"), builder.append_basic_block("called")
        builder.cbranch(builder.icmp_unsigned("!=", status, ir.Constant(I32, 0)), failed, done)
        builder.position_at_end(failed)
        builder.ret(status)
        builder.position_at_end(done)

    def _check_callee(self, callee: str) -> None:
        if callee == self.symbol:
            raise UndefinedReference(f"function {self.function.name}: calls itself; use a loop")
        if not is_public(callee) and not callee.startswith(PRIVATE_PREFIX):
            raise UndefinedReference(
                f"function {self.function.name}: calls {callee}, a reserved name; rename the callee"
            )

    def _fill(self, tensor: ir.Value, buffer: Buffer) -> None:
        code, bits = DTYPES[str(buffer.dtype)]
        values = {
            Field.DATA: self.context.pointers[buffer.name],
            Field.DEVICE_TYPE: ir.Constant(I32, DEVICE_TYPE_CPU),
            Field.DEVICE_ID: ir.Constant(I32, 0),
            Field.NDIM: ir.Constant(I32, len(buffer.shape)),
            Field.CODE: ir.Constant(I8, code),
            Field.BITS: ir.Constant(I8, bits),
            Field.LANES: ir.Constant(I16, 1),
            Field.SHAPE: self._shape(buffer.shape),
            Field.STRIDES: ir.Constant(PTR, None),
            Field.BYTE_OFFSET: ir.Constant(I64, 0),
        }
        for member, value in values.items():
            self.context.builder.store(value, field(self.context.builder, tensor, member))

    def _shape(self, shape: tuple[int, ...]) -> ir.Value:
        """Return a constant array of extents, one for each distinct shape."""
        if not shape:
            return ir.Constant(PTR, None)
        name = f"__farm_shape_{'_'.join(map(str, shape))}"
        if name in self.unit.module.globals:
            return self.unit.module.globals[name]
        array = ir.ArrayType(I64, len(shape))
        variable = ir.GlobalVariable(self.unit.module, array, name)
        variable.linkage, variable.global_constant = "internal", True
        variable.initializer = ir.Constant(array, list(shape))
        return variable


def _outside_parallel(stmt: Stmt) -> Iterator[Allocate]:
    if isinstance(stmt, For) and stmt.kind is LoopKind.PARALLEL and stmt.extent > 1:
        return
    if isinstance(stmt, Allocate):
        yield stmt
    for child in stmt.children():
        yield from _outside_parallel(child)


_PLACES = (Scope.REGISTER, Scope.STACK, Scope.GLOBAL)


def _float_flags(allowed: FastMath) -> tuple[str, ...]:
    flags = {"contract": allowed.contract, "reassoc": allowed.reassociate}
    return tuple(flag for flag, is_allowed in flags.items() if is_allowed)
