"""Which report of an agent's process is the newest: the numbers that they carry.

Owns: the newest number of each agent's process. Does not own: what a report says (`reports`, `state.agents`).

Invariant: of one process nothing is taken in after something newer was, on whichever of its streams either came. What
reports say is levels, so that one that is left out costs nothing, while one of the past would end what has begun since.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from farm.rpc.channels import MAX_CONNECTIONS

if TYPE_CHECKING:
    from farm.api.v1 import agent_pb2

MAX_KNOWN = 2 * MAX_CONNECTIONS
"""More than agents that can be connected, so that none of them is forgotten."""


class Newest:
    """The newest number of each agent, of the process that spoke last; in memory, since a new tracker knows nothing."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def is_newer(self, state: agent_pb2.AgentState) -> bool:
        """Tell whether a report is newer than all that were noted of its process; one without a number is."""
        instance_id, number = self._known.get(state.agent_id, ("", 0))
        return state.sequence == 0 or state.instance_id != instance_id or state.sequence > number

    def note(self, agent_id: str, instance_id: str, number: int) -> None:
        """Note a report that was taken in."""
        self._known[agent_id] = (instance_id, number)
        self._known.move_to_end(agent_id)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
