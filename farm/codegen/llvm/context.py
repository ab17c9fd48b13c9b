"""Where code is being emitted: variables in scope, what is known of them, lanes and their mask.

Owns: bookkeeping on the way down a function, and values that are worth emitting once.

Invariant: a remembered value dominates every place where it is found again: what was remembered inside a loop or branch
is forgotten at its end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace

from llvmlite import ir

from farm.codegen.llvm.linear import LANE, Analysis, Linear
from farm.codegen.llvm.types import I1, I32, undefined, vector, zeros
from farm.codegen.llvm.unit import Unit
from farm.ir.bounds import Facts, Interval, assume
from farm.ir.expr import Expr, Var, walk

LINE_BYTES = 64
"""Of a cache, as far as code is made for it."""


@dataclass
class Context:
    """State of emission at the builder's position.

    Attributes
    ----------
    pointers
        First element of each buffer, by name.
    variables
        Values of the loop variables that are loops in the code, by name.
    bindings
        What other loop variables stand for: constants in unrolled loops, lanes in vectorized ones.
    facts
        What interval analysis knows here.
    sure
        The same without what is only known of lanes that the mask leaves on.
    lanes
        Width of the vectors around here; 1 outside vectorized loops.
    mask
        Which lanes are on, a vector of i1; None if all are.
    float_flags
        What may be done to floats, in LLVM's words.
    streamed
        Names of buffers, aligned to `LINE_BYTES`, whose stores are to go past the caches.
    ahead
        How many elements ahead of its loads what a parameter holds is fetched into the caches; 0: not at all.
    parameters
        Names of the function's parameters.
    """

    unit: Unit
    builder: ir.IRBuilder
    pointers: dict[str, ir.Value] = field(default_factory=dict)
    variables: dict[str, ir.Value] = field(default_factory=dict)
    bindings: dict[str, Linear] = field(default_factory=dict)
    facts: Facts = field(default_factory=dict)
    sure: Facts = field(default_factory=dict)
    lanes: int = 1
    mask: ir.Value | None = None
    float_flags: tuple[str, ...] = ()
    streamed: frozenset[str] = frozenset()
    ahead: int = 0
    parameters: frozenset[str] = frozenset()
    _remembered: list[dict[Hashable, ir.Value]] = field(default_factory=lambda: [{}])

    @property
    def analysis(self) -> Analysis:
        """Return what takes indices apart here."""
        return Analysis(self.bindings, self.sure)

    def recall(self, key: Hashable) -> ir.Value | None:
        """Return a remembered value that dominates this place."""
        for scope in reversed(self._remembered):
            if key in scope:
                return scope[key]
        return None

    def remember(self, key: Hashable, value: ir.Value) -> ir.Value:
        """Keep a value until the end of the innermost `region`; return it."""
        self._remembered[-1][key] = value
        return value

    @contextlib.contextmanager
    def region(self, *, dominates: bool = False) -> Iterator[None]:
        """Emit code, and restore what is known at its end.

        Parameters
        ----------
        dominates
            Whether what comes after runs only if this code ran, so that its values are there, too.
        """
        facts, sure, mask = self.facts, self.sure, self.mask
        self._remembered.append({})
        yield
        inner = self._remembered.pop()
        if dominates:
            self._remembered[-1].update(inner)
        self.facts, self.sure, self.mask = facts, sure, mask

    def varies(self, expr: Expr) -> bool:
        """Tell whether an expression differs between lanes."""
        if self.lanes == 1:
            return False
        for node in walk(expr):
            bound = self.bindings.get(node.name) if isinstance(node, Var) else None
            if bound is not None and LANE in bound.terms:
                return True
        return False

    def learn(self, var: Var, known: Interval) -> None:
        """Note what values a variable takes."""
        self.facts = {**self.facts, var: known}
        self.sure = {**self.sure, var: known}

    def suppose(self, condition: Expr, *, holds: bool, on: ir.Value | None = None) -> None:
        """Take a condition as given: by a branch, or in the lanes `on` only."""
        self.facts = assume(condition, self.facts, holds=holds)
        if on is None:
            self.sure = assume(condition, self.sure, holds=holds)
        elif self.mask is None:
            self.mask = on
        else:
            self.mask = self.builder.and_(self.mask, on)

    def fork(self, builder: ir.IRBuilder) -> Context:
        """Return a context that knows the same but emits elsewhere."""
        return replace(self, builder=builder, _remembered=[{}])

    def broadcast(self, value: ir.Value) -> ir.Value:
        """Return a vector with `value` in each lane; `value` itself if it is one, or outside vectorized loops."""
        if self.lanes == 1 or isinstance(value.type, ir.VectorType):
            return value
        kind = vector(value.type, self.lanes)
        if isinstance(value, ir.Constant):
            return ir.Constant(kind, [value] * self.lanes)
        nothing = undefined(kind)
        first = self.builder.insert_element(nothing, value, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, nothing, zeros(vector(I32, self.lanes)))

    def alike(self, *values: ir.Value) -> list[ir.Value]:
        """Return values as vectors if one of them is one."""
        if any(isinstance(value.type, ir.VectorType) for value in values):
            return [self.broadcast(value) for value in values]
        return list(values)

    def any_lane(self) -> ir.Value:
        """Return whether some lane is on, as i1."""
        if self.mask is None:
            return ir.Constant(I1, 1)
        kind = self.mask.type
        return self.builder.call(
            self.unit.intrinsic("llvm.vector.reduce.or", [kind], I1, [kind]), [self.mask]
        )

    def lane(self, value: ir.Value, index: int) -> ir.Value:
        """Return what one lane has of a value."""
        if not isinstance(value.type, ir.VectorType):
            return value
        return self.builder.extract_element(value, ir.Constant(I32, index))
