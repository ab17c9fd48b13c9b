"""A session's worker, as the agent sees it: there when it is needed, loaded again after it has died.

Owns: starting it, asking it within a limit, what a crash becomes, what it prints, its file of replies.
Does not own: what requests are allowed (`farm_agents.session`), or what a request does (`farm_agents.worker`).

Invariant: a worker has loaded what the one before it had, under the same numbers, before it is asked anything; after
`kill` nothing that it started is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import DecodeError

from farm.api.v1 import session_pb2
from farm.core.crash_line import read_place, size_of
from farm.core.digest import Digest
from farm.core.wire import error_to_proto
from farm.errors import FarmError, InfrastructureError, KernelCrashed, TimeLimit
from farm.rpc import error_from_proto
from farm_agents.cache import BlobCache
from farm_agents.child import Child
from farm_agents.device import LocalDevice
from farm_agents.requests import check_load
from farm_agents.sandbox.output import OutputLog
from farm_agents.sandbox.starvation import UNKNOWN
from farm_agents.worker.replies import NAME as REPLIES
from farm_agents.zygotes import describe_status

LOAD_LIMIT_S = 60.0
GONE_LIMIT_S = 5.0
"""How long a worker that has closed its channel may live on before it is killed."""
MAX_OUTPUT_BYTES = 4 << 20
"""What one worker may print; the rest is dropped, with a mark."""


@dataclass(slots=True, eq=False)
class SessionWorker:
    """The worker of one session.

    Attributes
    ----------
    loaded
        What was loaded, in the order of module ids; whoever loads something adds it.
    used
        Whether there was ever a worker, and so the folder.
    crashed
        Whether one crashed or was killed at a limit.
    log
        What its workers print.
    """

    device: LocalDevice
    cache: BlobCache
    folder: Path
    log: Path
    loaded: list[session_pb2.LoadRequest] = field(default_factory=list)
    used: bool = False
    crashed: bool = False
    _child: Child | None = None
    _replies: int | None = None
    _output: OutputLog | None = None
    _printed: int = 0  # length of the log when the last request was sent

    async def ask(
        self, request: session_pb2.SessionRequest, blobs: Sequence[Digest], limit_s: float
    ) -> session_pb2.SessionReply:
        """Send a request to the worker, with its blobs in the cache."""
        await self.cache.fetch_all(blobs)
        return await self._ask_child(await self.child(), request, blobs, limit_s)

    async def _ask_child(
        self,
        child: Child,
        request: session_pb2.SessionRequest,
        blobs: Sequence[Digest],
        limit_s: float,
    ) -> session_pb2.SessionReply:
        """Send a request; a blob that turns out to be damaged is fetched once more."""
        reply = await self.exchange(child, request, limit_s)
        damaged = [d for d in blobs if d.sha256 == reply.error.details.get("blob")]
        if not damaged:
            return reply
        self.cache.forget(damaged[0])
        await self.cache.fetch_all(damaged)
        return await self.exchange(child, request, limit_s)

    async def prepare(self) -> None:
        """Wait until there is a worker for the first request.

        One that waits in a sandbox is only taken by a request, since whoever has it is never given back: a lease
        that asks nothing costs no sandbox.

        Raises
        ------
        InfrastructureError
            None starts.
        """
        zygote = await self.device.zygote()
        if zygote.rooms is None:
            await self.child()
        else:
            await zygote.wait_for_spare()

    async def child(self) -> Child:
        """Return the worker, starting one and loading what was loaded before if it has died."""
        if self._child is not None and self._child.usable:
            return self._child
        self.close()
        zygote = await self.device.zygote()
        if not self.used:
            await asyncio.to_thread((self.folder / "out").mkdir, parents=True, exist_ok=True)
            self.used = True
        config = self.device.config(self.folder, self.cache.root)
        if zygote.rooms is None:  # else what it prints comes through a pipe of its sandbox
            config["log"] = str(self._open_output())
        child = self._child = await zygote.fork(config)
        try:
            for number, load in enumerate(self.loaded, 1):
                await self._load_again(child, number, load)
        except BaseException:  # a worker that lacks a module would give the next one its number
            await self.kill()
            raise
        return child

    def replies(self, child: Child) -> int:
        """Return a descriptor of the file of replies of a worker that has loaded something.

        Opened once, so that it outlives the worker, and a kernel cannot put another file in its place later.
        """
        if self._replies is None:
            self._replies = child.open_file(REPLIES)
        return self._replies

    async def _load_again(self, child: Child, number: int, load: session_pb2.LoadRequest) -> None:
        blobs = check_load(load)
        await self.cache.fetch_all(blobs)
        request = session_pb2.SessionRequest(seq=number, load=load)
        reply = await self._ask_child(child, request, blobs, LOAD_LIMIT_S)
        raise_error(reply)

    async def exchange(
        self,
        child: Child,
        request: session_pb2.SessionRequest,
        limit_s: float,
        timing: Callable[[], None] | None = None,
    ) -> session_pb2.SessionReply:
        """Send one request to the worker and return its reply.

        Parameters
        ----------
        timing
            Called when the worker says, once at most, that it takes time from now on.

        Raises
        ------
        TimeLimit, KernelCrashed
            The worker was killed at the limit, or died; it is gone with everything that it started. Only of one that
            takes time and was ended by its own timer (SIGPROF) something may be left, for `kill` to end.
        InfrastructureError
            It was ended from outside: its zygote is gone, the host had no memory left, or it was before it could
            begin with the request.
        """
        what = _describe(request)
        self._printed = size_of(self.log)
        try:
            async with asyncio.timeout(limit_s):
                await child.send(request.SerializeToString())
                frame = await child.receive()
                if frame is not None and timing is not None:
                    reply = _reply(frame, request.seq)
                    if not reply.timing:
                        return reply
                    timing()
                    frame = await child.receive()
            if frame is not None:
                return _excused(child, _reply(frame, request.seq), what)
        except TimeoutError:
            self.crashed = True
            await self.kill()
            raise TimeLimit(
                f"{what}: ran past its limit ({limit_s:g} s) and was killed; raise --limit (limit_s) or fix the "
                "kernel",
                limit_s=f"{limit_s:g}",
            ) from None
        except (DecodeError, InfrastructureError) as error:
            self.crashed = True
            await self.kill()
            raise KernelCrashed(
                f"{what}: the kernel broke the worker's channel ({error}); fix the kernel"
            ) from error
        if timing is not None and await _gave_up(child):
            raise KernelCrashed(f"{what}: used more CPU time than it is worth", signal="SIGPROF")
        raise await self._crash(child, what, limit_s)

    async def _crash(self, child: Child, what: str, limit_s: float) -> FarmError:
        self.crashed = True
        facts = describe_status(await self.kill()) | dict(child.exceeded)
        if child.unheard:
            return InfrastructureError(
                f"{what}: the worker was ended before it began; nothing was called, call again"
            )
        if not child.zygote.alive:
            return InfrastructureError(f"{what}: the worker was ended from outside; call again")
        excuse = child.starvation.excuse(facts.get("signal", ""))
        if excuse:
            return InfrastructureError(f"{what}: {excuse}; call again")
        if facts.get("signal") == "SIGXCPU":
            return TimeLimit(
                f"{what}: used more CPU time than its limit allows ({limit_s:g} s); raise --limit (limit_s)",
                limit_s=f"{limit_s:g}",
            )
        how = facts.get("signal") or f"exit code {facts['exit_code']}"
        if "limit" in facts:
            how += f", past its limit on {facts['limit']}"
        elif facts.get("signal") == "SIGKILL" and child.starvation.is_blind:
            how += f"; {UNKNOWN}"
        place = read_place(self.log, self._printed)
        if place:
            how += " in line {line} of {file}, function {symbol}".format_map(place)
        return KernelCrashed(
            f"{what}: ended the process it ran in ({how}); fix the kernel", **facts, **place
        )

    async def kill(self) -> int:
        """Kill the worker with everything that it started; return its wait status."""
        child, self._child = self._child, None
        status = 0 if child is None else await child.kill()
        self._close_output()
        return status

    def _open_output(self) -> Path:
        """Return a pipe to print into, whose other end writes the log up to its limit."""
        pipe = self.folder / "output.pipe"
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe, 0o600)
        # For writing too, so that a pipe that nobody has opened yet is not at its end.
        fd = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._output = OutputLog(fd, MAX_OUTPUT_BYTES)
        self._output.attach(self.log)
        return pipe

    def close(self) -> None:
        """Let go of what a worker that is gone has left, its replies too."""
        if self._replies is not None:
            os.close(self._replies)
            self._replies = None
        self._close_output()

    def _close_output(self) -> None:
        if self._output is not None:
            self._output.close()
            self._output = None


async def _gave_up(child: Child) -> bool:
    """Tell whether a child that has closed its channel was ended by the timer that it races with.

    Its sandbox ends beside what comes next: how it ended is known already.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GONE_LIMIT_S):
            status = await asyncio.shield(child.gone)
            return describe_status(status).get("signal") == "SIGPROF"
    return False


def raise_error(reply: session_pb2.SessionReply) -> None:
    """Raise the error that a reply is, if it is one."""
    if reply.WhichOneof("reply") == "error":
        raise error_from_proto(reply.error)


def _excused(child: Child, reply: session_pb2.SessionReply, what: str) -> session_pb2.SessionReply:
    """Return a reply, its error put on the host if that killed a process that the worker had started."""
    match reply.WhichOneof("reply"):
        case "error":
            error = reply.error
        case "batch" if reply.batch.HasField("error"):
            error = reply.batch.error
        case "packed" if reply.packed.HasField("error"):
            error = reply.packed.error
        case "loaded" if reply.loaded.called.HasField("error"):
            error = reply.loaded.called.error
        case _:
            return reply
    excuse = child.starvation.excuse(error.details.get("signal", ""))
    if excuse:
        error.CopyFrom(error_to_proto(InfrastructureError(f"{what}: {excuse}; call again")))
    return reply


def _describe(request: session_pb2.SessionRequest) -> str:
    if request.WhichOneof("request") == "load":
        what = f"loading {request.load.artifact.sha256[:12]}"
        symbols = ", ".join(one.symbol[:80] for one in request.load.calls.functions[:3])
        return f"{what} and calling {symbols}" if symbols else what
    if request.WhichOneof("request") == "measure":
        return f"candidate {request.measure.subject.name or request.measure.subject.symbol}"
    if request.WhichOneof("request") == "compare":
        return f"comparison of {len(request.compare.subjects)} candidates"
    if request.WhichOneof("request") == "expect":
        return f"reference {request.expect.workload.reference.symbol[:80]}"
    if request.WhichOneof("request") == "batch":
        return f"batch of {len(request.batch.calls)} calls"
    if request.WhichOneof("request") == "packed":
        symbols = ", ".join(one.symbol[:80] for one in request.packed.functions[:3])
        return f"{len(request.packed.order)} calls of {symbols}"
    return f"call {request.call.symbol[:80]}"


def _reply(frame: bytes, seq: int) -> session_pb2.SessionReply:
    reply = session_pb2.SessionReply.FromString(frame)
    if reply.seq != seq:
        raise InfrastructureError(f"it answered request {reply.seq} instead of {seq}")
    return reply
