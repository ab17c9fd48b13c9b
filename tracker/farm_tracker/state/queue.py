"""The one queue of interactive leases and jobs, and which devices each selector matches.

Owns: two indices over the entities of a state. Does not own: who is next (`scheduling`).

Invariant: `Queue` holds what is QUEUED and nothing else, oldest first within each (selector, priority, account), so
that finding who is next looks at the head of each such group and never at the rest. `Matching` always equals what
`Selector.matches` says of the devices' labels.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from farm.core.ids import DeviceId
    from farm.target import Selector
    from farm_tracker.state.model import Device, Lease
    from farm_tracker.state.run import RunJob

Entry = tuple[float, str]
"""When it joined the queue, and its key."""
Group = tuple[int, str]
"""Priority, negated, and account."""

MAX_SELECTORS = 4096


class Queue:
    """What waits, by text of the selector, then by priority and account, oldest first."""

    def __init__(self) -> None:
        self.lines: dict[str, dict[Group, list[Entry]]] = {}
        self.selectors: dict[str, Selector] = {}
        self._places: dict[str, tuple[str, Group, Entry]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def put(self, entity: Lease | RunJob) -> None:
        """Let it wait, unless it does."""
        if entity.key in self._places:
            return
        text, group = str(entity.selector), (-entity.priority, entity.account)
        entry = (entity.queued_at, entity.key)
        self.selectors.setdefault(text, entity.selector)
        line = self.lines.setdefault(text, {}).setdefault(group, [])
        bisect.insort(line, entry)
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
            del self.selectors[text]

    def entries(self) -> dict[str, Entry]:
        """Return everything that waits by key, for checks."""
        return {key: entry for key, (_, _, entry) in self._places.items()}


class Matching:
    """Which devices match a selector; computed once for each selector and each change of a device's labels."""

    def __init__(self, devices: Mapping[DeviceId, Device]) -> None:
        self._devices = devices
        self._known: dict[str, tuple[Selector, dict[DeviceId, None]]] = {}

    def of(self, selector: Selector, text: str = "") -> Mapping[DeviceId, None]:
        """Return the ids of all devices whose labels match; `text` is the selector's, if the caller has it."""
        text = text or str(selector)
        known = self._known.get(text)
        if known is None:
            if len(self._known) >= MAX_SELECTORS:
                self._known.clear()
            found = {it: None for it, d in self._devices.items() if selector.matches(d.labels)}
            known = self._known[text] = (selector, found)
        return known[1]

    def update(self, device_id: DeviceId, device: Device | None) -> None:
        """Take over a device that is new, gone, or has other labels."""
        labels = device.labels if device is not None else None
        for selector, found in self._known.values():
            if labels is not None and selector.matches(labels):
                found.setdefault(device_id, None)
            else:
                found.pop(device_id, None)

    def known(self) -> Mapping[str, tuple[Selector, dict[DeviceId, None]]]:
        """Return everything that was computed, for checks."""
        return self._known


def same_labels(one: Device, other: Device) -> bool:
    """Tell whether no selector can tell two values of one device apart."""
    return one.agent_id == other.agent_id and (
        one.description is other.description or one.description.labels == other.description.labels
    )
