"""What a request shows of the farm: devices by labels, jobs and leases by account.

Owns: whether a lease or a line of the diary is shown. Does not own: how a token narrows a request (`identity.narrow`).

Invariant: with a selector, nothing about a device that does not match is shown, be it gone; with an account, nothing
about a job or a lease of another. What is not understood is hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from farm.core.ids import AgentId, DeviceId

if TYPE_CHECKING:
    from farm.target import Selector
    from farm_tracker.state.model import Lease
    from farm_tracker.state.notes import Note
    from farm_tracker.state.state import State


@dataclass(frozen=True, slots=True)
class Sight:
    """One request's view; an empty selector or account limits nothing."""

    state: State
    selector: Selector
    account: str

    def shows_lease(self, lease: Lease) -> bool:
        """Tell whether a live lease is shown."""
        return self._shows_account(lease.account) and self._shows_device(lease.device_id or "")

    def shows_note(self, note: Note) -> bool:
        """Tell whether a line of the diary is shown."""
        match note.kind.partition(".")[0]:
            case "device":
                return self._shows_device(note.subject)
            case "lease":
                return self._shows_account(note.account) and self._shows_device(note.subject)
            case "agent":
                return self._shows_agent(note.subject)
            case "job" | "attempt" | "account":
                return self._shows_account(note.account)
            case _:
                return not (self.account or self.selector.terms)

    def _shows_account(self, name: str) -> bool:
        return self.account in ("", name)

    def _shows_device(self, device_id: str) -> bool:
        if not self.selector.terms:
            return True
        device = self.state.devices.get(DeviceId(device_id))
        return device is not None and self.selector.matches(device.labels)

    def _shows_agent(self, agent_id: str) -> bool:
        if not self.selector.terms:
            return True
        agent = self.state.agents.get(AgentId(agent_id))
        return agent is not None and any(map(self._shows_device, agent.device_ids))
