"""One lease's session, on the agent's side: requests in, replies out, a worker that may die in between.

Owns: the stream to the tracker, limits, and blobs that calls take and give.
Does not own: when a lease begins and ends (`farm_agents.state`), the worker's life (`farm_agents.session_worker`), or
what a request does (`farm_agents.worker`).

Invariant: each request gets one reply, in order; after `end` no process of the session is left.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from farm.api.v1 import agent_pb2, agent_pb2_grpc, measure_pb2, session_pb2
from farm.core.digest import Digest
from farm.core.limits import MAX_FOLLOWS
from farm.core.wire import digest_to_proto
from farm.errors import (
    Cancelled,
    FarmError,
    Fenced,
    InfrastructureError,
    InvalidInput,
    KernelCrashed,
    NotFound,
    TimeLimit,
)
from farm.rpc import error_from_rpc, error_to_proto
from farm_agents.backoff import Backoff
from farm_agents.cache import BlobCache
from farm_agents.connection import Connection
from farm_agents.device import LocalDevice
from farm_agents.measuring import Measuring
from farm_agents.requests import (
    batch_reply,
    blobs_of,
    check_batch,
    check_call,
    check_first_calls,
    check_follows,
    check_load,
    check_packed,
    output_bytes,
)
from farm_agents.session_worker import LOAD_LIMIT_S, SessionWorker, raise_error
from farm_agents.state.model import Grant
from farm_agents.worker.replies import (
    forget_replies,
    read_made,
    read_outputs,
    read_replies,
)

MAX_MODULES = 1_024
Stream = grpc.aio.StreamStreamCall[agent_pb2.ServeFrame, session_pb2.SessionRequest]
Keep = Callable[[Path, Digest], Awaitable[None]]
"""Takes a file that a worker left, while it is there."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the agent is, as each of its streams says."""

    agent_id: str
    instance_id: str


@dataclass(slots=True)
class Session:
    """One lease being served."""

    grant: Grant
    device: LocalDevice
    cache: BlobCache
    folder: Path
    _worker: SessionWorker = field(init=False)
    _measuring: Measuring = field(init=False)
    _fetching: set[asyncio.Future[None]] = field(default_factory=set)
    _failed: list[int] = field(
        default_factory=list
    )  # numbers of requests, as many as may be followed

    def __post_init__(self) -> None:
        log = self.folder / "output.log"
        self._worker = SessionWorker(self.device, self.cache, self.folder, log)
        self._measuring = Measuring(self.device, self.cache, self.folder / "measure", log)

    @property
    def log(self) -> Path:
        """What the workers of this session print."""
        return self._worker.log

    @property
    def crashed(self) -> bool:
        """Whether a worker of this session crashed, or had to be killed at a limit."""
        return self._worker.crashed or self._measuring.crashed

    async def prepare(self) -> None:
        """Wait until a worker is ready; raises InfrastructureError if none starts."""
        await self._worker.prepare()

    async def serve(
        self,
        stub: agent_pb2_grpc.AgentServiceAsyncStub,
        identity: Identity,
        connection: Connection,
    ) -> None:
        """Answer the tracker's requests until cancelled, dialling again when the stream breaks.

        Parameters
        ----------
        connection
            The control stream: the tracker knows this agent, and so its sessions, only while it is up.

        Raises
        ------
        Fenced
            The tracker says that the lease is over.
        """
        backoff = Backoff(ceiling_s=2.0)
        frame = agent_pb2.ServeFrame(
            open=agent_pb2.ServeOpen(
                agent_id=identity.agent_id,
                instance_id=identity.instance_id,
                lease_id=self.grant.lease_id,
                epoch=self.grant.epoch,
            )
        )
        while True:
            count = await connection.wait()
            call = stub.Serve()
            try:
                await call.write(frame)
                self._failed.clear()  # numbers begin anew
                await self._serve(call, backoff)
            except grpc.RpcError as rpc_error:
                error = error_from_rpc(rpc_error)
                # A tracker that has restarted refuses sessions until the control stream is back.
                if isinstance(error, Fenced) and connection.count == count:
                    raise error from rpc_error
            except asyncio.InvalidStateError:
                pass  # the stream ended while a reply was on its way
            finally:
                call.cancel()
            await asyncio.sleep(backoff.next_s())

    async def _serve(self, call: Stream, backoff: Backoff) -> None:
        """Answer what comes on a stream until it ends; the next request is on its way while one is answered."""
        coming = asyncio.ensure_future(call.read())
        try:
            while isinstance(request := await coming, session_pb2.SessionRequest):
                backoff.reset()
                coming = asyncio.ensure_future(call.read())
                coming.add_done_callback(self._prefetch)
                reply = await self.answer(request)
                await call.write(agent_pb2.ServeFrame(reply=reply))
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)

    def _prefetch(self, coming: asyncio.Future[object]) -> None:
        """Fetch what a request that has come needs, while the one before it is answered."""
        if coming.cancelled() or coming.exception() is not None:
            return
        request = coming.result()
        # A task for each message would cost a short call more than its own work here.
        if isinstance(request, session_pb2.SessionRequest) and request.HasField("measure"):
            task = asyncio.ensure_future(self._measuring.prefetch(request))
            self._fetching.add(task)
            task.add_done_callback(self._fetching.discard)

    async def answer(self, request: session_pb2.SessionRequest) -> session_pb2.SessionReply:
        """Return the reply to one request; what goes wrong in it is an Error in the reply."""
        try:
            reply = await self._answer(request)
        except FarmError as error:
            reply = _failed(request.seq, error)
        except OSError as error:
            what = f"request {request.seq}: {error}; look at the agent's disk and try again"
            reply = _failed(request.seq, InfrastructureError(what))
        if _has_error(reply):
            self._failed = [*self._failed[1 - MAX_FOLLOWS :], request.seq]
        return reply

    async def _answer(self, request: session_pb2.SessionRequest) -> session_pb2.SessionReply:
        match request.WhichOneof("request"):
            case "packed":
                return await self._packed(request)
            case "call":
                return await self._call(request, self.cache.store)
            case "batch":
                return await self._batch(request)
            case "load":
                return await self._load(request)
            case "measure":
                found = await self._measuring.measure(request.measure)
                return session_pb2.SessionReply(seq=request.seq, measured=found)
            case "compare":
                compared = await self._measuring.compare(request.compare)
                return session_pb2.SessionReply(seq=request.seq, compared=compared)
            case "attach":
                return self._attach(request)
            case _:
                raise InvalidInput(
                    f"request {request.seq}: empty; send attach, load, call, batch, packed, measure or compare"
                )

    async def load(self, artifact: Digest) -> session_pb2.LoadReply:
        """Load an artifact; what the worker refuses is raised."""
        load = session_pb2.LoadRequest(artifact=digest_to_proto(artifact))
        reply = await self._load(session_pb2.SessionRequest(seq=1, load=load))
        raise_error(reply)
        return reply.loaded

    async def call(self, call: session_pb2.CallRequest, keep: Keep) -> session_pb2.CallReply:
        """Call a function; large outputs go through `keep`, what the call failed of is raised."""
        reply = await self._call(session_pb2.SessionRequest(seq=1, call=call), keep)
        raise_error(reply)
        return reply.called

    async def compare(self, request: measure_pb2.CompareRequest) -> measure_pb2.Comparison:
        """Compare candidates; see `Measuring.compare`."""
        return await self._measuring.compare(request)

    async def stop(self) -> None:
        """Kill the workers with everything that they started; the scratch folder stays."""
        await self._worker.kill()
        await self._measuring.stop()

    async def end(self) -> None:
        """Kill the worker with everything that it started, and remove the scratch folder."""
        await self.device.kill_all()
        await self._measuring.stop()
        self._worker.close()
        if self._worker.used or self._measuring.used:
            await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    def _attach(self, request: session_pb2.SessionRequest) -> session_pb2.SessionReply:
        asked = request.attach
        if asked.lease_id != self.grant.lease_id or asked.epoch != self.grant.epoch:
            raise Fenced(
                f"lease {asked.lease_id[:80]}: not the one that is served ({self.grant.lease_id}, "
                f"epoch {self.grant.epoch}); acquire again"
            )
        return session_pb2.SessionReply(
            seq=request.seq, attached=session_pb2.AttachReply(device_id=self.device.device_id)
        )

    async def _load(self, request: session_pb2.SessionRequest) -> session_pb2.SessionReply:
        if len(self._worker.loaded) >= MAX_MODULES:
            raise InvalidInput(
                f"session: too many modules loaded ({len(self._worker.loaded)}); acquire again"
            )
        load, limit_s = request.load, LOAD_LIMIT_S
        blobs = check_load(load)
        has_calls = load.HasField("calls")
        if has_calls:
            limit_s += check_first_calls(load.calls)
        reply = await self._worker.ask(request, blobs, limit_s)
        if reply.WhichOneof("reply") == "loaded":
            if has_calls:
                _check_called(load.calls, reply.loaded)
                load.ClearField("calls")  # a worker that loads it again calls nothing
            self._worker.loaded.append(load)
        return reply

    async def _call(
        self, request: session_pb2.SessionRequest, keep: Keep
    ) -> session_pb2.SessionReply:
        call = request.call
        limit_s = check_call(call)
        reply = await self._worker.ask(request, blobs_of(call.inputs), limit_s)
        for digest in blobs_of(reply.called.outputs):
            child = await self._worker.child()
            with child.result(digest) as path:
                await keep(path, digest)
        return reply

    def _check_follows(self, request: session_pb2.SessionRequest, follows: int, what: str) -> None:
        """Refuse calls that go on from calls that failed, or that come before anything was loaded."""
        check_follows(follows)
        if follows and request.seq - follows in self._failed:
            raise Cancelled(f"{what}: the calls before these failed; none of these was made")
        if not self._worker.loaded:
            raise NotFound(f"{what}: nothing is loaded in this session; load an artifact first")

    async def _packed(self, request: session_pb2.SessionRequest) -> session_pb2.SessionReply:
        packed = request.packed
        limit_s = check_packed(packed)
        self._check_follows(request, packed.follows, "packed")
        child = await self._worker.child()
        fd = self._worker.replies(child)
        forget_replies(fd)
        try:
            reply = await self._worker.exchange(child, request, limit_s)
            if reply.WhichOneof("reply") != "packed":
                return reply
            done = reply.packed.done
        except (KernelCrashed, TimeLimit, InfrastructureError) as failure:
            reply = session_pb2.SessionReply(seq=request.seq)
            reply.packed.error.CopyFrom(error_to_proto(failure))
            done = reply.packed.done = read_made(fd)
        if done > len(packed.order):
            raise KernelCrashed("packed: the kernel forged the worker's replies; fix it")
        size_bytes = output_bytes(packed, done)
        if len(reply.packed.outputs) != size_bytes:
            reply.packed.outputs = read_outputs(fd, size_bytes)
        return reply

    async def _batch(self, request: session_pb2.SessionRequest) -> session_pb2.SessionReply:
        limit_s = check_batch(request.batch)
        self._check_follows(request, request.batch.follows, "batch")
        blobs = blobs_of(tensor for call in request.batch.calls for tensor in call.inputs)
        await self.cache.fetch_all(blobs)
        child = await self._worker.child()
        fd = self._worker.replies(child)
        forget_replies(fd)
        error: FarmError | None = None
        try:
            reply = await self._worker.exchange(child, request, limit_s)
            if reply.WhichOneof("reply") == "error":
                return reply
        except (KernelCrashed, TimeLimit, InfrastructureError) as failure:
            reply, error = session_pb2.SessionReply(seq=request.seq), failure
        done = batch_reply(read_replies(fd), len(request.batch.calls))
        if error is not None:
            reply.batch.error.CopyFrom(error_to_proto(error))
        reply.batch.MergeFrom(done)
        outputs = blobs_of(tensor for one in done.replies for tensor in one.outputs)
        for digest in dict.fromkeys(outputs):
            with child.result(digest) as path:
                await self.cache.store(path, digest)
        damaged = reply.batch.error.details.get("blob", "")
        for call in request.batch.calls if damaged else ():
            for digest in blobs_of(call.inputs):
                if digest.sha256 == damaged:
                    self.cache.forget(digest)
        return reply


def _failed(seq: int, error: FarmError) -> session_pb2.SessionReply:
    return session_pb2.SessionReply(seq=seq, error=error_to_proto(error))


def _check_called(calls: session_pb2.PackedRequest, loaded: session_pb2.LoadReply) -> None:
    """Raise KernelCrashed if what a worker says of first calls cannot be."""
    done = loaded.called.done
    if done > len(calls.order) or len(loaded.called.outputs) != output_bytes(calls, done):
        raise KernelCrashed("load: the kernel forged the worker's replies; fix it")


def _has_error(reply: session_pb2.SessionReply) -> bool:
    match reply.WhichOneof("reply"):
        case "packed":
            return reply.packed.HasField("error")
        case "batch":
            return reply.batch.HasField("error")
        case kind:
            return kind == "error"
