"""Function bodies: loops, stores, branches, inner buffers, calls of other functions.

Owns: the internal kernel function over data pointers. Does not own: argument checks and the public symbol (`stubs`).

Invariant: the kernel returns 0, or at once the first non-zero status of a callee, unchanged: the argument index in it
then counts the callee's arguments.

Notes
-----
Inner buffers live on the stack while they fit into `Unit.stack_bytes` together, in program order. Larger ones are
zero-initialised internal globals: such a function is not re-entrant, so no two threads may run it at once in one
loaded module.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from farm.artifact.abi import DEVICE_TYPE_CPU, DTYPES, PRIVATE_PREFIX, is_public
from farm.codegen.llvm.expressions import Expressions
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
from farm.ir import Buffer, Function
from farm.ir.bounds import Interval, assume
from farm.ir.stmt import Allocate, Block, Call, For, If, Stmt, Store, walk

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
        self.builder = ir.IRBuilder(kernel.append_basic_block("entry"))
        self.expressions = Expressions(self.unit, self.builder)
        for param, argument in zip(params, kernel.args, strict=True):
            for attribute in ("noalias", "nonnull", "noundef"):
                argument.add_attribute(attribute)
            argument.attributes.align = param.buffer.align_bytes
            argument.attributes.dereferenceable = param.buffer.size_bytes
            self.expressions.pointers[param.buffer.name] = argument
        self._place_inner_buffers()
        self._stmt(self.function.body)
        self.builder.ret(ir.Constant(I32, 0))
        return kernel

    def _place_inner_buffers(self) -> None:
        inner = [stmt.buffer for stmt in walk(self.function.body) if isinstance(stmt, Allocate)]
        total = sum(buffer.size_bytes for buffer in inner)
        if total > MAX_INNER_BYTES:
            raise UnsupportedFunction(
                f"function {self.function.name}: inner buffers too large ({total} bytes); use at most "
                f"{MAX_INNER_BYTES}, or pass them as parameters"
            )
        used = 0
        for buffer in inner:
            size = buffer.size_bytes + buffer.align_bytes
            if used + size <= self.unit.stack_bytes:
                used += size
                self.expressions.pointers[buffer.name] = self._on_stack(buffer)
            else:
                self.expressions.pointers[buffer.name] = self._static(buffer)

    def _on_stack(self, buffer: Buffer) -> ir.Value:
        array = ir.ArrayType(I8, buffer.size_bytes)
        return alloca(self.builder, array, max(buffer.align_bytes, _VECTOR_BYTES), buffer.name)

    def _static(self, buffer: Buffer) -> ir.Value:
        array = ir.ArrayType(I8, buffer.size_bytes)
        variable = ir.GlobalVariable(self.unit.module, array, f"__farm_inner_{buffer.name}")
        variable.linkage = "internal"
        variable.initializer = ir.Constant(array, None)
        variable.align = max(buffer.align_bytes, _VECTOR_BYTES)
        return variable

    def _stmt(self, stmt: Stmt) -> None:
        match stmt:
            case For():
                self._loop(stmt)
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

    def _loop(self, loop: For) -> None:
        """Emit a loop that tests at its end, as the extent is at least 1."""
        expressions, builder = self.expressions, self.builder
        outer = expressions.facts
        expressions.facts = {**outer, loop.var: Interval(0, loop.extent - 1)}
        if loop.extent == 1:
            expressions.variables[loop.var.name] = ir.Constant(I64, 0)
            self._stmt(loop.body)
        else:
            before = builder.block
            body = builder.append_basic_block(f"for_{loop.var.name}")
            builder.branch(body)
            builder.position_at_end(body)
            index = builder.phi(I64, loop.var.name)
            index.add_incoming(ir.Constant(I64, 0), before)
            expressions.variables[loop.var.name] = index
            self._stmt(loop.body)
            following = builder.add(index, ir.Constant(I64, 1), flags=("nuw", "nsw"))
            index.add_incoming(following, builder.block)
            done = builder.append_basic_block(f"end_{loop.var.name}")
            last = builder.icmp_unsigned("==", following, ir.Constant(I64, loop.extent))
            builder.cbranch(last, done, body)
            builder.position_at_end(done)
        del expressions.variables[loop.var.name]
        expressions.facts = outer

    def _if(self, stmt: If) -> None:
        builder = self.builder
        condition = self.expressions.emit(stmt.condition)
        then, done = builder.append_basic_block("then"), builder.append_basic_block("endif")
        otherwise = done if stmt.else_body is None else builder.append_basic_block("else")
        builder.cbranch(condition, then, otherwise)
        self._branch(stmt, then, stmt.then_body, done, holds=True)
        if stmt.else_body is not None:
            self._branch(stmt, otherwise, stmt.else_body, done, holds=False)
        builder.position_at_end(done)

    def _branch(
        self, stmt: If, block: ir.Block, body: Stmt, done: ir.Block, *, holds: bool
    ) -> None:
        outer = self.expressions.facts
        self.expressions.facts = assume(stmt.condition, outer, holds=holds)
        self.builder.position_at_end(block)
        self._stmt(body)
        self.builder.branch(done)
        self.expressions.facts = outer

    def _call(self, stmt: Call) -> None:
        """Call another function with DLTensors made on the stack."""
        self._check_callee(stmt.callee)
        builder, count = self.builder, len(stmt.buffers)
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
            Field.DATA: self.expressions.pointers[buffer.name],
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
            self.builder.store(value, field(self.builder, tensor, member))

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
