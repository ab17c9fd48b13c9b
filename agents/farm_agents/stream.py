"""The agent's control stream: states go out, desired states come in, whatever happens to the tracker.

Owns: dialling, heartbeats both ways, backing off. Does not own: what is said and what it means (`farm_agents.agent`).

Invariant: the stream is dialled again for ever; only a newer process of the same agent ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import grpc

from farm.api.v1 import agent_pb2, agent_pb2_grpc
from farm.errors import FarmError, Fenced, NotAllowed, TrackerUnreachable
from farm.rpc import error_from_rpc
from farm_agents.backoff import Backoff
from farm_agents.connection import Connection
from farm_agents.credential import Credential

HEARTBEAT_S = 1.0
"""How often the state is sent until the tracker says otherwise."""
HEARTBEAT_MARGIN = 0.8
TURN_CEILING_S = 5.0
"""How often at least is asked whether the process that has this agent's id is gone."""
SILENCE_S = 15.0
"""How long a tracker that is sent heartbeats may say nothing before the agent dials again."""

Call = grpc.aio.StreamStreamCall[agent_pb2.AgentState, agent_pb2.DesiredState]
Message = tuple[agent_pb2.AgentState, Callable[[], None]]
"""A state, and what to do when it has left."""

_LOG = logging.getLogger("farm_agents")


@dataclass(slots=True)
class ControlStream:
    """The stream of one agent.

    Attributes
    ----------
    state
        Makes the message of what the agent knows now.
    take
        Takes what the tracker wants.
    before
        Waited for before each dialling.
    """

    tracker: str
    stub: agent_pb2_grpc.AgentServiceAsyncStub
    credential: Credential
    connection: Connection
    state: Callable[[], Message]
    take: Callable[[agent_pb2.DesiredState], None]
    before: Callable[[], Awaitable[None]]
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _heartbeat_s: float = HEARTBEAT_S

    def send_soon(self) -> None:
        """Send the state now, since it has changed."""
        self._changed.set()

    async def keep_up(self) -> None:
        """Keep the stream up until cancelled.

        Raises
        ------
        Fenced
            A newer process has connected under the same agent id.
        """
        backoff = Backoff()
        while True:
            await self.before()
            try:
                await self._synchronise(backoff)
            except Fenced:
                raise
            except NotAllowed as error:
                _LOG.info("tracker %s: %s", self.tracker, error.message)
                if await self.credential.enrol():
                    continue
            except FarmError as error:
                _LOG.info("tracker %s: %s", self.tracker, error.message)
            await asyncio.sleep(backoff.next_s())

    async def wait_for_turn(self) -> None:
        """Wait until no other process speaks for this agent, without replacing one that does."""
        backoff = Backoff(ceiling_s=TURN_CEILING_S)
        while True:
            try:
                if await self._is_free():
                    return
            except NotAllowed as error:
                _LOG.info("tracker %s: %s", self.tracker, error.message)
                if await self.credential.enrol():
                    continue
            except FarmError as error:
                _LOG.info("waiting: %s", error.message)
            await asyncio.sleep(backoff.next_s())

    async def _is_free(self) -> bool:
        call = self.stub.Synchronise()
        message, _ = self.state()
        message.yields = True
        try:
            async with asyncio.timeout(SILENCE_S):
                await call.write(message)
                return isinstance(await call.read(), agent_pb2.DesiredState)
        except TimeoutError:
            return False
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.tracker) from error
        finally:
            call.cancel()

    async def _synchronise(self, backoff: Backoff) -> None:
        call = self.stub.Synchronise()
        sending = asyncio.create_task(self._keep_sending(call))
        try:
            while (message := await self._hear(call, sending)) is not None:
                backoff.reset()
                self.connection.is_up()
                if message.heartbeat_s > 0:
                    self._heartbeat_s = message.heartbeat_s
                self.take(message)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.tracker) from error
        finally:
            self.connection.is_down()
            sending.cancel()
            call.cancel()

    async def _hear(self, call: Call, sending: asyncio.Task[None]) -> agent_pb2.DesiredState | None:
        """Return the tracker's next message, None if it ended the stream; one that is silent is given up."""
        try:
            async with asyncio.timeout(SILENCE_S):
                message = await call.read()
        except TimeoutError as error:
            raise TrackerUnreachable(
                f"tracker {self.tracker}: silent for {SILENCE_S:g} s; dialling again"
            ) from error
        if sending.done() and not sending.cancelled() and (defect := sending.exception()):
            raise defect
        return message if isinstance(message, agent_pb2.DesiredState) else None

    async def _keep_sending(self, call: Call) -> None:
        # A failed write needs no handling here: reading the same call raises its status.
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            while True:
                self._changed.clear()
                message, sent = self.state()
                await call.write(message)
                sent()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._heartbeat_s * HEARTBEAT_MARGIN):
                        await self._changed.wait()
