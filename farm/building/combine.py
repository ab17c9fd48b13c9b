"""Host code that a build has put off, compiled when the builds that belong together are known.

Owns: which functions need it, and that each has it once. Does not own: compiling (`local`), joining sections
(`farm.artifact`).

Invariant: the artifact is that of one build for the same host that puts nothing off, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import reduce

from farm.artifact import Artifact, assemble, merge
from farm.building.local import compile_items
from farm.building.plan import BuildItem, host_of
from farm.building.report import Progress
from farm.errors import DuplicateSymbol, HostMismatch, InvalidInput
from farm.ir import Function, serialise, signature_of, verify
from farm.target import Target


def combine(
    host_functions: Iterable[Function],
    device_modules: Artifact | Iterable[Artifact],
    target_host: str | Target | None = None,
    *,
    progress: Progress | None = None,
) -> Artifact:
    """Compile what calls accelerators, and put it together with what was built for them before.

    Parameters
    ----------
    host_functions, device_modules
        What `build` returned with ``delay_host_codegen=True``, of one build or of several.
    target_host
        What the calling code is compiled for; None: the one that the artifacts name.
    progress
        Called with each change of an item.

    Raises
    ------
    InvalidInput
        A function is for no accelerator here, or one of an accelerator is missing.
    DuplicateSymbol
        Two functions, or two sections, of one name differ.
    HostMismatch
        The artifacts name different hosts, and `target_host` is not given, or one has host code for another.
    FarmError
        As `build`.

    Examples
    --------
    >>> import farm
    >>> from farm import te
    >>> x = te.placeholder((8,), "int32", name="x")
    >>> y = te.compute((8,), lambda i: x[i] * 2, name="y")
    >>> f = te.function("double", [x, y])
    >>> functions, modules = farm.build({"ea": f}, delay_host_codegen=True)
    >>> [section.kind for section in modules.sections]
    ['device']
    >>> arm = farm.combine(functions, modules, "llvm -mtriple=aarch64-linux-gnu")
    >>> sorted(section.kind for section in arm.sections)
    ['device', 'host']
    """
    parts = [device_modules] if isinstance(device_modules, Artifact) else list(device_modules)
    if not parts:
        raise InvalidInput("combine: no device modules; pass what build returned")
    host = _host(parts, target_host)
    device = reduce(merge, (_called_by(part, host) for part in parts))
    functions = _by_name(host_functions)
    _check_match(device, functions)
    items = [BuildItem("host", host, it, serialise(it)) for _, it in sorted(functions.items())]
    stubs = assemble(host, compile_items(items, progress=progress)) if items else device
    return merge(device, stubs)


def _host(parts: Iterable[Artifact], explicit: str | Target | None) -> Target:
    named = sorted({part.target_host for part in parts})
    if explicit is None and len(named) > 1:
        raise HostMismatch(
            f"combine: the artifacts have different hosts ({'; '.join(named)}); pass target_host"
        )
    return host_of([], named[0] if explicit is None else explicit)


def _called_by(part: Artifact, host: Target) -> Artifact:
    """Return an artifact for a host; it may hold host code for that one only."""
    if part.target_host == str(host):
        return part
    for section in part.sections:
        if section.kind == "host":
            raise HostMismatch(
                f"combine: {section.symbol} has host code for ({section.target}) already, not for {host}; build it "
                "with delay_host_codegen=True",
                has=section.target,
                needs=str(host),
            )
    return replace(part, target_host=str(host))


def _by_name(host_functions: Iterable[Function]) -> dict[str, Function]:
    found: dict[str, Function] = {}
    for function in host_functions:
        if not isinstance(function, Function):
            raise InvalidInput(f"combine: {function!r} is no function; pass what build returned")
        verify(function)
        first = found.setdefault(function.name, function)
        if signature_of(first) != signature_of(function):
            raise DuplicateSymbol(
                f"combine: two functions {function.name}, {signature_of(first)} and {signature_of(function)}; rename "
                "one"
            )
    return found


def _check_match(device: Artifact, functions: Mapping[str, Function]) -> None:
    """Refuse unless there is a host function for each section of an accelerator that has no host code, and no other."""
    hosted = {section.symbol for section in device.sections if section.kind == "host"}
    needed = {
        section.symbol: section.target
        for section in device.sections
        if section.kind == "device" and Target.parse(section.target, foreign=True).is_accelerator
    }
    for name, target in needed.items():
        if name not in functions and name not in hosted:
            raise InvalidInput(
                f"combine: no host function {name}, which is built for {target}; pass all that build returned"
            )
    for name, function in functions.items():
        if name not in needed:
            raise InvalidInput(
                f"combine: host function {name} is in no device module; pass all that build returned"
            )
        if signature_of(function) != device.symbols[name]:
            raise DuplicateSymbol(
                f"combine: {name} is {signature_of(function)} for the host but {device.symbols[name]} for "
                f"{needed[name]}; pass what one build returned"
            )
