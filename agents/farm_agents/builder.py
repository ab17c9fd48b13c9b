"""Build attempts on the agent's side: fetch the function, compile it in a child, store the object.

Most functions come with their order, and most objects go with the report: neither then touches a disk here.

Owns: one attempt from order to outcome, and the builders' zygote. Does not own: which attempts run, and their
limits (`farm_agents.state.builds`), or compiling (the worker).

Invariant: when `build` returns or raises, the attempt's processes are gone; those of a confined compiler that has
answered may still be dying, but of no more than `DYING` attempts for each slot, and none outlives `close`.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import DecodeError

from farm.api.v1 import agent_pb2, build_pb2
from farm.core.digest import digest_of
from farm.core.ids import IdSource
from farm.core.limits import MAX_INLINE_OBJECT_BYTES
from farm.core.tasks import finish
from farm.core.wire import digest_from_proto, digest_to_proto, error_to_proto
from farm.errors import BuildFailed, FarmError, InfrastructureError, StoreFull, TrackerUnreachable
from farm.target import Target
from farm_agents.backoff import Backoff
from farm_agents.cache import BlobCache
from farm_agents.child import Child
from farm_agents.cores import keep_off
from farm_agents.failures import failed_from_proto
from farm_agents.sandbox.confinement import Confinement
from farm_agents.sandbox.starvation import UNKNOWN
from farm_agents.state.model import BuildOrder, BuildPhase, Built, Outcome
from farm_agents.zygotes import Zygote, describe_status

ADDRESS_SPACE_BYTES = 16 << 30
TRANSFER_TRIES = 3
DYING = 2
"""Rooms for each slot that may still be ending while it goes on: the kernel takes its time, but no core's."""
MAX_SPARES = 4
"""Children that wait for builds, however many slots there are."""

KINDS = {
    build_pb2.ITEM_KIND_DEVICE: "device",
    build_pb2.ITEM_KIND_HOST: "host",
}
"""Names of the kinds of items, as the core and messages for people use them."""
_KIND_OF_NAME = {name: kind for kind, name in KINDS.items()}


@dataclass(slots=True)
class Builder:
    """Compiles for the families in `families`; children come from one zygote that is started with the first."""

    families: tuple[str, ...]
    cache: BlobCache
    work_dir: Path
    new_id: IdSource
    confinement: Confinement
    slots: int
    _zygote: Zygote | None = None
    _dying: set[asyncio.Task[int]] = field(default_factory=set)
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def zygote(self) -> Zygote:
        """Return a warm zygote, starting one if there is none; InfrastructureError if it does not start."""
        rooms = await self.confinement.settle()
        async with self._starting:
            if self._zygote is None or not self._zygote.serves(rooms):
                if self._zygote is not None:
                    await self._zygote.close()
                log = self.work_dir / "logs" / "builder.log"
                self._zygote = await Zygote.start(
                    *("build", log, self.new_id, ",".join(self.families)),
                    rooms=rooms,
                    ahead=self._config(Path()),
                    spares=max(1, min(self.slots, MAX_SPARES)),
                )
            return self._zygote

    async def build(
        self, order: BuildOrder, moved: Callable[[BuildPhase], None]
    ) -> tuple[Outcome, float]:
        """Carry one attempt out; return its outcome and the compiler's time in seconds.

        Parameters
        ----------
        moved
            Called when the attempt goes on to COMPILING and to STORING.

        Raises
        ------
        FarmError
            The attempt failed outside the compiler; report it as the outcome.
        """
        self._check(order)
        if not order.code:
            await _persist(lambda: self.cache.fetch(order.function))
        folder = self.work_dir / "builds" / order.attempt_id
        await asyncio.to_thread((folder / "out").mkdir, parents=True, exist_ok=True)
        try:
            zygote = await self.zygote()
            moved(BuildPhase.COMPILING)
            async with contextlib.AsyncExitStack() as stack:
                while len(self._dying) >= DYING * max(1, self.slots):
                    await asyncio.wait(self._dying, return_when=asyncio.FIRST_COMPLETED)
                child = await zygote.fork(self._config(folder))
                # To its end, so that an attempt that is killed ends only when its processes have.
                stack.push_async_callback(self._end, child)
                attempt, path = await self._compile(child, order, stack)
                moved(BuildPhase.STORING)
                if attempt.WhichOneof("outcome") == "error":
                    if attempt.error.details.get("blob") == order.function.sha256:
                        self.cache.forget(order.function)  # damaged: the next attempt fetches it
                    return failed_from_proto(attempt.error), attempt.seconds
                built = _built(attempt.module)
                if path is not None:
                    await _persist(lambda: self.cache.store(path, built.object))
                return built, attempt.seconds
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _end(self, child: Child) -> None:
        """Kill a child and wait for its end, but not for that of a room whose compiler has answered: it takes long."""
        if not child.answered or child.sandbox is None:
            await finish(child.kill())
            return
        ending = asyncio.create_task(child.kill())
        self._dying.add(ending)
        ending.add_done_callback(self._dying.discard)

    def _config(self, folder: Path) -> dict[str, object]:
        return {
            "cache": str(self.cache.root),
            "out": str(folder / "out"),
            "log": str(folder / "output.log"),
            "address_space_bytes": ADDRESS_SPACE_BYTES,
        }

    async def close(self) -> None:
        """End the zygote with every child."""
        async with self._starting:
            if self._zygote is not None:
                await self._zygote.close()
                self._zygote = None
        if self._dying:
            await asyncio.wait(self._dying)

    def _check(self, order: BuildOrder) -> None:
        family = Target.parse(order.target, foreign=True).family
        if family not in self.families:
            raise InfrastructureError(
                f"build {order.symbol}: this agent does not build {family} (it builds "
                f"{', '.join(self.families) or 'nothing'}); send it elsewhere"
            )

    async def _compile(
        self, child: Child, order: BuildOrder, stack: contextlib.AsyncExitStack
    ) -> tuple[agent_pb2.BuildAttempt, Path | None]:
        """Return what the compiler says, and a path to the object, None if it says that too; `stack` closes it.

        The child is then dying, which takes longer than to store what it made.
        """
        keep_off(child.pid)
        await child.send(_task(order).SerializeToString())
        frame = await child.receive()
        if frame is None:
            return _crashed(order, child, await finish(child.kill())), None
        attempt = _excused(order, child, _attempt(order, frame))
        path = None
        if attempt.WhichOneof("outcome") == "module" and not attempt.module.data:
            path = stack.enter_context(child.result(_built(attempt.module).object))
        child.answered = True
        child.start_to_kill()
        return attempt, path


async def _persist(transfer: Callable[[], Awaitable[object]]) -> None:
    """Try a transfer until it succeeds or fails for a reason that waiting does not mend.

    A tracker that is away or full is waited for; the core bounds the wait: it kills an attempt whose transfer takes too
    long. What is wrong here, such as a full disk, is tried a few times: another agent may do better.
    """
    backoff = Backoff(ceiling_s=2.0)
    left = TRANSFER_TRIES
    while True:
        try:
            await transfer()
        except FarmError as error:
            left -= 0 if isinstance(error, (TrackerUnreachable, StoreFull)) else 1
            if not error.retryable or left <= 0:
                raise
        else:
            return
        await asyncio.sleep(backoff.next_s())


def _task(order: BuildOrder) -> agent_pb2.BuildTask:
    item = build_pb2.BuildItem(
        kind=_KIND_OF_NAME[order.kind],
        target=order.target,
        symbol=order.symbol,
        function=digest_to_proto(order.function),
        code=order.code,
    )
    return agent_pb2.BuildTask(attempt_id=order.attempt_id, item=item, limit_s=order.limit_s)


def _built(module: build_pb2.Module) -> Built:
    return Built(
        object=digest_from_proto(module.object),
        format=module.format,
        format_version=module.format_version,
        requires=tuple(module.requires),
        toolchain=module.toolchain,
        signature=module.signature,
        data=module.data,
    )


def _attempt(order: BuildOrder, frame: bytes) -> agent_pb2.BuildAttempt:
    try:
        attempt = agent_pb2.BuildAttempt.FromString(frame)
    except DecodeError as error:
        raise BuildFailed(
            f"{order.symbol} for {order.target}: the compiler broke the worker's channel; report the function"
        ) from error
    if attempt.attempt_id != order.attempt_id or attempt.WhichOneof("outcome") is None:
        raise BuildFailed(
            f"{order.symbol} for {order.target}: the compiler answered for something else; report the function"
        )
    data = attempt.module.data
    if data and (
        len(data) > MAX_INLINE_OBJECT_BYTES
        or digest_to_proto(digest_of(data)) != attempt.module.object
    ):
        raise BuildFailed(
            f"{order.symbol} for {order.target}: the compiler's object is not what it says; report the function"
        )
    return attempt


def _crashed(order: BuildOrder, child: Child, status: int) -> agent_pb2.BuildAttempt:
    facts = describe_status(status) | dict(child.exceeded)
    excuse = child.starvation.excuse(facts.get("signal", ""))
    if not excuse and (child.unheard or not child.zygote.alive):
        excuse = "its worker was ended from outside"
    if excuse:
        return _of_the_farm(order, excuse)
    how = facts.get("signal") or f"exit code {facts['exit_code']}"
    if "limit" in facts:
        how += f", past its limit on {facts['limit']}"
    elif facts.get("signal") == "SIGKILL" and child.starvation.is_blind:
        how += f"; {UNKNOWN}"
    error = BuildFailed(
        f"{order.symbol} for {order.target}: the compiler crashed ({how}); report the function",
        **facts,
    )
    return agent_pb2.BuildAttempt(attempt_id=order.attempt_id, error=error_to_proto(error))


def _excused(
    order: BuildOrder, child: Child, attempt: agent_pb2.BuildAttempt
) -> agent_pb2.BuildAttempt:
    """Return an attempt, its error put on the host if that killed a process that the compiler had started."""
    if attempt.WhichOneof("outcome") != "error":
        return attempt
    excuse = child.starvation.excuse(attempt.error.details.get("signal", ""))
    return _of_the_farm(order, excuse) if excuse else attempt


def _of_the_farm(order: BuildOrder, excuse: str) -> agent_pb2.BuildAttempt:
    error = InfrastructureError(f"{order.symbol} for {order.target}: {excuse}; build again")
    return agent_pb2.BuildAttempt(attempt_id=order.attempt_id, error=error_to_proto(error))
