"""tensorize: loops replaced by a given way to compute the same.

Owns: tensor intrinsics (what is computed, and how), their registry, and matching loops against them.
Does not own: what a code generator makes of the replacement.

Invariant: an intrinsic's two functions agree (tested on random arguments when it is registered), and what is
replaced is exactly the first of them, at some place in larger buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from farm.errors import ScheduleError
from farm.ir.affine import Affine, affine, constant
from farm.ir.buffer import Buffer
from farm.ir.expr import Expr, Load, Var, map_children
from farm.ir.function import Function, Role
from farm.ir.interpreter import interpret
from farm.ir.printer import print_expr
from farm.ir.stmt import For, Stmt
from farm.ir.stmt import map_children as map_statements
from farm.schedule.block import Iter, Leaf, substitute
from farm.schedule.lift import lift
from farm.schedule.primitive import Result, primitive, refuse
from farm.schedule.tree import Place, State, extents_of, leaves_of, loops_of, rewrite, unique

TRIALS = 8


@dataclass(frozen=True, slots=True)
class TensorIntrin:
    """A computation and another way to do it.

    Attributes
    ----------
    desc
        Loops around one store, over whole parameters: what is looked for.
    impl
        A function of the same parameters: what takes its place.
    """

    name: str
    desc: Function
    impl: Function


_INTRINS: dict[str, TensorIntrin] = {}
_EXACT: dict[str, bool] = {}


def register_intrin(intrin: TensorIntrin) -> None:
    """Make an intrinsic known to `Schedule.tensorize` by its name.

    Raises
    ------
    ScheduleError
        The name is taken, the two functions have different parameters, the description is no nest around one store,
        or the two do not give the same on random arguments.
    """
    name = intrin.name
    if name in _INTRINS and _INTRINS[name] != intrin:
        raise ScheduleError(f"intrinsic {name}: another one has that name; choose a new one")
    ours = [(p.buffer.dtype, p.buffer.shape, p.role) for p in intrin.desc.params]
    if ours != [(p.buffer.dtype, p.buffer.shape, p.role) for p in intrin.impl.params]:
        raise ScheduleError(f"intrinsic {name}: desc and impl take different parameters")
    _check_desc(name, intrin.desc)
    exact = True
    generator = np.random.default_rng(0)
    for _ in range(TRIALS):
        arrays = [
            _random(p.buffer, generator) for p in intrin.desc.params if p.role is not Role.OUTPUT
        ]
        wanted, found = interpret(intrin.desc, arrays), interpret(intrin.impl, arrays)
        for a, b in zip(wanted, found, strict=True):
            exact = exact and bool(np.array_equal(a, b))
            if not np.allclose(a, b, rtol=1e-4, atol=1e-6):
                raise ScheduleError(f"intrinsic {name}: desc and impl give different results")
    _INTRINS[name], _EXACT[name] = intrin, exact


def _check_desc(name: str, desc: Function) -> None:
    lifted = lift(desc)
    leaves, loops = leaves_of(lifted.body), loops_of(lifted.body)
    if len(leaves) != 1 or lifted.inner:
        raise ScheduleError(f"intrinsic {name}: desc is more than loops around one store")
    sizes = extents_of(loops)
    leaf = leaves[0]
    bound = leaf.bound
    for load in (*leaf.reads(), Load(leaf.buffer, leaf.indices)):
        for index, extent in zip(load.indices, load.buffer.shape, strict=True):
            form = affine(substitute(index, bound), sizes)
            if form is None or form.constant or (extent > 1 and not form.terms):
                raise ScheduleError(
                    f"intrinsic {name}: desc's {print_expr(load)} does not move over {load.buffer.name} from 0"
                )


def _random(buffer: Buffer, generator: np.random.Generator) -> np.ndarray[Any, Any]:
    if buffer.dtype.is_float:
        return generator.standard_normal(buffer.shape).astype(buffer.dtype.numpy)
    low, high = buffer.dtype.min, buffer.dtype.max
    found: np.ndarray[Any, Any] = generator.integers(
        low, high, buffer.shape, dtype=buffer.dtype.numpy, endpoint=True
    )
    return found


@primitive()
def tensorize(state: State, loop: str, tensor_intrin: str) -> Result:
    """Replace loops by an intrinsic; see `Schedule.tensorize`."""
    what, where = "tensorize", f"loop {loop} by {tensor_intrin}"
    intrin = _INTRINS.get(tensor_intrin)
    if intrin is None:
        known = ", ".join(sorted(_INTRINS)) or "none"
        raise refuse(what, where, f"no such intrinsic; registered are {known}")
    node, at = state.loop(loop)
    if not _EXACT[tensor_intrin] and not state.function.fast_math.reassociate:
        raise refuse(
            what, where, "it rounds differently; allow it with fast_math(reassociate=True)"
        )
    match = _Match(what, where, state, node, at)
    match.compare(intrin.desc)
    made, body = match.replacement(intrin.impl, intrin.desc)
    made = made.with_body(rewrite(made.body, node, [body]))
    return made, []


@dataclass(frozen=True, slots=True)
class _Position:
    """Where an intrinsic's buffer lies in a buffer of the schedule.

    Attributes
    ----------
    base
        The first element's indices, in variables of the loops around.
    axes
        For each dimension of the intrinsic's buffer, ours that it is; None for one of extent 1.
    """

    buffer: Buffer
    base: tuple[Expr, ...]
    axes: tuple[int | None, ...]


class _Match:
    """The comparison of one nest with an intrinsic's description."""

    def __init__(self, what: str, where: str, state: State, node: For, at: Place) -> None:
        self.what, self.where, self.state, self.at = what, where, state, at
        self.node = node
        self.found: dict[str, _Position] = {}
        self.extents = extents_of([*at.loops, *loops_of(node)])
        self.sizes: dict[Var, int] = {}
        self.rename: dict[Var, Expr] = {}

    def fail(self, why: str) -> ScheduleError:
        """Make the error that says what differs."""
        return refuse(self.what, self.where, why)

    def compare(self, desc: Function) -> Leaf:
        """Match the nest's one block against a description's."""
        leaves, lifted = leaves_of(self.node), lift(desc)
        if len(leaves) != 1:
            raise self.fail(f"{len(leaves)} blocks are inside; the intrinsic is one")
        leaf, pattern = leaves[0], leaves_of(lifted.body)[0]
        loops, wanted = loops_of(self.node), loops_of(lifted.body)
        ours, theirs = [x.extent for x in loops], [x.extent for x in wanted]
        if ours != theirs:
            raise self.fail(f"its loops have the extents {ours}; the intrinsic's have {theirs}")
        if leaf.guards or leaf.conditions:
            raise self.fail(f"{leaf.name} does not run in every iteration; use factors that divide")
        if any(load.buffer.name == leaf.buffer.name for load in leaf.reads()):
            raise self.fail(
                f"{leaf.name} reads {leaf.buffer.name}, which it stores; parameters of intrinsics differ"
            )
        self.sizes = extents_of(wanted)
        self.rename = {x.var: y.var for x, y in zip(loops, wanted, strict=True)}
        if (mine := _manner(leaf)) != (other := _manner(pattern)):
            raise self.fail(f"{leaf.name} {mine}, the intrinsic {other}")
        self.element(Load(leaf.buffer, leaf.at()), Load(pattern.buffer, pattern.at()))
        self.value(substitute(leaf.value, leaf.bound), substitute(pattern.value, pattern.bound))
        return leaf

    def value(self, ours: Expr, theirs: Expr) -> None:
        """Compare two values, part by part."""
        if isinstance(ours, Load) and isinstance(theirs, Load):
            self.element(ours, theirs)
            return
        children, others = ours.children(), theirs.children()
        same = type(ours) is type(theirs) and len(children) == len(others)
        same = same and (bool(children) or ours == theirs)
        if not same or any(
            getattr(ours, name, None) is not getattr(theirs, name, None) for name in ("op", "dtype")
        ):
            raise self.fail(
                f"it computes {print_expr(ours)} where the intrinsic has {print_expr(theirs)}"
            )
        for a, b in zip(children, others, strict=True):
            self.value(a, b)

    def element(self, ours: Load, theirs: Load) -> None:
        """Compare two elements, and note where the intrinsic's buffer lies in ours."""
        if ours.buffer.dtype is not theirs.buffer.dtype:
            raise self.fail(
                f"{ours.buffer.name} holds {ours.buffer.dtype}, the intrinsic's {theirs.buffer.name} "
                f"{theirs.buffer.dtype}"
            )
        base, moving = [], {}
        for axis, index in enumerate(ours.indices):
            form = affine(index, self.extents)
            if form is None:
                raise self.fail(f"{print_expr(ours)} has an index that is not affine")
            inner, outer = form.parts(self.rename)
            base.append((outer + constant(inner.constant)).expr())
            step = affine(substitute(Affine(inner.terms, 0).expr(), self.rename), self.sizes)
            if step is None or step.terms:
                moving[axis] = step
        wanted = {axis: affine(index, self.sizes) for axis, index in enumerate(theirs.indices)}
        steps = {axis: form for axis, form in wanted.items() if form is None or form.terms}
        if list(moving.values()) != list(steps.values()):
            raise self.fail(
                f"{print_expr(ours)} moves otherwise than the intrinsic's {print_expr(theirs)}"
            )
        pairs = dict(zip(steps, moving, strict=True))
        axes = tuple(pairs.get(axis) for axis in range(len(theirs.indices)))
        position = _Position(ours.buffer, tuple(base), axes)
        if self.found.setdefault(theirs.buffer.name, position) != position:
            raise self.fail(f"it uses {ours.buffer.name} at two places where the intrinsic has one")

    def replacement(self, impl: Function, desc: Function) -> tuple[State, Stmt]:
        """Return a state with an implementation's buffers, and its body on the nest's own."""
        lifted = lift(impl)
        names = self.state.names()
        values: dict[Var, Expr] = {}
        inner, scopes, renamed = dict(self.state.inner), dict(self.state.scopes), {}
        for name, buffer in lifted.inner.items():
            new = unique(name, names)
            names.add(new)
            renamed[name] = inner[new] = replace(buffer, name=new)
            if name in lifted.scopes:
                scopes[new] = lifted.scopes[name]
        places = {
            theirs.buffer.name: self.found[ours.buffer.name]
            for ours, theirs in zip(desc.params, impl.params, strict=True)
        }
        blocks = {leaf.name for leaf in self.state.all_leaves()}

        def change(stmt: Stmt) -> Stmt:
            if isinstance(stmt, For):
                var = Var(unique(stmt.var.name, names))
                names.add(var.name)
                values[stmt.var] = var
                return replace(stmt, var=var, body=change(stmt.body))
            if isinstance(stmt, Leaf):
                name = unique(stmt.name, blocks)
                blocks.add(name)
                return self.placed(replace(stmt, name=name), places, renamed, values)
            return map_statements(stmt, change)

        return replace(self.state, inner=inner, scopes=scopes), change(lifted.body)

    def placed(
        self,
        leaf: Leaf,
        places: Mapping[str, _Position],
        renamed: Mapping[str, Buffer],
        values: Mapping[Var, Expr],
    ) -> Leaf:
        """Return an implementation's block on the schedule's buffers."""
        outer = {loop.var: Var(f"v_{loop.var.name}__outer") for loop in self.at.loops}

        def element(buffer: Buffer, indices: tuple[Expr, ...]) -> Load:
            at = places.get(buffer.name)
            if at is None:
                return Load(renamed.get(buffer.name, buffer), indices)
            result = [substitute(each, outer) for each in at.base]
            for axis, index in zip(at.axes, indices, strict=True):
                if axis is not None:
                    result[axis] = result[axis] + index
            return Load(at.buffer, tuple(result))

        def change(expr: Expr) -> Expr:
            if isinstance(expr, Load):
                return element(expr.buffer, tuple(map(change, expr.indices)))
            return map_children(expr, change)

        target = element(leaf.buffer, leaf.indices)
        more = tuple(Iter(outer[loop.var], loop.extent) for loop in self.at.loops)
        return replace(
            leaf,
            iters=(*more, *leaf.iters),
            bindings=(
                *(loop.var for loop in self.at.loops),
                *(substitute(each, values) for each in leaf.bindings),
            ),
            buffer=target.buffer,
            indices=target.indices,
            value=change(leaf.value),
            conditions=tuple(substitute(each, values) for each in leaf.conditions),
        )


def _manner(leaf: Leaf) -> str:
    """Return how a block stores, in words."""
    if leaf.reduction is None:
        return "stores values"
    start = (
        ""
        if leaf.reduction.init is None
        else " and starts them (decompose_reduction splits that off)"
    )
    return f"combines values by {leaf.reduction.op.value}{start}"
