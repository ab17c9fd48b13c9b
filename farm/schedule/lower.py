"""Lowering: from a schedule's state to a function.

Owns: where reductions start, where buffers are allocated and how small they get, and where conditions stand.
Does not own: what is allowed (`legality`).

Invariant: the function passes the verifier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from farm.errors import InvalidFunction, ScheduleError
from farm.ir.affine import simplified
from farm.ir.buffer import Buffer, Scope
from farm.ir.expr import Expr, Load, Var, map_children
from farm.ir.function import Function
from farm.ir.stmt import Allocate, Block, For, If, LoopKind, Stmt, Store
from farm.ir.verifier import verify
from farm.schedule.block import Leaf, substitute, update_value, variables
from farm.schedule.dependence import accesses
from farm.schedule.legality import check_kinds
from farm.schedule.reduction import start_reduction
from farm.schedule.regions import Box, box, private_to
from farm.schedule.tree import Place, State, extents_of


def lower(state: State) -> Function:
    """Return the function that a state stands for.

    Raises
    ------
    ScheduleError
        A buffer is too large for its scope, or the schedule leaves what the IR allows.
    """
    state = _start_reductions(state)
    check_kinds(state)
    homes = _homes(state)
    body = _Lowering(state, homes).stmt(state.body, (), ())
    for name, buffer in reversed(list(state.inner.items())):
        if name not in homes and _is_used(state, name):
            body = Allocate(_scoped(state, buffer), body)
    made = replace(state.function, body=body)
    try:
        verify(made)
    except InvalidFunction as error:
        raise ScheduleError(f"schedule gives no valid function: {error.message}") from error
    return made


def _start_reductions(state: State) -> State:
    """Give each reduction that starts itself a block that does it."""
    while True:
        leaf = next(
            (x for x in state.all_leaves() if x.reduction and x.reduction.init is not None), None
        )
        if leaf is None:
            return state
        state, _ = start_reduction(state, leaf.name)


def _is_used(state: State, name: str) -> bool:
    return bool(state.writers(name) or state.readers(name))


Home = tuple[str, Buffer, Box | None]  # of a loop, the buffer as allocated, its part in the whole


def _homes(state: State) -> dict[str, Home]:
    """Return for each buffer that each iteration of a loop can have for itself: that loop, innermost possible."""
    homes: dict[str, Home] = {}
    everything = accesses(state.leaves())
    for name, buffer in state.inner.items():
        own = [access for access in everything if access.buffer == name]
        if not own:
            continue
        for place in reversed(_around_all(state, [access.path for access in own])):
            loop = place.node
            assert isinstance(loop, For)
            if not private_to(state, place, name):
                continue
            fixed = [*(outer.var for outer in place.loops), loop.var]
            part = box(own, fixed, buffer.shape)
            small = replace(buffer, shape=tuple(span.extent for span in part))
            homes[name] = (loop.var.name, _scoped(state, small), part)
            break
    return homes


def _around_all(state: State, paths: Sequence[tuple[int, ...]]) -> list[Place]:
    """Return the loops around all of some places, outermost first, up to the first vectorized one."""
    found = []
    for place in state.places():
        around = all(path[: len(place.path)] == place.path for path in paths)
        if isinstance(place.node, For) and around:
            if place.node.kind is LoopKind.VECTORIZED:
                break
            found.append(place)
    return found


def _scoped(state: State, buffer: Buffer) -> Buffer:
    scope = state.scopes.get(buffer.name, Scope.GLOBAL)
    try:
        return replace(buffer, scope=scope)
    except InvalidFunction as error:
        raise ScheduleError(
            f"schedule of {state.function.name}: {error.message}; compute it at an inner loop first"
        ) from error


class _Lowering:
    """The walk that turns blocks into stores."""

    def __init__(self, state: State, homes: Mapping[str, Home]) -> None:
        self.homes = homes
        self.at_loop: dict[str, list[Buffer]] = {}
        for loop, buffer, _ in homes.values():
            self.at_loop.setdefault(loop, []).append(buffer)
        self.shared = {
            name: _scoped(state, buffer)
            for name, buffer in state.inner.items()
            if name not in homes and _is_used(state, name)
        }

    def stmt(self, stmt: Stmt, loops: tuple[For, ...], known: tuple[Expr, ...]) -> Stmt:
        """Return a statement without blocks; conditions that are known are not tested again."""
        match stmt:
            case Leaf():
                return self.leaf(stmt, loops, known)
            case Block(stmts):
                tests = _new(_common(stmts), loops, known)
                inside = tuple(self.stmt(x, loops, (*known, *tests)) for x in stmts)
                return _guarded(tests, Block(inside))
            case For(var, _, body):
                outside = _new(_shared_conditions(body), loops, known)
                allocated = self.at_loop.get(var.name, ())
                inner = self.stmt(body, (*loops, stmt), (*known, *outside))
                for buffer in reversed(allocated):
                    inner = Allocate(buffer, inner)
                return _guarded(outside, replace(stmt, body=inner))
            case _:
                raise AssertionError(f"unknown statement {type(stmt).__name__}")

    def leaf(self, leaf: Leaf, loops: tuple[For, ...], known: tuple[Expr, ...]) -> Stmt:
        """Return a block as a store."""
        extents = extents_of(loops)
        bound = leaf.bound
        indices = tuple(simplified(substitute(i, bound), extents) for i in leaf.indices)
        value = simplified(substitute(update_value(leaf), bound), extents)
        store = Store(
            self.buffer(leaf.buffer),
            self.moved(leaf.buffer.name, indices, extents),
            self.loads(value, extents),
            span=leaf.span,
        )
        tests = [x for x in (*leaf.conditions, *leaf.guards) if x not in known]
        return _guarded(tests, store)

    def buffer(self, buffer: Buffer) -> Buffer:
        """Return a buffer as it is allocated."""
        home = self.homes.get(buffer.name)
        return home[1] if home else self.shared.get(buffer.name, buffer)

    def moved(
        self, name: str, indices: tuple[Expr, ...], extents: Mapping[Var, int]
    ) -> tuple[Expr, ...]:
        """Return indices into the part of a buffer that is allocated."""
        home = self.homes.get(name)
        if home is None or home[2] is None:
            return indices
        return tuple(
            simplified(index - span.low.expr(), extents)
            for index, span in zip(indices, home[2], strict=True)
        )

    def loads(self, expr: Expr, extents: Mapping[Var, int]) -> Expr:
        """Return an expression that loads from buffers as they are allocated."""
        if isinstance(expr, Load):
            indices = tuple(self.loads(index, extents) for index in expr.indices)
            name = expr.buffer.name
            return Load(self.buffer(expr.buffer), self.moved(name, indices, extents))
        return map_children(expr, lambda child: self.loads(child, extents))


def _new(tests: Sequence[Expr], loops: Sequence[For], known: Sequence[Expr]) -> list[Expr]:
    """Return the conditions that can be tested inside some loops and are not known there."""
    scope = {loop.var for loop in loops}
    found = [x for x in tests if scope.issuperset(variables(x)) and x not in known]
    return list(dict.fromkeys(found))


def _guarded(tests: Sequence[Expr], stmt: Stmt) -> Stmt:
    if not tests:
        return stmt
    condition = tests[0]
    for test in tests[1:]:
        condition = condition & test
    return If(condition, stmt)


def _shared_conditions(stmt: Stmt) -> list[Expr]:
    """Return the conditions that every block inside has."""
    match stmt:
        case Leaf():
            return [*stmt.conditions, *stmt.guards]
        case For(_, _, body):
            return _shared_conditions(body)
        case Block(stmts):
            return _common(stmts)
        case _:
            return []


def _common(stmts: Sequence[Stmt]) -> list[Expr]:
    if not stmts:
        return []
    first, *rest = (_shared_conditions(stmt) for stmt in stmts)
    return [x for x in first if all(x in other for other in rest)]
