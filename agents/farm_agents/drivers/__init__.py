"""Device drivers: what a device is, whether it is well, and which loader its worker opens.

Owns: the drivers by name. Does not own: running anything on a device (the worker) or leases.

Invariant: a driver's name is unique; describing a device opens nothing.
"""

from farm_agents.drivers.base import Checked, Description, Driver, TimingClass
from farm_agents.drivers.registry import DRIVERS, driver_for

__all__ = ["DRIVERS", "Checked", "Description", "Driver", "TimingClass", "driver_for"]
