"""Finding an accelerator by its name and loading it into this process.

Owns: the project's own accelerators by name, loading entry points, what a package's code is called in toolchains.
Does not own: reading metadata (`farm.target.installed`).

Invariant: only what was asked for is imported; what is returned is an `Accelerator` of the name that was asked for.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from dataclasses import dataclass
from pathlib import Path

from farm.accel import guard
from farm.accel.accelerator import Accelerator
from farm.errors import InvalidTarget
from farm.target.installed import (
    Installed,
    find_installed,
    module_source,
    usable_names,
)

BUILT_IN = {"ea": "farm.codegen.ea.accelerator:EA"}
"""The project's own, in the form of entry points."""

MAX_SOURCE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Loaded:
    """An accelerator and what messages call it: ``NAME (PACKAGE VERSION)``."""

    accelerator: Accelerator
    who: str

    def config(self, name: str | None) -> object:
        """Return the value of a configuration.

        Raises
        ------
        InvalidTarget
            There is none of this name; the message lists those that there are.
        """
        configs = self.accelerator.configs
        if name is None or name not in configs:
            raise InvalidTarget(
                f"target {self.accelerator.name}: unknown configuration ({name}); known are "
                f"{', '.join(sorted(configs))} of {self.who}"
            )
        return configs[name]


def names() -> tuple[str, ...]:
    """Return the names of all accelerators that can be asked for, sorted."""
    return tuple(sorted((*BUILT_IN, *usable_names())))


def known(name: str) -> Installed:
    """Return where an accelerator is.

    Raises
    ------
    InvalidTarget
        There is none of this name, or it cannot be used.
    """
    if name in BUILT_IN:
        from farm import __version__

        return Installed(name, BUILT_IN[name], "kernel-farm", __version__)
    found = find_installed(name)
    if found is None:
        raise InvalidTarget(
            f"accelerator {name[:80]}: not installed here; there are {', '.join(names())}"
        )
    if found.problem:
        raise InvalidTarget(f"accelerator {found}: {found.problem}")
    return found


@functools.lru_cache(maxsize=16)
def load(name: str) -> Loaded:
    """Import an accelerator's module and return its object, the same each time.

    Raises
    ------
    InvalidTarget
        It is not installed, or cannot be used.
    PlugInFailed
        Its module raised, or its entry point is no accelerator of this name.
    """
    found = known(name)
    module_name, _, attribute = found.entry.partition(":")
    value: object = guard.call(
        found, f"import of {module_name}", importlib.import_module, module_name
    )
    for part in attribute.split("."):
        value = guard.call(found, found.entry, getattr, value, part)
    if not isinstance(value, Accelerator):
        raise guard.nonsense(found, found.entry, value, "a farm.accel.Accelerator")
    if value.name != name:
        raise guard.nonsense(
            found, f"{found.entry}.name", value.name, f"the name of its entry point, {name}"
        )
    return Loaded(value, str(found))


def toolchain_of_plug_in(name: str) -> str:
    """Return what a plug-in's code generator is called: its package, version, and a mark of its source.

    While a package is being written its version stays and its code changes; builds must not be mistaken for those of
    yesterday's code. Nothing is imported. Raises as `known`.
    """
    from farm import __version__

    found = known(name)
    return f"kernel-farm {__version__} {found.name} of {found.package} {found.version} source {_mark(found)}"


def _mark(found: Installed) -> str:
    digest = hashlib.sha256()
    left = MAX_SOURCE_BYTES
    for name, path in _sources(module_source(found)):
        size = path.stat().st_size
        left -= size
        digest.update(f"{name} {size}\n".encode() + (path.read_bytes() if left >= 0 else b""))
    return digest.hexdigest()[:12]


def _sources(source: Path | None) -> list[tuple[str, Path]]:
    """Return the files that a plug-in's code is, or may read: C that it hands on, tables, libraries."""
    if source is None or source.is_file():
        return [] if source is None else [(source.name, source)]
    files = [
        path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    return sorted((str(path.relative_to(source)), path) for path in files)
