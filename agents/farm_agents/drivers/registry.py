"""The drivers by name: those of this package, and one for each accelerator.

Owns: which names there are. Does not own: the drivers.

Invariant: an unknown name is refused with the known ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from farm.accel.discovery import names
from farm.errors import InvalidInput
from farm.target.installed import find_installed
from farm_agents.drivers.accelerator import AcceleratorDriver
from farm_agents.drivers.base import Driver
from farm_agents.drivers.cpu import CpuDriver
from farm_agents.drivers.opencl import OpenclDriver
from farm_agents.drivers.qemu import QemuDriver
from farm_agents.drivers.wasm import WasmDriver

DRIVERS: dict[str, Callable[[str], Driver]] = {
    "cpu": CpuDriver,
    "ea": functools.partial(AcceleratorDriver, "ea"),
    "opencl": OpenclDriver,
    "qemu": QemuDriver,
    "wasm": WasmDriver,
}


def driver_for(name: str, argument: str) -> Driver:
    """Return the driver of a device.

    Raises
    ------
    InvalidInput
        There is no such driver, or it does not take this argument; or it is an accelerator that cannot be used.
    """
    make = DRIVERS.get(name)
    if make is not None:
        return make(argument)
    if find_installed(name) is not None:
        return AcceleratorDriver(name, argument)
    raise InvalidInput(
        f"device {name}: unknown driver; known drivers are {', '.join(sorted({*DRIVERS, *names()}))} (an accelerator's "
        "package brings its own)"
    )
