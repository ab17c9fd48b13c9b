"""Observers: what else may be read before and after a sample.

Owns: the observers and the list of those that work here. Does not own: time, which every sample has (`sampling`).

Invariant: what cannot be read has no observer, never a guess. Adding one is a class and a line in `OBSERVERS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from farm.runtime import LoadedModule

POWER_CAP = Path("/sys/class/powercap")


class Observer(Protocol):
    """Reads a counter that only grows."""

    def read(self) -> float:
        """Return the counter."""
        ...


class Cycles:
    """Cycles that an accelerator of the module has counted."""

    def __init__(self, module: LoadedModule) -> None:
        self._module = module

    def read(self) -> float:
        """Return the cycles so far."""
        return float(self._module.cycles() or 0)


class Energy:
    """Energy of the first processor package, in µJ, where its counter (RAPL) can be read."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / "energy_uj", os.O_RDONLY | os.O_CLOEXEC)
        self._range = float((folder / "max_energy_range_uj").read_text())
        self._turns, self._last = 0, 0.0

    def read(self) -> float:
        """Return the energy so far, across turns of the counter."""
        now = float(os.pread(self._fd, 64, 0))
        self._turns += now < self._last
        self._last = now
        return self._turns * self._range + now


def _cycles(module: LoadedModule) -> Observer | None:
    return Cycles(module) if module.cycles() is not None else None


def _energy(module: LoadedModule, root: Path = POWER_CAP) -> Observer | None:
    try:
        for folder in sorted(root.glob("intel-rapl:?")):
            energy = Energy(folder)
            energy.read()
            return energy
    except (OSError, ValueError):
        pass
    return None


OBSERVERS: dict[str, Callable[[LoadedModule], Observer | None]] = {
    "cycles": _cycles,
    "energy_uj": _energy,
}


def observers_of(module: LoadedModule) -> dict[str, Observer]:
    """Return the observers that work for a module that was called at least once, by name."""
    found = {name: make(module) for name, make in OBSERVERS.items()}
    return {name: observer for name, observer in found.items() if observer is not None}
