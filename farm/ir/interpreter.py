"""The plain interpreter: the oracle that every code generator is tested against.

Owns: what a function means, element by element, as the docstring of `farm.ir.expr` says.
Does not own: what one operation gives (`farm.ir.arithmetic`), speed, targets or layouts.

Invariant: an element that was never written is never read without an error.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from farm.errors import InvalidArguments, InvalidFunction, UndefinedReference
from farm.ir.arithmetic import binary_function, caster, math_function
from farm.ir.buffer import Buffer
from farm.ir.conflicts import Watch
from farm.ir.dtype import DType
from farm.ir.expr import (
    Binary,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    Math,
    Select,
    Var,
)
from farm.ir.function import Function, Role
from farm.ir.source import Source
from farm.ir.stmt import Allocate, Block, Call, For, If, LoopKind, Stmt, Store

Env = dict[str, int]
Memory = dict[str, list[Any]]
Thunk = Callable[[Env], Any]
Action = Callable[[Env], None]


def interpret(
    function: Function,
    inputs: Sequence[np.ndarray[Any, Any]],
    library: Mapping[str, Function] | None = None,
    *,
    check_conflicts: bool = False,
) -> tuple[np.ndarray[Any, Any], ...]:
    """Run a function on arrays.

    Parameters
    ----------
    inputs
        One array for each input or inout parameter, in order, of exactly its dtype and shape. They are not changed.
    library
        Functions that this one may call, by name.
    check_conflicts
        Refuse a run in which iterations of a parallel or vectorized loop meet in an element. All loops run in order
        in any case.

    Returns
    -------
    tuple of numpy.ndarray
        One new array for each output or inout parameter, in order.

    Raises
    ------
    InvalidArguments
        An array has another dtype or shape.
    InvalidFunction
        An element is read, or returned, that was never written; or iterations meet.
    UndefinedReference
        A callee is not in the library, or calls itself, directly or through others.
    """
    given = iter(inputs)
    wanted = sum(param.role is not Role.OUTPUT for param in function.params)
    if len(inputs) != wanted:
        raise InvalidArguments(
            f"{function.name}: {len(inputs)} arrays; pass {wanted} (inputs and inouts)"
        )
    memory: Memory = {}
    for param in function.params:
        fresh = param.role is Role.OUTPUT
        memory[param.buffer.name] = (
            [None] * param.buffer.elements
            if fresh
            else _elements(function.name, param.buffer, next(given))
        )
    _run(function, memory, library or {}, (), check_conflicts)
    return tuple(
        _array(function.name, param.buffer, memory[param.buffer.name])
        for param in function.params
        if param.role is not Role.INPUT
    )


def _elements(name: str, buffer: Buffer, array: np.ndarray[Any, Any]) -> list[Any]:
    if array.dtype != buffer.dtype.numpy or array.shape != buffer.shape:
        raise InvalidArguments(
            f"{name}: argument {buffer.name} is {array.dtype}{list(array.shape)}; "
            f"pass {buffer.dtype}{list(buffer.shape)}"
        )
    flat: list[Any] = array.reshape(-1).tolist()
    return flat


def _array(name: str, buffer: Buffer, elements: list[Any]) -> np.ndarray[Any, Any]:
    if None in elements:
        raise InvalidFunction(
            f"function {name}: {buffer.name} element {elements.index(None)} (flat) is never written; "
            f"make its loops cover the buffer"
        )
    return np.array(elements, dtype=buffer.dtype.numpy).reshape(buffer.shape)


def _run(
    function: Function,
    memory: Memory,
    library: Mapping[str, Function],
    callers: tuple[str, ...],
    check_conflicts: bool,
) -> None:
    active = (*callers, function.name)
    compiler = _Compiler(function, memory, library, active, check_conflicts)
    compiler.stmt(function.body)({})


class _Compiler:
    """Turns nodes into Python closures once, so that loops do not look at node types again."""

    def __init__(
        self,
        function: Function,
        memory: Memory,
        library: Mapping[str, Function],
        active: tuple[str, ...],
        check_conflicts: bool = False,
    ) -> None:
        self.function = function
        self.memory = memory
        self.library = library
        self.active = active
        self.check_conflicts = check_conflicts
        self.watches: tuple[Watch, ...] = ()  # of the loops around
        self.outside: dict[str, int] = {}  # how many of those are around a buffer's allocation

    def stmt(self, stmt: Stmt) -> Action:
        """Return a closure that runs a statement."""
        match stmt:
            case For(var, extent, body):
                if self.check_conflicts and stmt.kind in (LoopKind.PARALLEL, LoopKind.VECTORIZED):
                    return self._watched(stmt)
                return _loop(var.name, extent, self.stmt(body))
            case Store(buffer, indices, value):
                return self._store(buffer, self._offset(buffer, indices), self.expr(value))
            case If(condition, then_body, else_body):
                otherwise = self.stmt(else_body) if else_body is not None else _nothing
                return _branch(self.expr(condition), self.stmt(then_body), otherwise)
            case Block(stmts):
                return _sequence([self.stmt(inner) for inner in stmts])
            case Allocate(buffer, body):
                self.memory[buffer.name] = [None] * buffer.elements
                self.outside[buffer.name] = len(self.watches)
                return self._allocate(buffer, self.stmt(body))
            case Source(language):
                raise InvalidFunction(
                    f"function {self.function.name}: its body is {language.value}, which nothing interprets; "
                    "run it on a device"
                )
            case Call():
                return self._call(stmt)
            case _:
                raise AssertionError(f"unknown statement {type(stmt).__name__}")

    def _watched(self, loop: For) -> Action:
        watch, outer = Watch(self.function.name, loop), self.watches
        self.watches = (*outer, watch)
        body, name = self.stmt(loop.body), loop.var.name
        self.watches = outer

        def run(env: Env) -> None:
            watch.start()
            for value in range(loop.extent):
                env[name] = watch.iteration = value
                body(env)

        return run

    def _noted(self, buffer: Buffer, offset: Thunk, *, stores: bool) -> Thunk:
        """Return the offset's closure, which tells the loops around that the element is touched."""
        name = buffer.name
        watches = self.watches[self.outside.get(name, 0) :]
        if not watches:
            return offset
        notes = [watch.store if stores else watch.load for watch in watches]

        def noted(env: Env) -> int:
            at: int = offset(env)
            for note in notes:
                note(name, at)
            return at

        return noted

    def _store(self, buffer: Buffer, offset: Thunk, value: Thunk) -> Action:
        elements = self.memory[buffer.name]
        offset = self._noted(buffer, offset, stores=True)

        def store(env: Env) -> None:
            elements[offset(env)] = value(env)

        return store

    def _allocate(self, buffer: Buffer, body: Action) -> Action:
        elements = self.memory[buffer.name]

        def allocate(env: Env) -> None:
            elements[:] = [None] * len(elements)
            body(env)

        return allocate

    def _call(self, stmt: Call) -> Action:
        callee = self.library.get(stmt.callee)
        if callee is None:
            raise UndefinedReference(
                f"function {self.function.name}: calls {stmt.callee}, which is not there; add it"
            )
        if callee.name in self.active:
            cycle = " -> ".join((*self.active, callee.name))
            raise UndefinedReference(
                f"function {callee.name}: calls itself ({cycle}); break the cycle"
            )
        outer = [self.memory[buffer.name] for buffer in stmt.buffers]
        _check_call(self.function.name, callee, stmt.buffers)

        def call(env: Env) -> None:
            memory = {p.buffer.name: e for p, e in zip(callee.params, outer, strict=True)}
            _run(callee, memory, self.library, self.active, self.check_conflicts)

        return call

    def _offset(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Thunk:
        thunks = [self.expr(index) for index in indices]
        if len(thunks) == 1:
            return thunks[0]
        if len(thunks) == 2:
            row, column, width = *thunks, buffer.shape[1]
            return lambda env: row(env) * width + column(env)
        strides = [math.prod(buffer.shape[axis + 1 :]) for axis in range(len(thunks))]
        pairs = list(zip(thunks, strides, strict=True))
        return lambda env: sum(thunk(env) * stride for thunk, stride in pairs)

    def expr(self, expr: Expr) -> Thunk:
        """Return a closure that computes an expression."""
        match expr:
            case Const(value):
                return lambda env: value
            case Var(name):
                return operator.itemgetter(name)
            case Load(buffer, indices):
                return self._load(buffer, self._offset(buffer, indices))
            case Select(condition, if_true, if_false):
                test, a, b = self.expr(condition), self.expr(if_true), self.expr(if_false)
                return lambda env: a(env) if test(env) else b(env)
            case Cast(dtype, value):
                return _apply(caster(value.dtype, dtype), self.expr(value))
            case Math(op, value):
                return _apply(math_function(op, expr.dtype), self.expr(value))
            case Compare(compare, left, right):
                return _combine(getattr(operator, compare.value), self.expr(left), self.expr(right))
            case Binary(op, left, right):
                return _combine(binary_function(op, expr.dtype), self.expr(left), self.expr(right))
            case _:
                raise AssertionError(f"unknown expression {type(expr).__name__}")

    def _load(self, buffer: Buffer, offset: Thunk) -> Thunk:
        elements, name = self.memory[buffer.name], self.function.name
        offset = self._noted(buffer, offset, stores=False)

        def load(env: Env) -> Any:  # noqa: ANN401 - bool, int or float
            value = elements[offset(env)]
            if value is None:
                raise InvalidFunction(
                    f"function {name}: reads {buffer.name} element {offset(env)} (flat) before it is written"
                )
            return value

        return load


def _check_call(caller: str, callee: Function, buffers: tuple[Buffer, ...]) -> None:
    wanted = [(param.buffer.dtype, param.buffer.shape) for param in callee.params]
    given = [(buffer.dtype, buffer.shape) for buffer in buffers]
    if wanted != given:
        raise InvalidFunction(
            f"function {caller}: call {callee.name} passes {_types(given)}; it takes {_types(wanted)}"
        )


def _types(types: list[tuple[DType, tuple[int, ...]]]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for dtype, shape in types)


def _nothing(env: Env) -> None:
    pass


def _loop(name: str, extent: int, body: Action) -> Action:
    def loop(env: Env) -> None:
        for value in range(extent):
            env[name] = value
            body(env)

    return loop


def _branch(test: Thunk, then: Action, otherwise: Action) -> Action:
    def branch(env: Env) -> None:
        (then if test(env) else otherwise)(env)

    return branch


def _sequence(actions: list[Action]) -> Action:
    def sequence(env: Env) -> None:
        for action in actions:
            action(env)

    return sequence


def _apply(function: Callable[[Any], Any], value: Thunk) -> Thunk:
    return lambda env: function(value(env))


def _combine(function: Callable[[Any, Any], Any], a: Thunk, b: Thunk) -> Thunk:
    return lambda env: function(a(env), b(env))
