"""Lowering: from tensors to loop-level functions.

Owns: the order of computations, names of loops and buffers. Does not own: rewriting loops (schedules).

Invariant: one loop nest for each computed tensor, producers first; what is returned passes the verifier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from farm.errors import InvalidFunction
from farm.ir.buffer import Buffer
from farm.ir.expr import Binary, BinaryOp, Expr, Load, Var, map_children, walk
from farm.ir.function import Function, Param, Role
from farm.ir.stmt import Allocate, Block, Call, For, Span, Stmt, Store
from farm.ir.verifier import verify
from farm.te.tensor import Axis, Read, Reduce, Reducer, Tensor, caller_span

_COMBINE = {Reducer.SUM: BinaryOp.ADD, Reducer.MAX: BinaryOp.MAX, Reducer.MIN: BinaryOp.MIN}


def function(name: str, buffers: Sequence[Tensor], *, private: bool = False) -> Function:
    """Make a function of tensors.

    Parameters
    ----------
    buffers
        Its parameters in order: every placeholder that is used, and the computed tensors that are wanted. Computed
        tensors in between are allocated inside.

    Raises
    ------
    InvalidFunction
        A placeholder that is used is not listed, or the result breaks a rule of the IR.
    """
    lowering = _Lowering(name)
    for tensor in buffers:
        lowering.declare(tensor, "parameter")
    order: dict[Tensor, None] = {}
    for tensor in buffers:
        _producers_first(tensor, order)
    inner = [tensor for tensor in order if tensor not in lowering.buffers]
    for tensor in inner:
        if tensor.body is None:
            raise InvalidFunction(
                f"function {name}: placeholder {tensor.name} is used; list it in buffers"
            )
        lowering.declare(tensor, "inner")
    body: Stmt = _block([lowering.nest(tensor) for tensor in order if tensor.body is not None])
    for tensor in reversed(inner):
        body = Allocate(lowering.buffers[tensor], body, span=tensor.span)
    params = [
        Param(lowering.buffers[t], Role.INPUT if t.body is None else Role.OUTPUT) for t in buffers
    ]
    made = Function(name, tuple(params), body, private=private, span=caller_span())
    verify(made)
    return made


@dataclass(frozen=True, slots=True)
class CallStep:
    """One call in a `sequence`."""

    callee: str
    tensors: tuple[Tensor, ...]
    span: Span | None


def call(callee: str | Function, *tensors: Tensor) -> CallStep:
    """Call a function, by name or itself, with tensors in the order of its parameters."""
    return CallStep(callee if isinstance(callee, str) else callee.name, tensors, caller_span())


def sequence(
    name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], calls: Sequence[CallStep]
) -> Function:
    """Make a function that calls others one after the other: the glue between functions of several devices.

    Parameters
    ----------
    inputs, outputs
        Placeholders. Those that appear only in `calls` are allocated inside.

    Raises
    ------
    InvalidFunction
        The result breaks a rule of the IR.
    """
    lowering = _Lowering(name)
    for tensor in (*inputs, *outputs):
        lowering.declare(tensor, "parameter")
    inner = []
    for tensor in (tensor for step in calls for tensor in step.tensors):
        if tensor not in lowering.buffers:
            inner.append(tensor)
            lowering.declare(tensor, "inner")
    stmts = [
        Call(step.callee, tuple(lowering.buffers[t] for t in step.tensors), span=step.span)
        for step in calls
    ]
    body = _block(stmts)
    for tensor in reversed(inner):
        body = Allocate(lowering.buffers[tensor], body, span=tensor.span)
    params = [Param(lowering.buffers[tensor], Role.INPUT) for tensor in inputs]
    params += [Param(lowering.buffers[tensor], Role.OUTPUT) for tensor in outputs]
    made = Function(name, tuple(params), body, span=caller_span())
    verify(made)
    return made


def _block(stmts: Sequence[Stmt]) -> Stmt:
    return stmts[0] if len(stmts) == 1 else Block(tuple(stmts))


def _producers_first(tensor: Tensor, order: dict[Tensor, None]) -> None:
    """Add `tensor` and all it reads to `order`, producers before consumers."""
    pending: list[tuple[Tensor, Iterator[Tensor]]] = [(tensor, _reads(tensor))]
    while pending:
        current, reads = pending[-1]
        producer = next((read for read in reads if read not in order), None)
        if producer is None:
            order.setdefault(current)
            pending.pop()
        else:
            pending.append((producer, _reads(producer)))


def _reads(tensor: Tensor) -> Iterator[Tensor]:
    if tensor.body is not None:
        yield from (node.tensor for node in walk(tensor.body) if isinstance(node, Read))


@dataclass
class _Lowering:
    """The names and buffers of one function being made."""

    name: str
    names: set[str] = field(default_factory=set)
    buffers: dict[Tensor, Buffer] = field(default_factory=dict)
    vars: dict[Axis, Var] = field(default_factory=dict)

    def declare(self, tensor: Tensor, what: str) -> None:
        """Give a tensor its buffer; inner ones are renamed if their name is taken."""
        if what == "parameter" and (tensor in self.buffers or tensor.name in self.names):
            raise InvalidFunction(
                f"function {self.name}: {tensor.name} is listed twice; rename or drop one"
            )
        self.buffers[tensor] = tensor.buffer(self._unique(tensor.name))

    def _unique(self, name: str) -> str:
        chosen, number = name, 0
        while chosen in self.names:
            number += 1
            chosen = f"{name}_{number}"
        self.names.add(chosen)
        return chosen

    def nest(self, tensor: Tensor) -> Stmt:
        """Return the loops that compute a tensor."""
        buffer, body = self.buffers[tensor], tensor.body
        self.vars.clear()  # loops of the tensors before are closed
        loops = self._open(tensor.axes)
        indices = tuple(var for var, _ in loops)
        if isinstance(body, Reduce):
            inner = self._open(body.axes)
            update = Binary(_COMBINE[body.reducer], Load(buffer, indices), self.expr(body.value))
            first = Store(buffer, indices, body.identity(), span=tensor.span)
            again = _close(inner, Store(buffer, indices, update, span=tensor.span), tensor.span)
            return _close(loops, Block((first, again), span=tensor.span), tensor.span)
        if body is None:
            raise AssertionError("a placeholder has no loops")
        return _close(loops, Store(buffer, indices, self.expr(body), span=tensor.span), tensor.span)

    def _open(self, axes: tuple[Axis, ...]) -> list[tuple[Var, int]]:
        loops = []
        for axis in axes:
            self.vars[axis] = Var(self._unique(axis.name))
            loops.append((self.vars[axis], axis.extent))
        return loops

    def expr(self, expr: Expr) -> Expr:
        """Return an expression with reads and axes replaced by loads and loop variables."""
        match expr:
            case Read(tensor, indices):
                return Load(self.buffers[tensor], tuple(map(self.expr, indices)))
            case Axis(name):
                if expr not in self.vars:
                    raise InvalidFunction(
                        f"function {self.name}: axis {name} is used outside a reduction over it"
                    )
                return self.vars[expr]
            case _:
                return map_children(expr, self.expr)


def _close(loops: list[tuple[Var, int]], body: Stmt, span: Span | None) -> Stmt:
    for var, extent in reversed(loops):
        body = For(var, extent, body, span=span)
    return body
