"""The emulated accelerator `ea`, with this host as the host of its functions.

Owns: what the device is. Does not own: the emulator (`farm.ea`) or launching (`farm.runtime`).

Invariant: it also runs this host's CPU functions, since an artifact's functions call each other on its host.
"""

from __future__ import annotations

from farm.target import Target
from farm_agents.drivers.base import GOOD, Checked, Description, TimingClass
from farm_agents.drivers.cpu import (
    ADDRESS_SPACE_BYTES,
    host_arch,
    host_capabilities,
)
from farm_agents.worker.loaders import LoaderSpec


class EaDriver:
    """One emulated accelerator; the argument is its configuration."""

    def __init__(self, argument: str) -> None:
        self._target = Target.parse(f"ea -config={argument or 'ea16'}")
        self._host = host_capabilities()

    def describe(self) -> Description:
        """Return what the accelerator is."""
        config = self._target.option("config") or ""
        return Description(
            targets=(str(self._target), *self._host.targets),
            labels=(
                ("kind", "ea"),
                ("arch", "ea"),
                ("config", config),
                ("host-arch", host_arch()),
            ),
            timing_class=TimingClass.SIMULATED,
            provides=self._provides(),
            address_space_bytes=ADDRESS_SPACE_BYTES,
        )

    def check(self) -> Checked:
        """Find it well: the emulator is part of the package."""
        return GOOD

    def loader(self) -> LoaderSpec:
        """Return the loader of the worker's own process, with the accelerator."""
        return LoaderSpec("native", "", (str(self._target), *self._host.targets), self._provides())

    def _provides(self) -> tuple[str, ...]:
        return tuple(sorted((*self._target.requires, *self._host.provides)))
