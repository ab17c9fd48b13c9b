"""A CPU of another architecture, emulated by qemu-user on this host.

Owns: which architectures, and whether the tools are here. Does not own: the runner (`farm.runtime`).

Invariant: its time is labelled EMULATED: it says nothing of a real device.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path

from farm.errors import FarmError, InvalidInput
from farm.runtime.qemu import EMULATED
from farm.runtime.toolchain import cache_folder, runner_object
from farm.target import Target
from farm_agents.drivers.base import GOOD, Checked, Description, TimingClass, bad
from farm_agents.worker.loaders import LoaderSpec


class QemuDriver:
    """One emulated CPU; the argument is its architecture."""

    def __init__(self, argument: str) -> None:
        if argument not in EMULATED:
            raise InvalidInput(
                f"device qemu: unknown architecture ({argument!r}); use qemu:ARCH with one of "
                f"{', '.join(sorted(EMULATED))}"
            )
        self._arch = argument

    def describe(self) -> Description:
        """Return what the emulated CPU is."""
        return Description(
            targets=(self._target(),),
            labels=(("kind", "cpu"), ("arch", self._arch), ("emulator", "qemu-user")),
            timing_class=TimingClass.EMULATED,
            provides=self._provides(),
            address_space_bytes=0,  # the emulator reserves the whole space of its guest
        )

    def check(self) -> Checked:
        """Check that the emulator and the cross linker are installed."""
        names = (f"qemu-{self._arch}", f"qemu-{self._arch}-static")
        if not any(map(shutil.which, names)):
            return bad(f"{names[0]}: not found; install the Debian package qemu-user")
        if importlib.util.find_spec("ziglang") is None:
            return bad("ziglang: not installed; install kernel-farm[cross]")
        try:  # compiled here, so that the first session finds it in the cache
            with tempfile.TemporaryDirectory(prefix="kernel-farm-") as work:
                runner_object(self._arch, Path(work), cache_folder())
        except FarmError as error:
            return bad(error.message)
        return GOOD

    def loader(self) -> LoaderSpec:
        """Return the loader that runs modules under the emulator."""
        return LoaderSpec("qemu", self._arch, (self._target(),), self._provides())

    def _target(self) -> str:
        return str(Target.parse(f"llvm -mtriple={self._arch}-linux-gnu"))

    def _provides(self) -> tuple[str, ...]:
        return (f"arch:{self._arch}", *EMULATED[self._arch].provides)
