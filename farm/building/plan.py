"""From a request to a plan: where each function goes, and everything that can be refused before work starts.

Owns: the forms of a request, placement, names and the order of items. Does not own: calls between functions
(`references`), compiling (`farm.codegen`).

Invariant: the plan depends on what is requested, never on the order in which it is written down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from farm.artifact.abi import private_symbol
from farm.artifact.module import Kind
from farm.building.references import check_references
from farm.errors import (
    DuplicateSymbol,
    InvalidInput,
    InvalidTarget,
    PlacementConflict,
    UnsupportedFunction,
)
from farm.ir import Function, serialise, signature_of, verify
from farm.ir.stmt import Call, Stmt, map_children
from farm.target import Target, as_target

Functions = Function | Sequence[Function]
Request = (
    Mapping[str | Target, Functions]
    | Mapping[str, Functions]
    | Mapping[Target, Functions]
    | Sequence[tuple[str | Target, Functions]]
    | Functions
)


@dataclass(frozen=True, slots=True)
class BuildItem:
    """The unit of compilation: one function for one target.

    Attributes
    ----------
    kind
        ``device``: the function itself; ``host``: the stub that launches an accelerator's function.
    code
        The function's canonical bytes, what a builder is given.
    """

    kind: Kind
    target: Target
    function: Function
    code: bytes

    def __str__(self) -> str:
        """Return ``name for target``."""
        what = "host stub of " if self.kind == "host" else ""
        return f"{what}{self.function.name} for {self.target}"


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """Everything to compile, in an order that depends on nothing but the request's meaning."""

    target_host: Target
    items: tuple[BuildItem, ...]


class Tuned(Protocol):
    """Knows good schedules of functions, such as `farm.tune.Records`."""

    def tuned(self, function: Function, target: Target) -> Function:
        """Return a function with the best schedule that is known of it for a target; as it is if there is none."""
        ...


def plan(
    request: Request,
    target_host: str | Target | None = None,
    *,
    variants: bool = False,
    tuned: Tuned | None = None,
) -> BuildPlan:
    """Check a request and lay out its compilations.

    Parameters
    ----------
    request
        ``{target: functions}``, ``[(target, functions)]``, or functions that carry a target (those that carry none
        are for this machine).
    target_host
        What the calling code is compiled for; None: the one that all targets name, else this machine.
    variants
        Allow one public name on several targets; the loader picks the first that a device supports.
    tuned
        Whose schedules are applied, where it knows one.

    Raises
    ------
    InvalidInput
        There is nothing to build, or a function breaks a rule of the IR.
    InvalidTarget
        A target does not parse, or the host is an accelerator.
    PlacementConflict
        A function is listed under another target than its own, or targets name different hosts.
    DuplicateSymbol
        Two different functions have one name.
    UndefinedReference
        A call goes to nothing that can be called, or in a cycle.
    """
    placed = list(_placements(request))
    if not placed:
        raise InvalidInput("build: no functions; pass {target: [functions]}")
    if tuned is not None:
        placed = [(target, tuned.tuned(function, target)) for target, function in placed]
    host = host_of([target for target, _ in placed], target_host)
    functions: dict[tuple[Target, str], Function] = {}
    for target, function in placed:
        verify(function)
        if function.private and target.is_accelerator:
            raise UnsupportedFunction(
                f"function {function.name}: private on {target}, where nothing can call it; make it public"
            )
        key = (Target(target.kind, target.options), function.name)
        first = functions.setdefault(key, function)
        if first is not function and serialise(first) != serialise(function):
            raise DuplicateSymbol(
                f"function {function.name}: two different ones for {target}; rename one"
            )
    _check_names(functions, variants=variants)
    check_references(functions, host)
    return BuildPlan(host, tuple(_items(functions, host)))


def _placements(request: Request) -> Iterator[tuple[Target, Function]]:
    if isinstance(request, Mapping):
        pairs: Iterable[tuple[str | Target | None, Functions]] = request.items()
    elif isinstance(request, Function):
        pairs = [(None, request)]
    else:
        pairs = [part if isinstance(part, tuple) else (None, part) for part in request]
    for key, functions in pairs:
        default = None if key is None else as_target(key)
        for function in [functions] if isinstance(functions, Function) else functions:
            if not isinstance(function, Function):
                raise InvalidInput(f"build: {function!r} is no function; make one with te.function")
            yield _placement(function, default), function


def _placement(function: Function, default: Target | None) -> Target:
    if function.target is None:
        return default or Target.parse("llvm")
    own = as_target(function.target)
    if default is not None and own != default:
        raise PlacementConflict(
            f"function {function.name}: placed on {own} but listed under {default}; drop one of the two"
        )
    return default or own


def host_of(targets: Sequence[Target], explicit: str | Target | None) -> Target:
    """Return what calling code is compiled for: what is asked for, or what all targets name, or this machine."""
    if explicit is not None:
        host = as_target(explicit)
    else:
        named = {str(target.host): target.host for target in targets if target.host is not None}
        if len(named) > 1:
            raise PlacementConflict(
                f"build: targets name different hosts ({'; '.join(sorted(named))}); pass target_host"
            )
        host = next(iter(named.values()), Target.parse("llvm"))
    if host.is_accelerator:
        raise InvalidTarget(f"target host: {host} is an accelerator; use a CPU target such as llvm")
    return Target(host.kind, host.options)


def _check_names(functions: Mapping[tuple[Target, str], Function], *, variants: bool) -> None:
    first: dict[str, tuple[Target, Function]] = {}
    for (target, name), function in sorted(functions.items(), key=lambda entry: str(entry[0][0])):
        if function.private:
            continue
        other, known = first.setdefault(name, (target, function))
        if other == target:
            continue
        if not variants:
            raise DuplicateSymbol(
                f"function {name}: for {other} and for {target}; rename one, or pass variants=True"
            )
        if signature_of(known) != signature_of(function):
            raise DuplicateSymbol(
                f"function {name}: {signature_of(known)} for {other} but {signature_of(function)} for "
                f"{target}; variants have one signature"
            )


def _link(stmt: Stmt, symbols: Mapping[str, str]) -> Stmt:
    """Let calls of private helpers go to the symbols that these have."""
    if isinstance(stmt, Call):
        return replace(stmt, callee=symbols.get(stmt.callee, stmt.callee))
    return map_children(stmt, lambda child: _link(child, symbols))


def _items(functions: Mapping[tuple[Target, str], Function], host: Target) -> Iterator[BuildItem]:
    ordered = sorted(functions.items(), key=lambda entry: (entry[0][0].preference, entry[0][1]))
    private: dict[Target, dict[str, str]] = {}
    for (target, name), function in functions.items():
        if function.private:
            private.setdefault(target, {})[name] = private_symbol(name, target.id)
    hosted: set[str] = set()  # one stub calls whichever accelerator a device has
    for (target, name), function in ordered:
        symbols = private.get(target)
        linked = replace(function, body=_link(function.body, symbols)) if symbols else function
        code = serialise(linked)
        yield BuildItem("device", target, function, code)
        if target.is_accelerator and name not in hosted:
            hosted.add(name)
            yield BuildItem("host", host, function, code)
