"""The rules of calls between functions: only from a CPU, to something that is there, never in a circle.

Owns: those rules over all functions of a request. Does not own: rules inside one function (`farm.ir.verifier`), or
which variant a call reaches (`farm.artifact.choice`).

Invariant: in a request that passes, each call has a callee, and whatever it may reach at run time takes its buffers.
"""

from __future__ import annotations

from collections.abc import Mapping

from farm.errors import InvalidFunction, UndefinedReference
from farm.ir import Function, Role, signature_of
from farm.ir.stmt import Call, walk
from farm.target import Target

Placed = Mapping[tuple[Target, str], Function]


def check_references(functions: Placed, host: Target) -> None:
    """Check every call of a request.

    A function for a CPU may call functions of its own target, and public functions of accelerators if it is compiled
    for the target host, since their stubs live there.

    Raises
    ------
    UndefinedReference
        An accelerator's function calls something, a callee is nowhere in reach (all callers are named), or functions
        call each other in a circle (it is shown).
    InvalidFunction
        A call's buffers do not fit the callee's parameters.
    """
    missing: dict[tuple[str, str], list[str]] = {}
    for (target, name), function in sorted(
        functions.items(), key=lambda e: (str(e[0][0]), e[0][1])
    ):
        if target.is_accelerator and function.callees:
            raise UndefinedReference(
                f"function {name} for {target}: calls {', '.join(function.callees)}; functions of an accelerator "
                f"cannot call, place it on the CPU"
            )
        for callee in function.callees:
            found = _callees(functions, host, target, callee)
            if not found:
                missing.setdefault((callee, str(target)), []).append(name)
            for other in found:
                _check_calls(function, other)
    if missing:
        parts = [
            f"{callee} (for {target}, called by {', '.join(callers)})"
            for (callee, target), callers in sorted(missing.items())
        ]
        raise UndefinedReference(
            f"build: no function {'; '.join(parts)}; add it for that target, or for an accelerator and build the "
            f"caller for the target host {host}"
        )
    _check_cycles(functions)


def _callees(functions: Placed, host: Target, target: Target, callee: str) -> list[Function]:
    """Return every function that a call may reach at run time."""
    own = functions.get((target, callee))
    found = [own] if own is not None else []
    if target.option("mtriple") == host.option("mtriple"):
        found += [
            function
            for (other, name), function in functions.items()
            if name == callee and other.is_accelerator and not function.private
        ]
    return found


def _check_calls(function: Function, callee: Function) -> None:
    inputs = {param.buffer.name for param in function.params if param.role is Role.INPUT}
    for stmt in walk(function.body):
        if not isinstance(stmt, Call) or stmt.callee != callee.name:
            continue
        given = [(buffer.dtype, buffer.shape) for buffer in stmt.buffers]
        if given != [(param.buffer.dtype, param.buffer.shape) for param in callee.params]:
            passed = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in given)
            raise InvalidFunction(
                f"function {function.name}: call {callee.name} passes ({passed}); it takes {signature_of(callee)}"
            )
        for buffer, param in zip(stmt.buffers, callee.params, strict=True):
            if buffer.name in inputs and param.role is not Role.INPUT:
                raise InvalidFunction(
                    f"function {function.name}: call {callee.name} would write input {buffer.name} "
                    f"(its {param.role.value} {param.buffer.name}); pass another buffer"
                )


def _check_cycles(functions: Placed) -> None:
    calls: dict[str, set[str]] = {}
    for function in functions.values():
        calls.setdefault(function.name, set()).update(function.callees)
    done: set[str] = set()
    for start in sorted(calls):
        _visit(start, calls, done, [])


def _visit(name: str, calls: Mapping[str, set[str]], done: set[str], path: list[str]) -> None:
    if name in path:
        circle = " -> ".join([*path[path.index(name) :], name])
        raise UndefinedReference(
            f"build: functions call each other in a circle ({circle}); break it"
        )
    if name in done:
        return
    for callee in sorted(calls.get(name, ())):
        _visit(callee, calls, done, [*path, name])
    done.add(name)
