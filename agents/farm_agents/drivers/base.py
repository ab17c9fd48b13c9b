"""What every driver offers.

Owns: the `Driver` protocol and its values. Does not own: any one device.

Invariant: `check` never raises for a sick device: it says BAD and why.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from farm_agents.state.model import Health
from farm_agents.worker.loaders import LoaderSpec


class TimingClass(enum.Enum):
    """How a device's time is to be read; classes are never compared."""

    NATIVE = "NATIVE"
    EMULATED = "EMULATED"
    SIMULATED = "SIMULATED"


@dataclass(frozen=True, slots=True)
class Description:
    """What a device is.

    Attributes
    ----------
    targets
        Canonical texts of the targets that it runs, best first.
    labels
        For selectors: ``kind``, ``arch`` and more; the agent adds ``device_id`` and ``host``.
    provides
        What modules may require of it, such as ``cpu-feature:avx2``.
    address_space_bytes
        Limit on its workers' virtual memory; 0 for none.
    """

    targets: tuple[str, ...]
    labels: tuple[tuple[str, str], ...]
    timing_class: TimingClass
    provides: tuple[str, ...]
    address_space_bytes: int


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found: GOOD, or BAD and the cause with what to do."""

    health: Health
    cause: str = ""


class Driver(Protocol):
    """One device."""

    def describe(self) -> Description:
        """Return what the device is, without opening it."""
        ...

    def check(self) -> Checked:
        """Probe that the device can be used now; may take seconds, runs in a thread."""
        ...

    def loader(self) -> LoaderSpec:
        """Return how a worker loads modules for it."""
        ...


def bad(cause: str) -> Checked:
    """Return the result of a failed check."""
    return Checked(Health.BAD, cause)


GOOD = Checked(Health.GOOD)
