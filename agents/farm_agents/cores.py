"""Cores of this host that are measured on.

Owns: claiming one, telling which are not claimed, and keeping others off them. Does not own: devices and their locks
(`drivers.lock`).

Invariant: of all agents of one user on this host, one measures on a core at a time; a claim ends with its holder.
"""

from __future__ import annotations

import contextlib
import os

from farm.errors import DeviceBusy, InfrastructureError
from farm_agents.drivers.lock import DeviceLock, acquire


def claim_core() -> tuple[int, DeviceLock] | None:
    """Claim a core to measure on, the last ones first; None if there is only one, or all are claimed.

    The first core is never claimed: it is where systems do their own work, and where builds go meanwhile.
    """
    cores = sorted(os.sched_getaffinity(0))
    for core in reversed(cores[1:]):
        try:
            return core, acquire(_name(core))
        except (DeviceBusy, InfrastructureError, OSError):
            continue
    return None


def free_cores() -> set[int]:
    """Return the cores that nobody measures on; the first is always among them."""
    first, *others = sorted(os.sched_getaffinity(0))
    free = {first}
    for core in others:
        try:
            acquire(_name(core)).release()
        except (DeviceBusy, InfrastructureError, OSError):
            continue
        free.add(core)
    return free


def keep_off(pid: int) -> None:
    """Move a process away from cores that somebody measures on now, if there are any."""
    free = free_cores()
    if free != os.sched_getaffinity(0):
        with contextlib.suppress(OSError):  # it has ended, or may not be moved: it only disturbs
            os.sched_setaffinity(pid, free)


def _name(core: int) -> str:
    return f"core/{core}"
