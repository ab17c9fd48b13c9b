"""A CPU of another architecture, emulated by qemu-user on this host.

Owns: whether the tools are here. Does not own: which machines there are and the runner (`farm.runtime`).

Invariant: its time is labelled EMULATED: it says nothing of a real device.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

from farm.errors import FarmError
from farm.runtime.qemu import EMULATED, default_capabilities, find_emulator, find_machine
from farm.runtime.toolchain import cache_folder, runner_object
from farm_agents.drivers.base import GOOD, Checked, Description, TimingClass, bad
from farm_agents.worker.loaders import LoaderSpec


class QemuDriver:
    """One emulated CPU; the argument is ``ARCH`` or ``ARCH/CPU``."""

    def __init__(self, argument: str) -> None:
        self._machine = argument
        self._arch, _ = find_machine(argument)
        self._target, provides = default_capabilities(argument)
        self._provides = tuple(sorted(provides))

    def describe(self) -> Description:
        """Return what the emulated CPU is."""
        cpu = self._machine.partition("/")[2]
        labels = (("kind", "cpu"), ("arch", self._arch), ("emulator", "qemu-user"))
        return Description(
            targets=(self._target,),
            labels=(*labels, ("cpu", cpu)) if cpu else labels,
            timing_class=TimingClass.EMULATED,
            provides=self._provides,
            address_space_bytes=0,  # the emulator reserves the whole space of its guest
        )

    def check(self) -> Checked:
        """Check that the emulator and the cross linker are installed."""
        if find_emulator(self._arch) is None:
            program = EMULATED[self._arch].program
            return bad(f"{program}: not found; install the Debian package qemu-user")
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
        return LoaderSpec("qemu", self._machine, (self._target,), self._provides)
