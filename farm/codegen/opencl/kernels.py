"""Cutting a function into kernels: which statements run together, and which loops are work items.

Owns: that cut, the proof that work items are independent, and where inner buffers live.
Does not own: text (`source`).

Invariant: kernels run one after the other in program order; two work items of one kernel never touch one element, if
one of them writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from farm.ir.buffer import Buffer
from farm.ir.expr import Expr, Load, Var
from farm.ir.expr import walk as walk_expr
from farm.ir.function import Function
from farm.ir.stmt import Allocate, Block, For, LoopKind, Stmt, Store, expressions, walk

MAX_ITEM_DIMENSIONS = 3
MAX_ITEMS = 1 << 30
MAX_PRIVATE_BYTES = 8 << 10
"""Inner buffers of one work item; more than that is for memory of the device, and one work item."""
SCRATCH_ALIGN = 128


@dataclass(frozen=True, slots=True)
class Kernel:
    """Statements that one launch runs.

    Attributes
    ----------
    items
        Loop variables that are work items, outermost first, with their extents; empty for one work item.
    private
        Inner buffers that each work item has for itself.
    scratch
        Buffers in the device's scratch memory, with their offsets in bytes.
    """

    name: str
    items: tuple[tuple[str, int], ...]
    body: Stmt
    private: tuple[Buffer, ...]
    scratch: tuple[tuple[Buffer, int], ...]


def find_kernels(function: Function) -> tuple[list[Kernel], int]:
    """Cut a function into kernels; return them and the bytes of scratch memory that they share."""
    shared: dict[str, tuple[Buffer, int]] = {}
    used = 0

    def place(buffer: Buffer) -> None:
        nonlocal used
        align = max(SCRATCH_ALIGN, buffer.align_bytes)
        used = -(-used // align) * align
        shared[buffer.name] = (buffer, used)
        used += buffer.size_bytes

    kernels: list[Kernel] = []
    for phase in _phases(function.body, place):
        items, body = _work_items(phase)
        inner = [stmt.buffer for stmt in walk(body) if isinstance(stmt, Allocate)]
        private = tuple(inner)
        if sum(buffer.size_bytes for buffer in inner) > MAX_PRIVATE_BYTES:
            items, body, private = (), phase, ()
            for buffer in inner:
                place(buffer)
        kernels.append(Kernel(f"farm_kernel_{len(kernels)}", items, body, private, ()))
    every = tuple(shared.values())
    return [Kernel(k.name, k.items, k.body, k.private, _used(k.body, every)) for k in kernels], used


def _phases(stmt: Stmt, place: Callable[[Buffer], None]) -> Iterator[Stmt]:
    """Yield the statements that run one after the other; buffers around several of them get a place."""
    match stmt:
        case Block(stmts):
            for inner in stmts:
                yield from _phases(inner, place)
        case Allocate(buffer, body):
            place(buffer)
            yield from _phases(body, place)
        case _:
            yield stmt


def _used(body: Stmt, shared: tuple[tuple[Buffer, int], ...]) -> tuple[tuple[Buffer, int], ...]:
    names = {buffer.name for buffer in _touched(body)}
    return tuple(place for place in shared if place[0].name in names)


def _touched(body: Stmt) -> Iterator[Buffer]:
    for stmt in walk(body):
        if isinstance(stmt, Store):
            yield stmt.buffer
        for expr in expressions(stmt):
            yield from (node.buffer for node in walk_expr(expr) if isinstance(node, Load))


def _work_items(stmt: Stmt) -> tuple[tuple[tuple[str, int], ...], Stmt]:
    """Return the outer loops whose iterations are independent, and what is inside them."""
    items: list[tuple[str, int]] = []
    total = 1
    while isinstance(stmt, For) and len(items) < MAX_ITEM_DIMENSIONS:
        total *= stmt.extent
        if total > MAX_ITEMS or not (stmt.kind is LoopKind.PARALLEL or _independent(stmt)):
            break
        items.append((stmt.var.name, stmt.extent))
        stmt = stmt.body
    return tuple(items), stmt


def _independent(loop: For) -> bool:
    """Tell whether each iteration writes, and reads of what is written, its own elements only.

    Proof: there is an axis of each written buffer at which every access has the loop's variable as its index.
    """
    own = {stmt.buffer.name for stmt in walk(loop.body) if isinstance(stmt, Allocate)}
    axes: dict[str, set[int]] = {}
    for buffer, indices in _accesses(loop.body, stores=True):
        if buffer.name not in own:
            found = _axes(indices, loop.var)
            axes[buffer.name] = axes.get(buffer.name, found) & found
    for buffer, indices in _accesses(loop.body, stores=False):
        if buffer.name in axes:
            axes[buffer.name] &= _axes(indices, loop.var)
    return bool(axes) and all(axes.values())


def _accesses(body: Stmt, *, stores: bool) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    for stmt in walk(body):
        if stores:
            if isinstance(stmt, Store):
                yield stmt.buffer, stmt.indices
            continue
        for expr in expressions(stmt):
            for node in walk_expr(expr):
                if isinstance(node, Load):
                    yield node.buffer, node.indices


def _axes(indices: tuple[Expr, ...], var: Var) -> set[int]:
    return {axis for axis, index in enumerate(indices) if index == var}
