"""Accelerators that installed packages bring: their names, read from the packages' metadata.

Owns: which there are, and where their modules are. Does not own: their code (`farm.accel`), which nothing here runs.

Invariant: looking imports no module of a package; of two packages that bring one name, neither is taken.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

GROUP = "kernel_farm.accelerators"
"""The group of entry points: ``NAME = "module:attribute"``, where NAME becomes a kind of target."""

NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
RESERVED = frozenset({"cpu", "ea", "llvm", "opencl", "qemu", "wasm"})
"""Kinds of target and drivers of devices that are the farm's own."""

_VALUE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True, slots=True, order=True)
class Installed:
    """One accelerator as its package's metadata names it.

    Attributes
    ----------
    entry
        ``module:attribute``.
    package, version
        Of the distribution.
    problem
        Why it cannot be used, empty if it can.
    """

    name: str
    entry: str
    package: str
    version: str
    problem: str = ""

    def __str__(self) -> str:
        """Return ``NAME (PACKAGE VERSION)``, as messages name it."""
        return f"{self.name} ({self.package} {self.version})"


def installed() -> tuple[Installed, ...]:
    """Return every accelerator that a package brings, those that cannot be used too, sorted by name."""
    return _read(tuple(sys.path))


def find_installed(name: str) -> Installed | None:
    """Return the accelerator of a name, with its problem if it has one; None if no package brings it."""
    return next((it for it in installed() if it.name == name), None)


def usable_names() -> tuple[str, ...]:
    """Return the names that can be used, sorted."""
    return tuple(sorted(it.name for it in installed() if not it.problem))


def plug_in_folders() -> tuple[Path, ...]:
    """Return the folders of ``sys.path`` that hold the modules of usable accelerators: what their processes see."""
    sources = (module_source(it) for it in installed() if not it.problem)
    return tuple(sorted({source.parent for source in sources if source is not None}))


def module_source(found: Installed) -> Path | None:
    """Return the file or the folder of an accelerator's top module, without importing it; None: not found."""
    top = found.entry.partition(":")[0].partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin and spec.has_location else None


@functools.lru_cache(maxsize=4)
def _read(path: tuple[str, ...]) -> tuple[Installed, ...]:
    found: dict[str, list[Installed]] = {}
    seen: set[str] = set()
    for distribution in metadata.distributions(path=list(path)):
        for each in _entries(distribution, seen):
            found.setdefault(each.name, []).append(each)
    return tuple(sorted(_judged(them) for them in found.values()))


def _entries(distribution: metadata.Distribution, seen: set[str]) -> list[Installed]:
    """Return what one distribution brings; one that is hidden by an earlier one brings nothing."""
    try:
        package, version = distribution.metadata["Name"], distribution.version
        key = re.sub(r"[-_.]+", "-", package).lower()
        points = [point for point in distribution.entry_points if point.group == GROUP]
    except Exception:  # noqa: BLE001 - broken metadata of some package, which may raise anything
        return []
    if key in seen:
        return []
    seen.add(key)
    return [Installed(point.name, point.value, package, version) for point in points]


def _judged(them: list[Installed]) -> Installed:
    first = them[0]
    problem = ""
    if len(them) > 1:
        packages = " and ".join(f"{it.package} {it.version}" for it in them)
        problem = f"{packages} both bring it; uninstall one"
    elif not NAME.fullmatch(first.name):
        problem = "malformed name; use lower-case letters, digits and dashes, at most 31"
    elif first.name in RESERVED:
        problem = "the name is the farm's own; choose another"
    elif not _VALUE.fullmatch(first.entry):
        problem = f"malformed entry point ({first.entry[:80]!r}); use module:attribute"
    return Installed(first.name, first.entry, first.package, first.version, problem)
