"""The entry for builders, and the table of backends.

Owns: reading the function's bytes, the choice of a backend by the target's kind, and that backends are imported late.

Invariant: only verified functions reach a backend.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from farm.artifact import BuiltModule
from farm.artifact.module import KINDS, Kind
from farm.errors import InvalidInput, InvalidTarget
from farm.ir import Function, parse
from farm.target import Target

Compile = Callable[[Function, Target], BuiltModule]
Toolchain = Callable[[Target], str]


@dataclass(frozen=True, slots=True)
class Backend:
    """Where a target kind's code generator is; each entry is ``module:function``.

    Attributes
    ----------
    device
        ``(function, target) -> BuiltModule``: the function itself.
    host
        ``(function, target) -> BuiltModule``: the stub that launches an accelerator's function; None if this kind
        cannot be a target_host.
    toolchain
        ``(target) -> str``: name and version of the compiler.
    """

    device: str
    host: str | None
    toolchain: str


BACKENDS: dict[str, Backend] = {
    "llvm": Backend(
        device="farm.codegen.llvm.compile:compile_device",
        host="farm.codegen.llvm.compile:compile_host",
        toolchain="farm.codegen.llvm.compile:toolchain",
    ),
    "opencl": Backend(
        device="farm.codegen.opencl.compile:compile_opencl",
        host=None,
        toolchain="farm.codegen.opencl.compile:toolchain",
    ),
}

ACCELERATOR = Backend(
    device="farm.codegen.accelerator.compile:compile_accelerator",
    host=None,
    toolchain="farm.codegen.accelerator.compile:toolchain",
)
"""Of every kind that a `farm.accel.Accelerator` stands for: the project's own `ea` and those that packages bring."""


def compile_function(function_bytes: bytes, kind: Kind, target: Target) -> BuiltModule:
    """Compile one function for one target.

    Parameters
    ----------
    function_bytes
        A serialised ``farm.api.v1.Function``.
    kind
        ``device``: the function itself. ``host``: the stub that launches it on an accelerator; `target` is then the
        target_host.

    Raises
    ------
    InvalidFunction
        The bytes are no function, or it breaks a rule of the IR.
    InvalidTarget
        The compiler does not know the target, or it cannot be a target_host.
    UnsupportedFunction
        The target cannot run this function; the message says what it lacks.
    """
    if kind not in KINDS:
        raise InvalidInput(f"build item: unknown kind ({kind!r}); use {' or '.join(KINDS)}")
    function = parse(function_bytes)
    backend = _backend(target)
    entry = backend.device if kind == "device" else backend.host
    if entry is None:
        raise InvalidTarget(
            f"target_host: {target.kind} runs no host code ({target}); use an llvm target"
        )
    return cast(Compile, _load(entry))(function, target)


def toolchain_of(target: Target) -> str:
    """Return the name and version of what compiles for `target`; equal toolchains give equal bytes."""
    return cast(Toolchain, _load(_backend(target).toolchain))(target)


def _backend(target: Target) -> Backend:
    return BACKENDS.get(target.kind, ACCELERATOR)


def _load(entry: str) -> object:
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)
