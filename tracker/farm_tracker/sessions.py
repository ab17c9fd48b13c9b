"""Sessions: what a client sends to a leased device and what comes back.

Owns: joining a client's stream with the agent's stream of the same lease and epoch, numbering, their common end.
Does not own: leases, gRPC, or what requests mean.

Invariant: a reply reaches the client whose request it answers or nobody; at most one message each way is held here,
so a slow reader slows its writer; both ends are told when the lease ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from farm.errors import DeviceBusy, DeviceLost, Fenced, InvalidInput
from farm.measuring.checks import blobs_named

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from farm.api.v1 import session_pb2, tensor_pb2
    from farm.core.ids import AgentId, LeaseId
    from farm.errors import FarmError
    from farm_tracker.state.model import Lease

    WriteReply = Callable[[session_pb2.SessionReply], Awaitable[bool]]
    WriteRequest = Callable[[session_pb2.SessionRequest], Awaitable[bool]]

TAKES_IN = frozenset({"call", "batch", "measure", "compare"})
"""Kinds of requests that may name blobs."""
MAX_LOADED = 1024
"""Artifacts of one session that are kept in the store for it; an agent loads no more in one session."""


class ClientEnd:
    """One client while it is attached. Its first request, number 1, was the attaching."""

    def __init__(self, session: Session, write: WriteReply, offset: int) -> None:
        self.failed: asyncio.Future[FarmError] = asyncio.get_running_loop().create_future()
        self._session = session
        self._write = write
        self._offset = offset  # what its numbers lack to those of the agent's stream
        self._last_seq = 1
        self._answered = 1
        self._replied = asyncio.Event()
        self._named: dict[int, frozenset[str]] = {}  # blobs of requests that have no reply yet

    @property
    def named(self) -> set[str]:
        """The names of the blobs that its requests under way take in. May be asked from any thread."""
        return set().union(*list(self._named.values()))

    async def send(self, request: session_pb2.SessionRequest) -> None:
        """Pass a request on to the agent, waiting until its stream is there.

        Raises
        ------
        InvalidInput
            The request is not the next in number, or cannot be sent in a session.
        """
        if request.seq != self._last_seq + 1:
            raise InvalidInput(
                f"session: request {request.seq} after {self._last_seq}; number them one by one"
            )
        kind = request.WhichOneof("request")
        if kind not in ("load", "call", "batch", "packed", "measure", "compare"):
            raise InvalidInput(
                f"session: request {request.seq} is no load, call, batch, packed, measure or compare; send one"
            )
        if kind == "load":
            self._session.needs(request.load.artifact.sha256)
        if kind == "measure":  # all the measures of a session have it in common
            self._session.needs(request.measure.workload.reference.artifact.digest.sha256)
        self._last_seq = request.seq
        if kind in TAKES_IN:
            self._keep_inputs(request, kind)
        request.seq += self._offset
        await self._session.to_agent(request)

    def _keep_inputs(self, request: session_pb2.SessionRequest, kind: str) -> None:
        named: frozenset[str] = frozenset()
        with contextlib.suppress(InvalidInput):  # malformed: its agent will say so
            named = frozenset(_inputs(request, kind))
        if named:
            self._named[request.seq] = named

    async def take(self, reply: session_pb2.SessionReply) -> None:
        """Pass a reply on to the client; one that answers an earlier client is dropped."""
        if reply.seq <= self._offset + 1 or reply.seq > self._last_seq + self._offset:
            return
        reply.seq -= self._offset
        self._named.pop(reply.seq, None)
        await self._write(reply)
        self._answered = reply.seq
        self._replied.set()

    async def drain(self) -> None:
        """Wait until every request has its reply."""
        while self._answered < self._last_seq:
            self._replied.clear()
            await self._replied.wait()

    def fail(self, error: FarmError) -> None:
        """End this client's stream with an error."""
        if not self.failed.done():
            self.failed.set_result(error)

    def detach(self) -> None:
        """Let another client attach."""
        self._session.detach(self)


class AgentEnd:
    """The agent's stream of a session."""

    def __init__(self, session: Session, write: WriteRequest) -> None:
        self.replaced: asyncio.Future[FarmError] = asyncio.get_running_loop().create_future()
        self.write = write
        self._session = session

    async def take(self, reply: session_pb2.SessionReply) -> None:
        """Pass a reply on to the client."""
        await self._session.to_client(reply)

    def leave(self) -> None:
        """Note that the stream ended."""
        self._session.left(self)


class Session:
    """One lease's session."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.ended: asyncio.Future[FarmError] = asyncio.get_running_loop().create_future()
        self._agent: AgentEnd | None = None
        self._agent_came = asyncio.Event()
        self._client: ClientEnd | None = None
        self._sent = 0  # number of the last request on the agent's stream
        self._loaded: set[str] = set()

    def needs(self, artifact: str) -> None:
        """Note that the artifact of this name (SHA-256) was loaded: it is wanted again if the worker dies."""
        if len(self._loaded) < MAX_LOADED:
            self._loaded.add(artifact)

    @property
    def needed(self) -> set[str]:
        """The names of the artifacts that were loaded, and of what requests under way take in."""
        client = self._client
        return self._loaded | (client.named if client is not None else set())

    def attach(self, write: WriteReply) -> ClientEnd:
        """Attach a client; `write` gives it a reply and tells whether it is still there.

        Raises
        ------
        DeviceBusy
            Another client is attached.
        """
        if self._client is not None:
            raise DeviceBusy(
                f"lease {self.lease.lease_id}: another client is attached; end its session first"
            )
        # A client's first request to the agent has number 2 with the client, `_sent + 1` with the agent.
        self._client = ClientEnd(self, write, self._sent - 1)
        return self._client

    def detach(self, client: ClientEnd) -> None:
        """Forget a client that left."""
        if self._client is client:
            self._client = None

    def serve(self, write: WriteRequest) -> AgentEnd:
        """Take the agent's stream; an older one of the same lease ends."""
        if self._agent is not None:
            older = self._agent
            self.left(older)
            older.replaced.set_result(
                Fenced(
                    f"lease {self.lease.lease_id}: its agent has opened a newer stream; end this"
                )
            )
        self._agent = AgentEnd(self, write)
        self._agent_came.set()
        return self._agent

    def left(self, agent: AgentEnd) -> None:
        """Note that an agent's stream ended: what a client was promised on it will not come."""
        if self._agent is not agent:
            return
        self._agent = None
        self._agent_came.clear()
        self._sent = 0
        if self._client is not None:
            self._client.fail(
                DeviceLost(f"lease {self.lease.lease_id}: its agent's stream broke; attach again")
            )

    async def to_agent(self, request: session_pb2.SessionRequest) -> None:
        """Send a request as soon as the agent's stream is there."""
        while self._agent is None:
            await self._agent_came.wait()
        self._sent = request.seq
        await self._agent.write(request)

    async def to_client(self, reply: session_pb2.SessionReply) -> None:
        """Give a reply to the client, if it is still there."""
        if self._client is not None:
            await self._client.take(reply)

    def end(self, error: FarmError) -> None:
        """End both streams with an error."""
        if not self.ended.done():
            self.ended.set_result(error)


class Sessions:
    """The sessions of all live leases."""

    def __init__(self) -> None:
        self._sessions: dict[LeaseId, Session] = {}
        self._kept: dict[object, frozenset[str]] = {}

    @contextlib.contextmanager
    def keeping(self, names: Iterable[str]) -> Iterator[None]:
        """Need these blobs as long as the context lasts: for a session that is to be."""
        key = object()
        self._kept[key] = frozenset(names)
        try:
            yield
        finally:
            del self._kept[key]

    def needed(self) -> set[str]:
        """Return the names of the blobs that live sessions need. May be asked from any thread."""
        own = (it.needed for it in list(self._sessions.values()))
        return set().union(*own, *list(self._kept.values()))

    def open(self, lease: Lease) -> None:
        """Open the session of a lease that was granted."""
        self._sessions[lease.lease_id] = Session(lease)

    def end(self, lease_id: LeaseId, error: FarmError) -> bool:
        """End the session of a lease that ended; return whether there was one."""
        session = self._sessions.pop(lease_id, None)
        if session is not None:
            session.end(error)
        return session is not None

    def end_all(self, error: FarmError) -> None:
        """End every session."""
        for lease_id in list(self._sessions):
            self.end(lease_id, error)

    def find(self, lease_id: LeaseId, epoch: int) -> Session:
        """Return the session of a live lease.

        Raises
        ------
        Fenced
            The lease ended or has another epoch.
        """
        session = self._sessions.get(lease_id)
        if session is None or session.lease.epoch != epoch:
            raise Fenced(
                f"lease {lease_id[:80]} (epoch {epoch}): not live "
                f"({'it ended' if session is None else f'its epoch is {session.lease.epoch}'}); "
                "acquire again"
            )
        return session

    def find_for_agent(self, lease_id: LeaseId, epoch: int, agent_id: AgentId) -> Session:
        """Return the session of a live lease on one of this agent's devices; raises Fenced."""
        session = self.find(lease_id, epoch)
        if session.lease.agent_id != agent_id:
            raise Fenced(f"lease {lease_id[:80]}: not on a device of agent {agent_id}; end it")
        return session


def _inputs(request: session_pb2.SessionRequest, kind: str) -> Iterator[str]:
    """Yield the names of the blobs that a request takes in."""
    match kind:
        case "call":
            yield from _blobs(request.call.inputs)
        case "batch":
            for call in request.batch.calls:
                yield from _blobs(call.inputs)
        case "measure":
            measure = request.measure
            yield from (it.sha256 for it in blobs_named([measure.subject], measure.workload))
        case "compare":
            compare = request.compare
            yield from (it.sha256 for it in blobs_named(compare.subjects, compare.workload))


def _blobs(tensors: Iterable[tensor_pb2.Tensor]) -> Iterator[str]:
    return (it.blob.sha256 for it in tensors if it.HasField("blob"))
