"""The drivers by name.

Owns: which names there are. Does not own: the drivers.

Invariant: an unknown name is refused with the known ones.
"""

from __future__ import annotations

from collections.abc import Callable

from farm.errors import InvalidInput
from farm_agents.drivers.base import Driver
from farm_agents.drivers.cpu import CpuDriver
from farm_agents.drivers.ea import EaDriver
from farm_agents.drivers.opencl import OpenclDriver
from farm_agents.drivers.qemu import QemuDriver
from farm_agents.drivers.wasm import WasmDriver

DRIVERS: dict[str, Callable[[str], Driver]] = {
    "cpu": CpuDriver,
    "ea": EaDriver,
    "opencl": OpenclDriver,
    "qemu": QemuDriver,
    "wasm": WasmDriver,
}


def driver_for(name: str, argument: str) -> Driver:
    """Return the driver of a device.

    Raises
    ------
    InvalidInput
        There is no such driver, or it does not take this argument.
    """
    make = DRIVERS.get(name)
    if make is None:
        raise InvalidInput(
            f"device {name}: unknown driver; known drivers are {', '.join(sorted(DRIVERS))}"
        )
    return make(argument)
