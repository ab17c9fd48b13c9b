"""The entry of accelerators' code generation: a function in, a checked module out.

Owns: which way a function takes, what refuses it, and the checks of what hooks give. Does not own: any way.

Invariant: a refusal has the reasons of every way that was tried; a module that is returned is for the target's
configuration and says so in `requires`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from farm.accel import Loaded, guard, load
from farm.accel.discovery import BUILT_IN, toolchain_of_plug_in
from farm.artifact import BuiltModule
from farm.artifact.module import MAX_SECTION_BYTES
from farm.codegen.accelerator.knobs import chosen_knobs, space_of
from farm.codegen.accelerator.library import compile_call, space_of_call
from farm.codegen.accelerator.tensorized import compile_tensorized, space_of_tensorized
from farm.codegen.symbol import symbol_of
from farm.errors import UnsupportedFunction
from farm.ir import Function, signature_of
from farm.target import Target

T = TypeVar("T")

Compiled = tuple[str, bytes]
"""The format of a program and its bytes."""

KnobSpace = dict[str, tuple[int | str, ...]]
"""The values of each knob, the default first."""


def compile_accelerator(function: Function, target: Target) -> BuiltModule:
    """Compile a function by the hooks of the target's accelerator.

    Raises
    ------
    UnsupportedFunction
        It cannot run it; the message says why, for each way that it has. It belongs on the CPU.
    InvalidTarget
        It is not installed here, or has no such configuration.
    InvalidInput
        The function carries a knob that it does not have, or a value that the knob does not have.
    PlugInFailed
        A hook raised, or gave nonsense.
    """
    loaded = load(target.kind)
    config = loaded.config(target.option("config"))
    if function.private:
        raise UnsupportedFunction(
            f"function {function.name} on {target.kind}: it is private; make it public"
        )
    form, data = compile_loaded(loaded, function, config)
    return BuiltModule(
        kind="device",
        symbol=symbol_of(function, target),
        target=str(target),
        format=form,
        format_version=loaded.accelerator.version,
        requires=target.requires,
        toolchain=toolchain(target),
        signature=signature_of(function),
        data=data,
    )


def toolchain(target: Target) -> str:
    """Return the name and version of an accelerator's code generator, without running any of it."""
    if target.kind in BUILT_IN:
        from farm.codegen.ea.compile import toolchain as own

        return own(target)
    return toolchain_of_plug_in(target.kind)


def compile_loaded(loaded: Loaded, function: Function, config: object) -> Compiled:
    """Compile a function by the first of an accelerator's ways that takes it; raises as `compile_accelerator`."""
    return _by_first_way(loaded, function, config, _COMPILE)


def space_on(loaded: Loaded, function: Function, config: object) -> KnobSpace:
    """Return the knobs that a function has by the way that `compile_loaded` takes for it; raises the same."""
    return _by_first_way(loaded, function, config, _SPACE)


def _by_first_way(
    loaded: Loaded,
    function: Function,
    config: object,
    hooks: Mapping[str, Callable[[Loaded, Function, object], T]],
) -> T:
    reasons = []
    for way in loaded.accelerator.ways:
        if way not in hooks:
            continue
        try:
            return hooks[way](loaded, function, config)
        except UnsupportedFunction as error:
            reasons.append(error.message)
    if len(reasons) == 1:
        raise UnsupportedFunction(reasons[0])
    why = "; ".join(reasons) or "it compiles regions of graphs, no single functions"
    raise UnsupportedFunction(
        f"function {function.name} on {loaded.accelerator.name}: {why}; place it on the CPU"
    )


def _compile_target(loaded: Loaded, function: Function, config: object) -> Compiled:
    """Compile by the accelerator's own code generator."""
    it, who = loaded.accelerator, loaded.who
    assert it.compile is not None
    knobs = chosen_knobs(it.name, function, _space_of_target(loaded, function, config))
    program = guard.call(who, "compile", it.compile, function, config, knobs)
    if not isinstance(program, bytes) or not 1 <= len(program) <= MAX_SECTION_BYTES:
        raise guard.nonsense(who, "compile", program, "a program as bytes")
    return it.program_format, program


def _space_of_target(loaded: Loaded, function: Function, config: object) -> KnobSpace:
    it, who = loaded.accelerator, loaded.who
    if it.supports is not None:
        said = guard.call(who, "supports", it.supports, function, config)
        if why := guard.text(who, "supports", said):
            raise UnsupportedFunction(f"function {function.name} on {it.name}: {why}")
    given = None if it.knobs is None else guard.call(who, "knobs", it.knobs, function, config)
    return space_of(who, "knobs", given)


_COMPILE = {
    "library": compile_call,
    "tensorize": compile_tensorized,
    "target": _compile_target,
}
_SPACE = {
    "library": space_of_call,
    "tensorize": space_of_tensorized,
    "target": _space_of_target,
}
