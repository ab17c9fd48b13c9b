"""The CPU of this host: modules are linked into the worker's own process.

Owns: what the native CPU is. Does not own: linking and timing (`farm.runtime`).

Invariant: what it provides is what this machine reports, never more.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from farm.target.host import canonical_arch
from farm_agents.drivers.base import GOOD, Checked, Description, TimingClass, bad
from farm_agents.worker.loaders import LoaderSpec

if TYPE_CHECKING:
    from farm.runtime.local import Capabilities

ADDRESS_SPACE_BYTES = 64 << 30


def host_capabilities() -> Capabilities:
    """Return what this host runs in a worker's own process, accelerators aside."""
    from farm.runtime.local import local_capabilities

    return local_capabilities(accelerators=False)


def host_arch() -> str:
    """Return this host's architecture, such as ``x86_64``."""
    return canonical_arch(platform.machine())


class CpuDriver:
    """The native CPU."""

    def __init__(self, argument: str) -> None:
        self._argument = argument
        self._here = host_capabilities()

    def describe(self) -> Description:
        """Return what this host's CPU is."""
        return Description(
            targets=self._here.targets,
            labels=(("kind", "cpu"), ("arch", host_arch())),
            timing_class=TimingClass.NATIVE,
            provides=tuple(sorted(self._here.provides)),
            address_space_bytes=ADDRESS_SPACE_BYTES,
        )

    def check(self) -> Checked:
        """Check that the argument is none, or this host's own architecture."""
        if self._argument not in ("", host_arch()):
            return bad(
                f"device cpu:{self._argument}: this host is {host_arch()}; use cpu, or "
                f"qemu:{self._argument}"
            )
        return GOOD

    def loader(self) -> LoaderSpec:
        """Return the loader of the worker's own process."""
        return LoaderSpec("native", "", self._here.targets, tuple(sorted(self._here.provides)))
