"""Loops by their kind: counted, unrolled, vectorized.

Owns: how many lanes a vector has, what is unrolled. Does not own: parallel loops (`parallel`), bodies (`statements`).

Invariant: whatever kind a loop has, its body is emitted for each of its iterations; a kind that would make the code too
large is not followed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llvmlite import ir

from farm.codegen.llvm.context import LINE_BYTES, Context
from farm.codegen.llvm.linear import LANE, Linear
from farm.codegen.llvm.types import I64
from farm.ir.bounds import Interval
from farm.ir.dtype import DType
from farm.ir.expr import Expr, Load, Var
from farm.ir.expr import walk as walk_expr
from farm.ir.stmt import For, LoopKind, Stmt, Store, expressions, walk

VECTOR_BYTES = 128
"""Size of the widest vectors: four registers of 256 bits."""

MAX_CHUNKS = 8  # vectors of one loop that are emitted one after the other
STREAM = "llvm.stream"
"""Key of a loop's hint: if not 0, what it stores to parameters goes past the caches, as it is not needed soon."""

AHEAD = "llvm.ahead"
"""Key of a loop's hint: how many elements ahead of its loads of parameters are fetched into the caches."""

MAX_AHEAD = 1 << 24
MAX_REGISTER_BYTES = 4096  # what all vector registers of a core hold, at most
MAX_UNROLLED_NODES = 20_000  # what all copies of a loop's body may come to together


@dataclass
class Loops:
    """Emits loops at the context's position; `stmt` emits their bodies."""

    context: Context
    stmt: Callable[[Stmt], None]

    def emit(self, loop: For) -> None:
        """Emit a loop, heeding its hints; a parallel one is counted here."""
        hints, context = dict(loop.annotations), self.context
        ahead, context.ahead = context.ahead, _amount(hints.get(AHEAD)) or context.ahead
        streamed = self._streamed(loop.body) if _amount(hints.get(STREAM)) else frozenset()
        if streamed:
            self._past_caches(loop, streamed)
        else:
            self._emit(loop)
        context.ahead = ahead

    def _streamed(self, body: Stmt) -> frozenset[str]:
        """Return the parameters that a loop only stores to, unless it is inside one that streams or masks already."""
        context = self.context
        if context.streamed or context.lanes > 1:
            return frozenset()
        stored = {stmt.buffer.name for stmt in walk(body) if isinstance(stmt, Store)}
        loaded = {
            node.buffer.name
            for stmt in walk(body)
            for expr in expressions(stmt)
            for node in walk_expr(expr)
            if isinstance(node, Load)
        }
        return frozenset(stored - loaded) & context.parameters

    def _past_caches(self, loop: For, streamed: frozenset[str]) -> None:
        """Emit a loop twice: with stores that go past the caches, which only aligned ones can, and as usual."""
        context, builder = self.context, self.context.builder
        addresses = [builder.ptrtoint(context.pointers[name], I64) for name in sorted(streamed)]
        together = functools.reduce(builder.or_, addresses)
        low = builder.and_(together, ir.Constant(I64, LINE_BYTES - 1))
        names = ("streamed", "cached", "stored")
        past, usual, done = (builder.append_basic_block(name) for name in names)
        builder.cbranch(builder.icmp_unsigned("==", low, ir.Constant(I64, 0)), past, usual)
        for block, chosen in ((past, streamed), (usual, frozenset[str]())):
            builder.position_at_end(block)
            context.streamed = chosen
            with context.region():
                self._emit(loop)
            builder.branch(done)
        context.streamed = frozenset()
        builder.position_at_end(done)

    def _emit(self, loop: For) -> None:
        if loop.extent == 1:
            self._once(loop, Linear(0), Interval(0, 0))
        elif loop.kind is LoopKind.UNROLLED and copies(loop) <= MAX_UNROLLED_NODES:
            for value in range(loop.extent):
                self._once(loop, Linear(value), Interval(value, value))
        elif loop.kind is LoopKind.VECTORIZED and (lanes := self._most_lanes(loop)) > 1:
            self._vectorized(loop, lanes)
        else:
            with self._counted(
                loop.var.name, loop.extent, repeat=not self._is_laid_out(loop)
            ) as index:
                self.context.variables[loop.var.name] = index
                self.context.learn(loop.var, Interval(0, loop.extent - 1))
                self.stmt(loop.body)
            del self.context.variables[loop.var.name]

    def _is_laid_out(self, loop: For) -> bool:
        """Tell whether a loop is around vectors that the schedule asks for, and uses nothing that may be in registers.

        LLVM would repeat such a body, as where a product's result is filled with zeros; that gains nothing and took a
        quarter of the time of compiling a product. Small inner buffers get into registers by repeating.
        """
        inner = list(walk(loop.body))
        if not any(isinstance(it, For) and it.kind is LoopKind.VECTORIZED for it in inner):
            return False
        used = {it.buffer for it in inner if isinstance(it, Store)}
        for it in inner:
            for expr in expressions(it):
                used.update(x.buffer for x in walk_expr(expr) if isinstance(x, Load))
        return all(
            it.name in self.context.parameters or it.size_bytes > MAX_REGISTER_BYTES for it in used
        )

    def _most_lanes(self, loop: For) -> int:
        if not self.context.unit.float32_lanes and _computes_float32(loop.body):
            return 1
        return min(loop.extent, VECTOR_BYTES // widest_bytes(loop.body))

    def _vectorized(self, loop: For, lanes: int) -> None:
        chunks, rest = divmod(loop.extent, lanes)
        if chunks <= MAX_CHUNKS:
            for chunk in range(chunks):
                self._lanes(loop, lanes, Linear(chunk * lanes))
        else:
            var = Var(f"{loop.var.name}.chunk")  # no name of a user's has a dot
            with self._counted(var.name, chunks) as index:
                self.context.variables[var.name] = index
                self.context.learn(var, Interval(0, chunks - 1))
                self._lanes(loop, lanes, Linear(0, {var: lanes}))
            del self.context.variables[var.name]
        begin = chunks * lanes
        while rest:  # in powers of two: LLVM spells others out, element by element
            width = 1 << (rest.bit_length() - 1)
            self._lanes(loop, width, Linear(begin))
            begin, rest = begin + width, rest - width

    def _lanes(self, loop: For, lanes: int, start: Linear) -> None:
        """Emit the iterations from `start` on as the lanes of one vector."""
        known = Interval(0, loop.extent - 1)
        if lanes == 1:
            self._once(loop, start, known)
            return
        outer = self.context.lanes
        self.context.lanes = lanes
        with self.context.region(dominates=True):
            self.context.learn(LANE, Interval(0, lanes - 1))
            self._once(loop, start.plus(Linear(0, {LANE: 1})), known)
        self.context.lanes = outer

    def _once(self, loop: For, value: Linear, known: Interval) -> None:
        context = self.context
        facts, sure = context.facts, context.sure
        context.learn(loop.var, known)
        context.bindings[loop.var.name] = value
        self.stmt(loop.body)
        del context.bindings[loop.var.name]
        context.facts, context.sure = facts, sure

    def _counted(self, name: str, extent: int, *, repeat: bool = True) -> Counted:
        zero = ir.Constant(I64, 0)
        return Counted(self.context, name, zero, ir.Constant(I64, extent), repeat)


@dataclass
class Counted:
    """A loop in the code, for ``with``: gives its index, which runs from `begin` to before `end`, which is larger.

    Attributes
    ----------
    repeat
        Whether LLVM may repeat the body.
    """

    context: Context
    name: str
    begin: ir.Value
    end: ir.Value
    repeat: bool = True

    def __enter__(self) -> ir.Value:
        builder = self.context.builder
        before = builder.block
        self.body = builder.append_basic_block(f"for_{self.name}")
        builder.branch(self.body)
        builder.position_at_end(self.body)
        self.index = builder.phi(I64, self.name)
        self.index.add_incoming(self.begin, before)
        self.region = self.context.region()
        self.region.__enter__()
        return self.index

    def __exit__(self, *exception: object) -> None:
        """Test at the end, as there is at least one iteration."""
        self.region.__exit__(None, None, None)
        builder = self.context.builder
        following = builder.add(self.index, ir.Constant(I64, 1), flags=("nuw", "nsw"))
        self.index.add_incoming(following, builder.block)
        done = builder.append_basic_block(f"end_{self.name}")
        last = builder.icmp_unsigned("==", following, self.end)
        back = builder.cbranch(last, done, self.body)
        if not self.repeat:
            back.set_metadata("llvm.loop", self.context.unit.once_a_turn())
        builder.position_at_end(done)


def _amount(hint: int | str | None) -> int:
    """Return a hint's number, 0 for what is none."""
    return hint if isinstance(hint, int) and 0 < hint <= MAX_AHEAD else 0


def copies(stmt: Stmt) -> int:
    """Return how many nodes a statement comes to with all unrolled loops in it repeated."""
    if isinstance(stmt, For):
        factor = stmt.extent if stmt.kind is LoopKind.UNROLLED else 1
        return 1 + factor * copies(stmt.body)
    own = sum(1 for expr in expressions(stmt) for _ in walk_expr(expr))
    return 1 + own + sum(map(copies, stmt.children()))


def _computes_float32(body: Stmt) -> bool:
    return any(
        any(_is_float32(operand.dtype) for operand in (expr, *expr.children()))
        and not (isinstance(expr, Load) and expr.dtype is DType.FLOAT32)
        for stmt in walk(body)
        for root in expressions(stmt)
        for expr in walk_expr(root)
    )


def _is_float32(dtype: DType) -> bool:
    return dtype is DType.FLOAT32 or dtype.is_half


def widest_bytes(body: Stmt) -> int:
    """Return the size in bytes of the largest element that a loop's body computes with."""
    return max(_sizes(body), default=8)


def _sizes(body: Stmt) -> Iterator[int]:
    for stmt in walk(body):
        if isinstance(stmt, Store):
            yield stmt.buffer.dtype.value_bytes
            yield from _sizes_of(stmt.value)


def _sizes_of(expr: Expr) -> Iterator[int]:
    """Yield the sizes of an expression's values, those of indices aside."""
    yield expr.dtype.value_bytes
    if not isinstance(expr, Load):
        for child in expr.children():
            yield from _sizes_of(child)
