"""The CPU of this host: modules are linked into the worker's own process.

Owns: what the native CPU is. Does not own: linking and timing (`farm.runtime`).

Invariant: what it provides is what this machine reports, never more.
"""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

from farm.target.host import canonical_arch
from farm_agents.drivers.base import GOOD, Checked, Description, TimingClass, bad
from farm_agents.worker.loaders import LoaderSpec

if TYPE_CHECKING:
    from farm.runtime.local import Capabilities

ADDRESS_SPACE_BYTES = 64 << 30
MAX_THREADS = 64  # of the runtime's pool


def host_capabilities() -> Capabilities:
    """Return what this host runs in a worker's own process, accelerators aside."""
    from farm.runtime.local import local_capabilities

    return local_capabilities(accelerators=False)


def host_arch() -> str:
    """Return this host's architecture, such as ``x86_64``."""
    return canonical_arch(platform.machine())


class CpuDriver:
    """The native CPU; its argument is how many threads a parallel loop may use, 1 if there is none."""

    def __init__(self, argument: str) -> None:
        self._argument = argument
        self._threads = int(argument) if argument.isdecimal() and len(argument) < 4 else 1
        self._here = host_capabilities()

    def describe(self) -> Description:
        """Return what this host's CPU is."""
        return Description(
            targets=self._here.targets,
            labels=(("kind", "cpu"), ("arch", host_arch()), ("threads", str(self._threads))),
            timing_class=TimingClass.NATIVE,
            provides=tuple(sorted(self._here.provides)),
            address_space_bytes=ADDRESS_SPACE_BYTES,
        )

    def check(self) -> Checked:
        """Check that the argument is none, this host's own architecture, or no more threads than it has cores."""
        if self._argument in ("", host_arch()):
            return GOOD
        if not self._argument.isdecimal():
            return bad(
                f"device cpu:{self._argument}: this host is {host_arch()}; use cpu, cpu:THREADS or "
                f"qemu:{self._argument}"
            )
        most = min(os.cpu_count() or 1, MAX_THREADS)
        if not 1 <= int(self._argument) <= most:
            return bad(
                f"device cpu:{self._argument}: this host has {most} cores; use cpu:1 to cpu:{most}"
            )
        return GOOD

    def loader(self) -> LoaderSpec:
        """Return the loader of the worker's own process."""
        return LoaderSpec(
            "native", "", self._here.targets, tuple(sorted(self._here.provides)), self._threads
        )
