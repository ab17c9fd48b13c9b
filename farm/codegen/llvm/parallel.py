"""Parallel loops: the loop as a function of its own, and the call of whoever shares it out among threads.

Owns: what such a function is given, and memory of its own for each thread. Does not own: threads (`farm.runtime.pool`).

Invariant: without a launcher the loop runs here, in order; with one, each iteration runs once, on some thread. Buffers
that are allocated inside the loop are the running thread's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llvmlite import ir

from farm.artifact.abi import parallel_symbol
from farm.codegen.llvm.context import LINE_BYTES, Context
from farm.codegen.llvm.loops import Counted
from farm.codegen.llvm.types import I8, I32, I64, PTR, alloca, element
from farm.codegen.llvm.unit import Unit
from farm.ir import Buffer
from farm.ir.bounds import Interval
from farm.ir.expr import Load
from farm.ir.expr import walk as walk_expr
from farm.ir.stmt import Allocate, For, Stmt, Store, expressions, walk

SHARE_TYPE = ir.FunctionType(ir.VoidType(), [PTR, PTR, I64, I64])
"""``void (env, scratch, begin, end)``: runs the iterations from begin to before end."""

LAUNCH_TYPE = ir.FunctionType(I32, [PTR, PTR, I64, I64])
"""``int32_t (share, env, extent, scratch_bytes)``: runs all iterations; not 0 if it ran none."""

MAX_ALIGN_BYTES = 4096  # the most that a buffer may ask for; launchers align scratch memory so


@dataclass
class Parallel:
    """Emits the parallel loops of one function.

    Attributes
    ----------
    body
        Emits a loop's body in a context of its own.
    """

    unit: Unit
    symbol: str
    body: Callable[[Context, Stmt], None]
    count: int = 0

    def emit(self, context: Context, loop: For) -> None:
        """Emit a loop at the context's position."""
        made = _Outlined(self, context, loop, self.count)
        self.count += 1
        share = made.share()
        made.call(share, self._slot())

    def _slot(self) -> ir.Value:
        """Return the exported global in which the loader stores the launcher."""
        name = parallel_symbol(self.symbol)
        if name in self.unit.module.globals:
            return self.unit.module.globals[name]
        slot = ir.GlobalVariable(self.unit.module, PTR, name)
        slot.initializer = ir.Constant(PTR, None)
        return slot


class _Outlined:
    """One parallel loop on its way into functions of its own.

    There are two: the inner one takes every buffer as an argument, since only of arguments LLVM believes that they do
    not overlap; the outer one fetches the arguments from memory.
    """

    def __init__(self, parallel: Parallel, context: Context, loop: For, number: int) -> None:
        self.parallel, self.context, self.loop, self.number = parallel, context, loop, number
        used = dict.fromkeys(_buffers(loop.body))
        self.buffers = [buffer for buffer in used if buffer.name in context.pointers]
        self.variables = list(context.variables)
        self.env_type = ir.LiteralStructType(
            [PTR] * len(self.buffers) + [I64] * len(self.variables)
        )
        private = [stmt.buffer for stmt in walk(loop.body) if isinstance(stmt, Allocate)]
        self.stacked, self.offsets, self.scratch_bytes = _places(private, parallel.unit.stack_bytes)

    def share(self) -> ir.Function:
        """Return the function that runs part of the iterations."""
        inner = self._inner()
        share = self._function(f"__farm_share_{self.number}", SHARE_TYPE)
        builder = ir.IRBuilder(share.append_basic_block("entry"))
        env, scratch, begin, end = share.args
        values = [
            builder.load(self._member(builder, env, index), typ=kind)
            for index, kind in enumerate(self.env_type.elements)
        ]
        builder.call(inner, [*values, scratch, begin, end])
        builder.ret_void()
        return share

    def call(self, share: ir.Function, slot: ir.Value) -> None:
        """Emit the call of the launcher, or of the share itself where there is none or it refuses."""
        context, builder = self.context, self.context.builder
        env = alloca(builder, self.env_type)
        values = [context.pointers[buffer.name] for buffer in self.buffers]
        values += [context.variables[name] for name in self.variables]
        for index, value in enumerate(values):
            builder.store(value, self._member(builder, env, index))
        serial, ask, done = (
            builder.append_basic_block(name) for name in ("serial", "launch", "ran")
        )
        launch = builder.load(slot, typ=LAUNCH_TYPE.as_pointer())
        missing = builder.icmp_unsigned("==", launch, ir.Constant(launch.type, None))
        builder.cbranch(missing, serial, ask)
        builder.position_at_end(ask)
        extent = ir.Constant(I64, self.loop.extent)
        status = builder.call(launch, [share, env, extent, ir.Constant(I64, self.scratch_bytes)])
        builder.cbranch(builder.icmp_unsigned("==", status, ir.Constant(I32, 0)), done, serial)
        builder.position_at_end(serial)
        builder.call(share, [env, self._own_scratch(), ir.Constant(I64, 0), extent])
        builder.branch(done)
        builder.position_at_end(done)

    def _inner(self) -> ir.Function:
        """Return the loop over buffers, variables, scratch memory, begin and end."""
        context = self.context
        kinds = [*self.env_type.elements, PTR, I64, I64]
        inner = self._function(f"__farm_loop_{self.number}", ir.FunctionType(ir.VoidType(), kinds))
        inner.attributes.add("noinline")
        for argument, kind in zip(inner.args, kinds, strict=True):
            if kind == PTR:
                argument.add_attribute("noalias")
        for argument, buffer in zip(inner.args, self.buffers, strict=False):
            argument.attributes.align = buffer.align_bytes
            argument.attributes.dereferenceable = buffer.size_bytes
        builder = ir.IRBuilder(inner.append_basic_block("entry"))
        count = len(self.buffers)
        *_, scratch, begin, end = inner.args
        own = context.fork(builder)
        own.pointers = {b.name: arg for b, arg in zip(self.buffers, inner.args, strict=False)}
        own.variables = dict(zip(self.variables, inner.args[count:], strict=False))
        own.bindings = dict(context.bindings)
        for buffer in self.stacked:
            align = max(buffer.align_bytes, LINE_BYTES)
            array = ir.ArrayType(I8, buffer.size_bytes)
            own.pointers[buffer.name] = alloca(builder, array, align, buffer.name)
        for name, offset in self.offsets.items():
            own.pointers[name] = element(builder, scratch, ir.Constant(I64, offset), I8)
        name = self.loop.var.name
        with Counted(own, name, begin, end) as index:
            own.variables[name] = index
            own.learn(self.loop.var, Interval(0, self.loop.extent - 1))
            self.parallel.body(own, self.loop.body)
        if own.unit.streams:
            builder.fence("seq_cst")
        builder.ret_void()
        return inner

    def _own_scratch(self) -> ir.Value:
        """Return scratch memory for a loop that no launcher runs; such a function is not re-entrant."""
        if not self.scratch_bytes:
            return ir.Constant(PTR, None)
        array = ir.ArrayType(I8, self.scratch_bytes)
        name = f"__farm_scratch_{self.number}"
        variable = ir.GlobalVariable(self.parallel.unit.module, array, name)
        variable.linkage = "internal"
        variable.initializer = ir.Constant(array, None)
        variable.align = MAX_ALIGN_BYTES
        return variable

    def _function(self, name: str, kind: ir.FunctionType) -> ir.Function:
        function = ir.Function(self.parallel.unit.module, kind, name)
        function.linkage = "internal"
        function.attributes.add("nounwind")
        return function

    def _member(self, builder: ir.IRBuilder, env: ir.Value, index: int) -> ir.Value:
        indices = [ir.Constant(I32, 0), ir.Constant(I32, index)]
        pointer = builder.gep(env, indices, inbounds=True, source_etype=self.env_type)
        pointer.type = PTR
        return pointer


def _places(private: list[Buffer], stack_bytes: int) -> tuple[list[Buffer], dict[str, int], int]:
    """Return the buffers for the stack, offsets of the others in scratch memory, and how much of that there is."""
    stacked: list[Buffer] = []
    offsets: dict[str, int] = {}
    used = end = 0
    for buffer in sorted(private, key=lambda buffer: buffer.size_bytes):
        align = max(buffer.align_bytes, LINE_BYTES)
        if used + buffer.size_bytes + align <= stack_bytes:
            used += buffer.size_bytes + align
            stacked.append(buffer)
        else:
            offsets[buffer.name] = -(-end // align) * align
            end = offsets[buffer.name] + buffer.size_bytes
    return stacked, offsets, end


def _buffers(body: Stmt) -> Iterator[Buffer]:
    """Yield the buffers that a statement loads from or stores to."""
    for stmt in walk(body):
        if isinstance(stmt, Store):
            yield stmt.buffer
        for expr in expressions(stmt):
            for node in walk_expr(expr):
                if isinstance(node, Load):
                    yield node.buffer
