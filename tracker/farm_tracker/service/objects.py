"""Objects that come inside the reports of an agent, into the store.

Owns: taking them out of the messages of one control stream, checked. Does not own: what reports mean (`reports`).

Invariant: what a message then says was built is stored, durable, before anybody acts on it; an attempt whose object
finds no room counts as still running, and is told again with the next report.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from farm.core.digest import digest_of
from farm.core.limits import MAX_INLINE_OBJECT_BYTES
from farm.core.tasks import finish
from farm.errors import FarmError, InfrastructureError, StoreFull
from farm.rpc import digest_from_proto, error_to_proto

if TYPE_CHECKING:
    from farm.api.v1 import agent_pb2
    from farm_tracker.cas import BlobStore

log = logging.getLogger(__name__)


class Objects:
    """The objects of one control stream."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._stored: frozenset[str] = frozenset()

    async def take(self, state: agent_pb2.AgentState) -> None:
        """Store what a report carries, and take it off the message; one that was stored may come again."""
        carrying = [it for it in state.attempts if it.module.data]
        if not carrying:
            return
        new = [it for it in carrying if it.attempt_id not in self._stored]
        if new:
            await finish(asyncio.to_thread(self._store_all, new))
        for attempt in carrying:
            if attempt.WhichOneof("outcome") == "module":
                attempt.module.ClearField("data")
        self._stored = frozenset(
            it.attempt_id for it in carrying if it.WhichOneof("outcome") == "module"
        )

    def _store_all(self, attempts: list[agent_pb2.BuildAttempt]) -> None:
        for attempt in attempts:
            try:
                self._store(attempt)
            except StoreFull as error:
                log.warning("attempt %s: %s", attempt.attempt_id[:128], error.message)
                attempt.running = True
            except FarmError as error:
                attempt.error.CopyFrom(error_to_proto(error))

    def _store(self, attempt: agent_pb2.BuildAttempt) -> None:
        data = attempt.module.data
        if len(data) > MAX_INLINE_OBJECT_BYTES:
            raise InfrastructureError(
                f"agent: an object of {len(data)} bytes in a report; store it first"
            )
        if digest_of(data) != digest_from_proto(attempt.module.object):
            raise InfrastructureError(
                "agent: an object does not match its digest; transfer it again"
            )
        self._blobs.put(data)
