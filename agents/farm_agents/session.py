"""One lease's session, on the agent's side: requests in, replies out, a worker that may die in between.

Owns: the stream to the tracker, limits, what a crash becomes, and loading again what was loaded.
Does not own: when a lease begins and ends (`farm_agents.state`), or what a request does (the worker).

Invariant: each request gets one reply, in order; after `end` no process of the session is left.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from google.protobuf.message import DecodeError

from farm.api.v1 import agent_pb2, agent_pb2_grpc, session_pb2
from farm.core.digest import Digest
from farm.core.wire import digest_from_proto, digest_to_proto
from farm.errors import (
    FarmError,
    Fenced,
    InfrastructureError,
    InvalidInput,
    KernelCrashed,
    NotFound,
    TimeLimit,
)
from farm.rpc import error_from_proto, error_from_rpc, error_to_proto
from farm_agents.backoff import Backoff
from farm_agents.cache import BlobCache
from farm_agents.child import Child
from farm_agents.connection import Connection
from farm_agents.device import LocalDevice
from farm_agents.requests import batch_reply, blobs_of, check_batch, check_call
from farm_agents.sandbox.output import OutputLog
from farm_agents.state.model import Grant
from farm_agents.worker.replies import NAME as REPLIES
from farm_agents.worker.replies import read_replies
from farm_agents.zygotes import describe_status

LOAD_LIMIT_S = 60.0
MAX_MODULES = 1_024
MAX_OUTPUT_BYTES = 4 << 20
"""What one worker may print; the rest is dropped, with a mark."""


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
    _child: Child | None = None
    _output: OutputLog | None = None
    _loaded: list[Digest] = field(default_factory=list)

    @property
    def log(self) -> Path:
        """What the workers of this session print."""
        return self.folder / "output.log"

    async def prepare(self) -> None:
        """Make the scratch folder and start the worker.

        Raises
        ------
        InfrastructureError
            The worker does not start.
        """
        await asyncio.to_thread((self.folder / "out").mkdir, parents=True, exist_ok=True)
        await self._worker()

    async def serve(
        self,
        stub: agent_pb2_grpc.AgentServiceAsyncStub,
        identity: Identity,
        connection: Connection,
        opened: asyncio.Event,
    ) -> None:
        """Answer the tracker's requests until cancelled, dialling again when the stream breaks.

        Parameters
        ----------
        connection
            The control stream: the tracker knows this agent, and so its sessions, only while it is up.
        opened
            Set when the stream was opened for the first time.

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
                opened.set()
                async for request in call:
                    backoff.reset()
                    reply = await self.answer(request)
                    await call.write(agent_pb2.ServeFrame(reply=reply))
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

    async def answer(self, request: session_pb2.SessionRequest) -> session_pb2.SessionReply:
        """Return the reply to one request; what goes wrong in it is an Error in the reply."""
        try:
            match request.WhichOneof("request"):
                case "attach":
                    return self._attach(request)
                case "load":
                    return await self._load(request)
                case "call":
                    return await self._call(request, self.cache.store)
                case "batch":
                    return await self._batch(request)
                case _:
                    raise InvalidInput(
                        f"request {request.seq}: empty; send attach, load, call or batch"
                    )
        except FarmError as error:
            return _failed(request.seq, error)
        except OSError as error:
            what = f"request {request.seq}: {error}; look at the agent's disk and try again"
            return _failed(request.seq, InfrastructureError(what))

    async def load(self, artifact: Digest) -> session_pb2.LoadReply:
        """Load an artifact; what the worker refuses is raised."""
        load = session_pb2.LoadRequest(artifact=digest_to_proto(artifact))
        reply = await self._load(session_pb2.SessionRequest(seq=1, load=load))
        _raise_error(reply)
        return reply.loaded

    async def call(self, call: session_pb2.CallRequest, keep: Keep) -> session_pb2.CallReply:
        """Call a function; large outputs go through `keep`, what the call failed of is raised."""
        reply = await self._call(session_pb2.SessionRequest(seq=1, call=call), keep)
        _raise_error(reply)
        return reply.called

    async def stop(self) -> None:
        """Kill the worker with everything that it started; the scratch folder stays."""
        await self._kill()

    async def end(self) -> None:
        """Kill the worker with everything that it started, and remove the scratch folder."""
        await self.device.kill_all()
        self._close_output()
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
        if len(self._loaded) >= MAX_MODULES:
            raise InvalidInput(
                f"session: too many modules loaded ({len(self._loaded)}); acquire again"
            )
        digest = digest_from_proto(request.load.artifact)
        reply = await self._ask(request, [digest], LOAD_LIMIT_S)
        if reply.WhichOneof("reply") == "loaded":
            self._loaded.append(digest)
        return reply

    async def _call(
        self, request: session_pb2.SessionRequest, keep: Keep
    ) -> session_pb2.SessionReply:
        call = request.call
        limit_s = check_call(call)
        reply = await self._ask(request, blobs_of(call.inputs), limit_s)
        for digest in blobs_of(reply.called.outputs):
            child = await self._worker()
            with child.result(digest) as path:
                await keep(path, digest)
        return reply

    async def _batch(self, request: session_pb2.SessionRequest) -> session_pb2.SessionReply:
        limit_s = check_batch(request.batch)
        if not self._loaded:
            raise NotFound("batch: nothing is loaded in this session; load an artifact first")
        blobs = blobs_of(tensor for call in request.batch.calls for tensor in call.inputs)
        await self.cache.fetch_all(blobs)
        child = await self._worker()
        fd = child.open_file(REPLIES)
        try:
            return await self._take_batch(child, request, limit_s, fd)
        finally:
            os.close(fd)

    async def _take_batch(
        self, child: Child, request: session_pb2.SessionRequest, limit_s: float, fd: int
    ) -> session_pb2.SessionReply:
        """Have a batch done; replies come through the file `fd`, also those before a crash."""
        error: FarmError | None = None
        try:
            reply = await self._exchange(child, request, limit_s)
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

    async def _ask(
        self, request: session_pb2.SessionRequest, blobs: Sequence[Digest], limit_s: float
    ) -> session_pb2.SessionReply:
        """Send a request to the worker, with its blobs in the cache."""
        await self.cache.fetch_all(blobs)
        return await self._ask_child(await self._worker(), request, blobs, limit_s)

    async def _ask_child(
        self,
        child: Child,
        request: session_pb2.SessionRequest,
        blobs: Sequence[Digest],
        limit_s: float,
    ) -> session_pb2.SessionReply:
        """Send a request; a blob that turns out to be damaged is fetched once more."""
        reply = await self._exchange(child, request, limit_s)
        damaged = [d for d in blobs if d.sha256 == reply.error.details.get("blob")]
        if not damaged:
            return reply
        self.cache.forget(damaged[0])
        await self.cache.fetch_all(damaged)
        return await self._exchange(child, request, limit_s)

    async def _worker(self) -> Child:
        """Return the worker, starting one and loading what was loaded before if it has died."""
        if self._child is not None and self._child.usable:
            return self._child
        zygote = await self.device.zygote()
        config = self.device.config(self.folder, self.cache.root)
        if zygote.rooms is None:  # else what it prints comes through a pipe of its sandbox
            config["log"] = str(self._open_output())
        child = self._child = await zygote.fork(config)
        try:
            for number, digest in enumerate(self._loaded, 1):
                await self._load_again(child, number, digest)
        except BaseException:  # a worker that lacks a module would give the next one its number
            await self._kill()
            raise
        return child

    async def _load_again(self, child: Child, number: int, digest: Digest) -> None:
        await self.cache.fetch(digest)
        load = session_pb2.LoadRequest(artifact=digest_to_proto(digest))
        request = session_pb2.SessionRequest(seq=number, load=load)
        reply = await self._ask_child(child, request, [digest], LOAD_LIMIT_S)
        _raise_error(reply)

    async def _exchange(
        self, child: Child, request: session_pb2.SessionRequest, limit_s: float
    ) -> session_pb2.SessionReply:
        """Send one request to the worker and return its reply.

        Raises
        ------
        TimeLimit, KernelCrashed
            The worker was killed at the limit, or died; it is gone with everything that it started.
        """
        what = _describe(request)
        try:
            async with asyncio.timeout(limit_s):
                await child.send(request.SerializeToString())
                frame = await child.receive()
            if frame is not None:
                return _reply(frame, request.seq)
        except TimeoutError:
            await self._kill()
            raise TimeLimit(
                f"{what}: ran past its limit ({limit_s:g} s) and was killed; raise limit_s or fix the "
                "kernel",
                limit_s=f"{limit_s:g}",
            ) from None
        except (DecodeError, InfrastructureError) as error:
            await self._kill()
            raise KernelCrashed(
                f"{what}: the kernel broke the worker's channel ({error}); fix the kernel"
            ) from error
        raise await self._crash(child, what, limit_s)

    async def _crash(self, child: Child, what: str, limit_s: float) -> FarmError:
        facts = describe_status(await self._kill()) | dict(child.exceeded)
        if not child.zygote.alive:
            return InfrastructureError(f"{what}: the worker was ended from outside; call again")
        if facts.get("signal") == "SIGXCPU":
            return TimeLimit(
                f"{what}: used more CPU time than its limit allows ({limit_s:g} s); raise limit_s",
                limit_s=f"{limit_s:g}",
            )
        how = facts.get("signal") or f"exit code {facts['exit_code']}"
        if "limit" in facts:
            how += f", past its limit on {facts['limit']}"
        return KernelCrashed(
            f"{what}: ended the process it ran in ({how}); fix the kernel", **facts
        )

    async def _kill(self) -> int:
        child, self._child = self._child, None
        status = 0 if child is None else await child.kill()
        self._close_output()
        return status

    def _open_output(self) -> Path:
        """Return a pipe to print into, whose other end writes the log up to its limit."""
        self._close_output()
        pipe = self.folder / "output.pipe"
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe, 0o600)
        # For writing too, so that a pipe that nobody has opened yet is not at its end.
        fd = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._output = OutputLog(fd, MAX_OUTPUT_BYTES)
        self._output.attach(self.log)
        return pipe

    def _close_output(self) -> None:
        if self._output is not None:
            self._output.close()
            self._output = None


def _raise_error(reply: session_pb2.SessionReply) -> None:
    if reply.WhichOneof("reply") == "error":
        raise error_from_proto(reply.error)


def _describe(request: session_pb2.SessionRequest) -> str:
    if request.WhichOneof("request") == "load":
        return f"loading {request.load.artifact.sha256[:12]}"
    if request.WhichOneof("request") == "batch":
        return f"batch of {len(request.batch.calls)} calls"
    return f"call {request.call.symbol[:80]}"


def _reply(frame: bytes, seq: int) -> session_pb2.SessionReply:
    reply = session_pb2.SessionReply.FromString(frame)
    if reply.seq != seq:
        raise InfrastructureError(f"it answered request {reply.seq} instead of {seq}")
    return reply


def _failed(seq: int, error: FarmError) -> session_pb2.SessionReply:
    return session_pb2.SessionReply(seq=seq, error=error_to_proto(error))
