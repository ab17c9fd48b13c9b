"""What this machine itself runs.

Owns: the description of this machine as a device, and loading an artifact here.
Does not own: devices that an agent's configuration adds.

Invariant: `load_local` accepts whatever was built for `Target.parse("llvm")` of this machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import llvmlite.binding as llvm

from farm.ea.config import CONFIGS
from farm.runtime.native import native_loader
from farm.target import Target
from farm.target.host import host_cpu_features
from farm.target.installed import usable_names

if TYPE_CHECKING:
    from farm.artifact.artifact import Artifact
    from farm.runtime.interface import LoadedModule


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a device runs (canonical target texts, best first) and what it provides."""

    targets: tuple[str, ...]
    provides: frozenset[str]


def local_capabilities(*, accelerators: bool = True) -> Capabilities:
    """Return what this machine runs in a process of its own.

    Parameters
    ----------
    accelerators
        Whether to count the emulated ones and those of installed packages.
    """
    native = Target.parse("llvm")
    targets = [native]
    provides = {f"arch:{native.family.partition('/')[2]}", f"cpu:{llvm.get_host_cpu_name()}"}
    provides.update(f"cpu-feature:{name}" for name in _features())
    if accelerators:
        emulated = [Target.parse(f"ea -config={name}") for name in CONFIGS]
        targets += emulated
        provides.update(requirement for target in emulated for requirement in target.requires)
        for name in usable_names():
            targets.append(Target.parse(name))
            provides.add(f"{name}-config:*")
    targets.sort(key=lambda target: target.preference)
    return Capabilities(tuple(map(str, targets)), frozenset(provides))


def load_local(artifact: Artifact, *, threads: int = 1) -> LoadedModule:
    """Load an artifact into this process; see `farm.runtime.interface.Loader.load`.

    Parameters
    ----------
    threads
        How many threads a parallel loop may use, the caller's among them: 1 to 64.
    """
    here = local_capabilities()
    return native_loader(here.targets, here.provides, threads=threads).load(artifact)


def _features() -> set[str]:
    known_to_llvm = {name for name, present in llvm.get_host_cpu_features().items() if present}
    return known_to_llvm | host_cpu_features()
