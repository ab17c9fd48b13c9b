"""Links: the tracker's end of each agent's control stream.

Owns: the newest desired state that a stream has not sent yet. Does not own: what is desired (`state`).

Invariant: level-triggered: only the newest state is kept, so a slow agent costs no memory.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farm.core.ids import AgentId
    from farm.errors import FarmError
    from farm_tracker.state.commands import PushDesired


class Link:
    """One control stream of one process of an agent."""

    def __init__(self, agent_id: AgentId, instance_id: str) -> None:
        self.agent_id = agent_id
        self.instance_id = instance_id
        self.ended: asyncio.Future[FarmError | None] = asyncio.get_running_loop().create_future()
        self._newest: PushDesired | None = None
        self._changed = asyncio.Event()

    def put(self, desired: PushDesired) -> None:
        """Have the stream send this next, instead of anything older."""
        self._newest = desired
        self._changed.set()

    async def take(self) -> PushDesired:
        """Wait for a desired state that was not taken yet."""
        while self._newest is None:
            self._changed.clear()
            await self._changed.wait()
        newest, self._newest = self._newest, None
        return newest

    def end(self, error: FarmError | None = None) -> None:
        """End the stream, with an error if its process has to end too."""
        if not self.ended.done():
            self.ended.set_result(error)


class Links:
    """All of them, by agent and process."""

    def __init__(self) -> None:
        self._links: dict[tuple[AgentId, str], Link] = {}

    def open(self, link: Link) -> None:
        """Make `link` the one of its process; an older stream of the same process ends."""
        older = self._links.get((link.agent_id, link.instance_id))
        if older is not None:
            older.end()
        self._links[link.agent_id, link.instance_id] = link

    def close(self, link: Link) -> bool:
        """Forget a stream that ended; return whether it was still the one of its process."""
        link.end()
        if self._links.get((link.agent_id, link.instance_id)) is not link:
            return False
        del self._links[link.agent_id, link.instance_id]
        return True

    def push(self, desired: PushDesired) -> None:
        """Hand a desired state to the process that it is meant for, if it is connected."""
        link = self._links.get((desired.agent_id, desired.instance_id))
        if link is not None:
            link.put(desired)

    def fence(self, agent_id: AgentId, instance_id: str, error: FarmError) -> None:
        """End the stream of a process that was replaced."""
        link = self._links.get((agent_id, instance_id))
        if link is not None:
            link.end(error)

    def close_all(self) -> None:
        """End every stream; agents will connect again."""
        for link in self._links.values():
            link.end()
