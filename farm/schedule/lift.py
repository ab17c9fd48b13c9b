"""Lifting: from a function to a state that a schedule can change.

Owns: recognising reductions, and refusing functions that have no loops and blocks in this sense.
Does not own: the way back (`lower`).

Invariant: lowering a lifted function gives one of the same meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from farm.errors import ScheduleError
from farm.ir.buffer import Buffer, Scope
from farm.ir.expr import Binary, BinaryOp, Expr, Load, Var, const, map_children, walk
from farm.ir.function import Function
from farm.ir.source import Source
from farm.ir.stmt import Allocate, Block, Call, For, If, LoopKind, Stmt, Store
from farm.schedule.block import Iter, Leaf, Reduction, substitute, variables
from farm.schedule.tree import State, tidy, unique

COMBINERS = (BinaryOp.ADD, BinaryOp.MUL, BinaryOp.MAX, BinaryOp.MIN)


def lift(function: Function) -> State:
    """Return the state that stands for a function.

    Raises
    ------
    ScheduleError
        It calls another function, or a condition in it depends on an element of a buffer.
    """
    lifting = _Lifting(function)
    body = lifting.stmt(function.body, (), ())
    scopes = {name: b.scope for name, b in lifting.inner.items() if b.scope is not Scope.GLOBAL}
    inner = {name: replace(b, scope=Scope.GLOBAL) for name, b in lifting.inner.items()}
    return State(function, tidy(body), inner, scopes)


@dataclass
class _Lifting:
    function: Function
    inner: dict[str, Buffer] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def refuse(self, why: str) -> ScheduleError:
        return ScheduleError(f"schedule of {self.function.name}: {why}")

    def stmt(self, stmt: Stmt, loops: tuple[For, ...], conditions: tuple[Expr, ...]) -> Stmt:
        """Return a statement with its stores made blocks."""
        match stmt:
            case Store():
                return _as_update(self.leaf(stmt, loops, conditions))
            case For(_, _, body):
                return replace(stmt, body=self.stmt(body, (*loops, stmt), conditions))
            case Block(stmts):
                return self.sequence(stmts, loops, conditions)
            case Allocate(buffer, body):
                self.inner[buffer.name] = buffer
                return self.stmt(body, loops, conditions)
            case If(condition, then_body, else_body):
                if any(isinstance(node, Load) for node in walk(condition)):
                    raise self.refuse("a condition loads an element; use te.where in the value")
                parts = [self.stmt(then_body, loops, (*conditions, condition))]
                if else_body is not None:
                    negated = condition ^ const(True, "bool")
                    parts.append(self.stmt(else_body, loops, (*conditions, negated)))
                return Block(tuple(parts))
            case Source(language):
                raise self.refuse(f"its body is {language.value}; write it as a tensor expression")
            case Call(callee):
                raise self.refuse(f"it calls {callee}; schedule the function that is called")
            case _:
                raise self.refuse(f"its body is a {type(stmt).__name__.lower()}, no loops")

    def sequence(
        self, stmts: tuple[Stmt, ...], loops: tuple[For, ...], conditions: tuple[Expr, ...]
    ) -> Stmt:
        """Return statements in order; an initial store and the update loops after it become one block."""
        parts: list[Stmt] = []
        rest = list(stmts)
        while rest:
            first = rest.pop(0)
            found = _reduction(first, rest[0]) if rest else None
            if found is not None:
                rest.pop(0)
                parts.append(self.reduction(*found, loops, conditions))
            else:
                parts.append(self.stmt(first, loops, conditions))
        return Block(tuple(parts))

    def leaf(
        self, store: Store, loops: tuple[For, ...], conditions: tuple[Expr, ...], reduce: int = 0
    ) -> Leaf:
        """Return a store as a block, with one iterator for each loop; the last `reduce` are reduced over."""
        buffer = _unscoped(store.buffer)
        name = unique(buffer.name, self.names)
        self.names.add(name)
        new = {loop.var: Var(f"v_{loop.var.name}") for loop in loops}
        iters = [
            Iter(new[loop.var], loop.extent, number >= len(loops) - reduce)
            for number, loop in enumerate(loops)
        ]
        indices = tuple(_unscope(substitute(index, new)) for index in store.indices)
        value = _unscope(substitute(store.value, new))
        return Leaf(
            name,
            tuple(iters),
            tuple(loop.var for loop in loops),
            buffer,
            indices,
            value,
            conditions=conditions,
            span=store.span,
        )

    def reduction(
        self,
        init: Expr,
        update: Store,
        inner: tuple[For, ...],
        loops: tuple[For, ...],
        conditions: tuple[Expr, ...],
    ) -> Stmt:
        """Return the loops of a reduction around its one block."""
        leaf = self.leaf(update, (*loops, *inner), conditions, reduce=len(inner))
        assert isinstance(leaf.value, Binary)
        start = substitute(init, {loop.var: Var(f"v_{loop.var.name}") for loop in loops})
        body: Stmt = replace(leaf, value=leaf.value.b, reduction=Reduction(leaf.value.op, start))
        for loop in reversed(inner):
            body = replace(loop, body=body)
        return body


def _as_update(leaf: Leaf) -> Leaf:
    """Return a block that combines into its own element as a reduction without an initial value."""
    match leaf.value:
        case Binary(op, Load(source, from_), value) if (
            op in COMBINERS
            and source == leaf.buffer
            and from_ == leaf.indices
            and all(buffer.name != source.name for buffer in _loaded(value))
        ):
            kept = {var for index in leaf.indices for var in variables(index)}
            iters = tuple(replace(each, reduce=each.var not in kept) for each in leaf.iters)
            return replace(leaf, iters=iters, value=value, reduction=Reduction(op, None))
    return leaf


def _unscoped(buffer: Buffer) -> Buffer:
    return buffer if buffer.scope is Scope.GLOBAL else replace(buffer, scope=Scope.GLOBAL)


def _unscope(expr: Expr) -> Expr:
    """Return an expression whose buffers are in no scope: scopes are kept apart until lowering."""
    if isinstance(expr, Load):
        return Load(_unscoped(expr.buffer), tuple(map(_unscope, expr.indices)))
    return map_children(expr, _unscope)


def _reduction(first: Stmt, rest: Stmt) -> tuple[Expr, Store, tuple[For, ...]] | None:
    """Return initial value, update and loops if `first` starts the elements that `rest` combines into."""
    loops: list[For] = []
    while isinstance(rest, For):
        loops.append(rest)
        rest = rest.body
    match first, rest:
        case (
            Store(buffer, indices, init),
            Store(target, again, Binary(op, Load(source, from_), value)),
        ) if (
            loops
            and buffer == target == source
            and indices == again == from_
            and op in COMBINERS
            and all(loop.kind in (LoopKind.SERIAL, LoopKind.UNROLLED) for loop in loops)
        ):
            own = {loop.var for loop in loops}
            in_indices = {var for index in indices for var in variables(index)}
            loads = [node for part in (init, *indices) for node in walk(part)]
            if (
                not own & in_indices
                and not any(isinstance(node, Load) for node in loads)
                and all(b.name != buffer.name for b in _loaded(value))
            ):
                return init, rest, tuple(loops)
    return None


def _loaded(expr: Expr) -> Iterator[Buffer]:
    return (node.buffer for node in walk(expr) if isinstance(node, Load))
