"""Real bugs, planted one at a time, to show that the simulation finds them.

Owns: replacing a piece of the real core, or of the commit order, for the length of a `with`. Nothing in the product
knows of it.

Invariant: outside of the `with` everything is as it was.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from farm_agents.state import core, devices
from farm_agents.state.messages import Clean
from farm_agents.state.model import NO_EPOCH, Use
from farm_tracker.state import jobs, run, scheduling
from farm_tracker.state.demand import demand_of

from simulation.commits import Commits, Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farm_agents.state.model import Device, State


@contextlib.contextmanager
def _patched(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def drop_epoch_check() -> Iterator[None]:
    """Let an agent serve whatever epoch it is sent, also one that it served before."""

    def blind(device: Device) -> Device:
        return replace(device, last_epoch=NO_EPOCH)

    def want(state: State, *rest: object) -> tuple[State, tuple[object, ...]]:
        unseen = replace(state, devices={key: blind(it) for key, it in state.devices.items()})
        after, commands = checked_want(unseen, *rest)
        heard = {
            key: replace(it, last_epoch=max(it.last_epoch, after.devices[key].last_epoch))
            for key, it in state.devices.items()
        }
        return replace(after, devices=heard), commands

    def demand(device: Device, *rest: object) -> object:
        return checked_demand(blind(device) if device.use is Use.IDLE else device, *rest)

    checked_want: Any = core._want
    checked_demand: Any = core._demand
    with _patched(core, "_want", want), _patched(core, "_demand", demand):
        yield


@contextlib.contextmanager
def acknowledge_before_commit() -> Iterator[None]:
    """Carry a step's commands out at once and store it afterwards."""
    add = Commits.add

    def early(self: Commits, entry: Entry) -> None:
        self._perform(entry)
        if entry.stored is not None and self._tracker.is_alive:
            add(self, Entry(entry.stored, (), None))

    with _patched(Commits, "add", early):
        yield


@contextlib.contextmanager
def skip_kill_proof() -> Iterator[None]:
    """Let an agent call a device idle as soon as it has sent the kill."""

    def end(device: Device, facts: devices.Facts) -> tuple[Device, tuple[object, ...]]:
        idle, _ = devices._rest(device, facts)
        return idle, (Clean(device.device_id, device.epoch),)

    ending = [key for key, rule in devices.TABLE.items() if rule is devices._end]
    before = dict(devices.TABLE)
    devices.TABLE.update(dict.fromkeys(ending, end))  # type: ignore[arg-type]
    try:
        yield
    finally:
        devices.TABLE.update(before)


@contextlib.contextmanager
def retry_user_faults() -> Iterator[None]:
    """Let the tracker take every failure of a run for the farm's."""
    with _patched(jobs, "is_about_the_work", lambda it: it.result is not None):
        yield


@contextlib.contextmanager
def forget_account_limits() -> Iterator[None]:
    """Let the tracker give an account devices beyond its limits."""
    with _patched(scheduling, "limit_reached", lambda draft, name: ""):
        yield


@contextlib.contextmanager
def ignore_variants() -> Iterator[None]:
    """Let a job wait for whatever device has its labels."""
    with _patched(run, "demand_of", lambda selector, _: demand_of(selector)):
        yield


PLANTS = {
    "drop the epoch check": drop_epoch_check,
    "acknowledge before commit": acknowledge_before_commit,
    "skip the kill proof": skip_kill_proof,
    "retry user faults": retry_user_faults,
    "forget account limits": forget_account_limits,
    "ignore variants": ignore_variants,
}
