"""The one queue of interactive leases and jobs, and which devices each demand matches.

Owns: two indices over the entities of a state. Does not own: who is next (`scheduling`).

Invariant: `Queue` holds what is QUEUED and nothing else, oldest first within each (demand, priority, account), so
that finding who is next looks at the head of each such group and never at the rest. `Matching` always equals what
`Demand.matches` says of the devices.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farm.core.ids import DeviceId
    from farm_tracker.state.demand import Demand
    from farm_tracker.state.model import Device, Lease
    from farm_tracker.state.run import RunJob

Entry = tuple[float, str]
"""When it joined the queue, and its key."""
Group = tuple[int, str]
"""Priority, negated, and account."""

MAX_SELECTORS = 4096


class Queue:
    """What waits, by text of the demand, then by priority and account, oldest first."""

    def __init__(self) -> None:
        self.lines: dict[str, dict[Group, list[Entry]]] = {}
        self.demands: dict[str, Demand] = {}
        self._places: dict[str, tuple[str, Group, Entry]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def put(self, entity: Lease | RunJob) -> None:
        """Let it wait, unless it does."""
        if entity.key in self._places:
            return
        demand = entity.demand
        text, group = demand.text, (-entity.priority, entity.account)
        entry = (entity.queued_at, entity.key)
        self.demands.setdefault(text, demand)
        line = self.lines.setdefault(text, {}).setdefault(group, [])
        if line and entry < line[-1]:
            bisect.insort(line, entry)
        else:  # nearly always, and all of a start: who comes last waits last
            line.append(entry)
        self._places[entity.key] = (text, group, entry)

    def drop(self, key: str) -> None:
        """Let it wait no more."""
        place = self._places.pop(key, None)
        if place is None:
            return
        text, group, entry = place
        groups = self.lines[text]
        line = groups[group]
        del line[bisect.bisect_left(line, entry)]
        if not line:
            del groups[group]
        if not groups:
            del self.lines[text]
            del self.demands[text]

    def entries(self) -> dict[str, Entry]:
        """Return everything that waits by key, for checks."""
        return {key: entry for key, (_, _, entry) in self._places.items()}


class Matching:
    """Which devices match a demand; computed once for each demand and each change of what a device is."""

    def __init__(self, devices: Mapping[DeviceId, Device]) -> None:
        self._devices = devices
        self._known: dict[str, tuple[Demand, dict[DeviceId, None]]] = {}

    def of(self, demand: Demand) -> Mapping[DeviceId, None]:
        """Return the ids of all devices that match."""
        known = self._known.get(demand.text)
        if known is None:
            if len(self._known) >= MAX_SELECTORS:
                self._known.clear()
            found = {it: None for it, device in self._devices.items() if demand.matches(device)}
            known = self._known[demand.text] = (demand, found)
        return known[1]

    def update(self, device_id: DeviceId, device: Device | None) -> None:
        """Take over a device that is new, gone, or is another than before."""
        labels = device.labels if device is not None else {}
        for demand, found in self._known.values():
            if (
                device is not None
                and demand.selector.matches(labels)
                and demand.can_run(device.description)
            ):
                found.setdefault(device_id, None)
            else:
                found.pop(device_id, None)

    def known(self) -> Mapping[str, tuple[Demand, dict[DeviceId, None]]]:
        """Return everything that was computed, for checks."""
        return self._known


def same_to_demands(one: Device, other: Device) -> bool:
    """Tell whether no demand can tell two values of one device apart."""
    return one.agent_id == other.agent_id and (
        one.description is other.description or one.description == other.description
    )
