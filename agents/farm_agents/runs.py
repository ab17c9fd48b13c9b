"""Run attempts on the agent's side: fetch, load, run, keep, store.

Owns: one attempt from order to outcome, what it prints, and bringing results of earlier attempts to the store.
Does not own: which attempts run and their deadlines (`farm_agents.state.runs`), the worker (`farm_agents.session`),
files of results (`farm_agents.outbox`).

Invariant: an attempt's outcome is on the disk, and all its blobs are in the store, before RunEnded says it; its worker
is gone before STORING.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from google.protobuf.message import DecodeError

from farm.api.v1 import agent_pb2, job_pb2, measure_pb2, session_pb2
from farm.core.clock import Clock
from farm.core.digest import Digest
from farm.core.ids import AttemptId, DeviceId, Epoch, JobId, LeaseId
from farm.core.tasks import finish
from farm.core.wire import digest_from_proto, digest_to_proto, error_to_proto
from farm.errors import (
    Cancelled,
    FarmError,
    InfrastructureError,
    InvalidInput,
    NotFound,
    TrackerUnreachable,
)
from farm.measuring.checks import blobs_named
from farm_agents.backoff import Backoff
from farm_agents.cache import BlobCache
from farm_agents.failures import failed_from, failed_from_proto
from farm_agents.outbox import Outbox, digests_of
from farm_agents.printed import FIRST_WAIT_S, GROWTH, MAX_WAIT_S, Printed
from farm_agents.requests import blobs_of
from farm_agents.session import Session
from farm_agents.state.messages import Event, RunEnded, RunLogged, RunMoved
from farm_agents.state.model import Failed
from farm_agents.state.run import KEEP_LIMIT_S, Run, RunOrder, RunPhase, RunResult

FETCH_TRIES = 3
STORE_WAIT_S = 2.0

Spawn = Callable[[Awaitable[None]], "asyncio.Task[None]"]

_LOG = logging.getLogger("farm_agents")


class Runner:
    """Carries out what the core commands about runs.

    Parameters
    ----------
    tell
        Takes events for the core; called in the event loop's thread.
    """

    def __init__(
        self, cache: BlobCache, outbox: Outbox, clock: Clock, tell: Callable[[Event], None]
    ) -> None:
        self._cache = cache
        self._outbox = outbox
        self._clock = clock
        self._tell = tell
        self._running: dict[AttemptId, asyncio.Task[None]] = {}
        self._delivering: set[AttemptId] = set()

    def load(self, now: float) -> tuple[list[Run], list[agent_pb2.RunAttempt]]:
        """Return what earlier attempts came to, and which of them have to be `deliver`ed; blocks.

        Parameters
        ----------
        now
            The agent's clock.

        Raises
        ------
        OSError
            The outbox cannot be read.
        """
        found = self._outbox.load()
        runs = [_restored(attempt, now + KEEP_LIMIT_S) for attempt in found]
        self._delivering = {run.order.attempt_id for run in runs if run.phase is RunPhase.STORING}
        return runs, [it for it in found if it.attempt_id in self._delivering]

    def started(self, attempt_id: AttemptId, task: asyncio.Task[None]) -> None:
        """Note the task of an attempt, so that it can be killed; a task that is killed still answers."""
        self._running[attempt_id] = task
        task.add_done_callback(functools.partial(self._task_ended, attempt_id))

    def kill(self, attempt_id: AttemptId) -> None:
        """Kill an attempt; RunEnded follows."""
        task = self._running.get(attempt_id)
        if task is not None:
            task.cancel()

    async def drop(self, attempt_id: AttemptId) -> None:
        """Forget an attempt that the tracker knows all about."""
        try:
            await asyncio.to_thread(self._outbox.remove, attempt_id)
        except OSError as error:
            _LOG.warning("run %s: cannot be removed from the outbox (%s)", attempt_id, error)

    async def delivered(self, limit_s: float) -> None:
        """Wait until no result waits for the store, at most so long."""
        try:
            async with asyncio.timeout(limit_s):
                while tasks := [
                    self._running[it] for it in self._delivering if it in self._running
                ]:
                    await asyncio.wait(tasks)
        except TimeoutError:
            pass

    async def run(self, order: RunOrder, session: Session) -> None:
        """Carry out one attempt on the worker of its lease's session."""
        attempt = agent_pb2.RunAttempt(
            attempt_id=order.attempt_id, epoch=order.epoch, started_at=self._clock.wall()
        )
        printed = Printed(order.attempt_id, session.log, self._outbox)
        attempt.running = True
        following: asyncio.Task[None] | None = None
        try:
            await asyncio.to_thread(self._outbox.begin, attempt)
            following = asyncio.create_task(self._follow(printed))
            result = await self._execute(order, session)
            attempt.result.CopyFrom(result)
            self._tell(RunMoved(order.attempt_id, RunPhase.ENDING))
        except (FarmError, OSError) as error:
            failure = _failure(order, error)
            attempt.error.CopyFrom(error_to_proto(failure))
            if isinstance(failure, InfrastructureError):
                self._tell(RunMoved(order.attempt_id, RunPhase.ENDING))
        finally:
            await finish(_end(session, following))
        await self._keep(attempt, printed)
        await self.deliver(attempt)

    async def deliver(self, attempt: agent_pb2.RunAttempt) -> None:
        """Bring what an attempt names to the store, however long the tracker is away; then end the attempt."""
        attempt_id = AttemptId(attempt.attempt_id)
        self._delivering.add(attempt_id)
        digests = [Digest(sha256, size_bytes) for sha256, size_bytes in digests_of(attempt)]
        outcome = _outcome(attempt)
        is_whole = True
        try:
            await self._store(attempt_id, digests)
        except FarmError as error:
            is_whole = False
            outcome = failed_from(
                InfrastructureError(f"run {attempt_id}: its result is lost ({error.message})")
            )
        self._delivering.discard(attempt_id)
        self._running.pop(attempt_id, None)
        self._tell(
            RunEnded(
                attempt_id,
                outcome,
                attempt.started_at,
                attempt.ended_at,
                tuple(map(digest_from_proto, attempt.log_chunks)) if is_whole else None,
                attempt.log_truncated,
            )
        )

    async def _execute(self, order: RunOrder, session: Session) -> job_pb2.JobResult:
        """Return what the kernel gave; its large outputs are in the outbox."""
        spec = _spec(order)
        if spec.HasField("compare"):
            return await self._compare(order, spec.compare, session)
        artifact = digest_from_proto(spec.artifact)
        await self._fetch(order, [artifact, *blobs_of(spec.inputs)])
        self._tell(RunMoved(order.attempt_id, RunPhase.LOADING))
        loaded = await session.load(artifact)
        self._tell(RunMoved(order.attempt_id, RunPhase.RUNNING))
        call = session_pb2.CallRequest(
            module_id=loaded.module_id,
            symbol=spec.symbol,
            inputs=spec.inputs,
            repeat=spec.repeat,
            limit_s=order.limit_s,
        )

        async def keep(path: Path, digest: Digest) -> None:
            await asyncio.to_thread(self._outbox.keep_file, order.attempt_id, path, digest)

        called = await session.call(call, keep)
        targets = {function.symbol: function.target for function in loaded.functions}
        return job_pb2.JobResult(
            outputs=called.outputs,
            samples_ns=called.samples_ns,
            target=targets.get(spec.symbol, ""),
        )

    async def _compare(
        self, order: RunOrder, request: measure_pb2.CompareRequest, session: Session
    ) -> job_pb2.JobResult:
        """Return what came of a comparison, whatever that is."""
        await self._fetch(order, list(blobs_named(request.subjects, request.workload)))
        self._tell(RunMoved(order.attempt_id, RunPhase.LOADING))
        self._tell(RunMoved(order.attempt_id, RunPhase.RUNNING))
        request.options.limit_s = order.limit_s
        found = await session.compare(request)
        target = next((it.target for it in found.measurements if it.target), "")
        return job_pb2.JobResult(comparison=found, target=target)

    async def _fetch(self, order: RunOrder, digests: Sequence[Digest]) -> None:
        backoff = Backoff(ceiling_s=STORE_WAIT_S)
        left = FETCH_TRIES
        while True:
            try:
                await self._cache.fetch_all(digests)
            except NotFound as error:
                raise InfrastructureError(
                    f"run {order.attempt_id}: what it needs is not in the store ({error.message})"
                ) from error
            except FarmError as error:
                left -= 0 if isinstance(error, TrackerUnreachable) else 1
                if not error.retryable or left <= 0:
                    raise
            else:
                return
            await asyncio.sleep(backoff.next_s())

    async def _follow(self, printed: Printed) -> None:
        """Store what a run prints while it runs."""
        wait_s = FIRST_WAIT_S
        while True:
            await asyncio.sleep(wait_s)
            try:
                news = await finish_in_thread(printed.take)
            except InfrastructureError as error:
                _LOG.warning(
                    "%s", error.message
                )  # its end will say so, if that cannot be kept either
                return
            if not news:
                continue
            wait_s = min(MAX_WAIT_S, wait_s * GROWTH)
            await self._store(printed.attempt_id, printed.chunks[-1:])
            self._tell(RunLogged(printed.attempt_id, tuple(printed.chunks), printed.is_cut))

    async def _keep(self, attempt: agent_pb2.RunAttempt, printed: Printed) -> None:
        """Have an outcome on the disk; without room for it, it is the farm's fault."""
        attempt.ended_at = self._clock.wall()
        try:
            await finish_in_thread(printed.take_all)
        except InfrastructureError as error:
            attempt.error.CopyFrom(error_to_proto(error))
        attempt.log_chunks.extend(map(digest_to_proto, printed.chunks))
        attempt.log_truncated = printed.is_cut
        try:
            await finish_in_thread(functools.partial(self._outbox.finish, attempt))
        except InfrastructureError as error:
            attempt.error.CopyFrom(error_to_proto(error))
        self._delivering.add(AttemptId(attempt.attempt_id))
        self._tell(RunMoved(AttemptId(attempt.attempt_id), RunPhase.STORING))

    async def _store(self, attempt_id: AttemptId, digests: Iterable[Digest]) -> None:
        """Have blobs of the outbox in the store; InfrastructureError if one is in neither."""
        wanted = list(dict.fromkeys(digests))
        backoff = Backoff(ceiling_s=STORE_WAIT_S)
        while wanted:
            gone: list[Digest] = []
            try:
                for digest in await self._cache.missing(wanted):
                    path = await asyncio.to_thread(self._outbox.blob, attempt_id, digest)
                    if path is None:
                        gone.append(digest)
                    else:
                        await self._cache.store(path, digest)
                wanted = []
            except FarmError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(backoff.next_s())
            if gone:
                raise InfrastructureError(
                    f"blob {gone[0]}: damaged or absent in the agent's outbox; try again"
                )

    def _task_ended(self, attempt_id: AttemptId, task: asyncio.Task[None]) -> None:
        if self._running.get(attempt_id) is not task:
            return
        del self._running[attempt_id]
        self._delivering.discard(attempt_id)
        if task.cancelled():
            now = self._clock.wall()
            error = Cancelled(f"run {attempt_id}: was killed; submit it again")
            self._tell(RunEnded(attempt_id, failed_from(error), now, now))


async def finish_in_thread(work: Callable[[], object]) -> object:
    """Do blocking work in a thread, to its end also if the task is cancelled meanwhile."""
    return await finish(asyncio.to_thread(work))


async def _end(session: Session, following: asyncio.Task[None] | None) -> None:
    """End the worker, so that nothing is printed any more, then who follows what it prints."""
    await session.stop()
    if following is not None:
        following.cancel()
        await asyncio.wait({following})
        if not following.cancelled() and (error := following.exception()) is not None:
            _LOG.warning("log of a run: %s", error)


def _failure(order: RunOrder, error: FarmError | OSError) -> FarmError:
    if isinstance(error, FarmError):
        return error
    return InfrastructureError(
        f"run {order.attempt_id}: {error}; look at the agent's disk and try again"
    )


def _spec(order: RunOrder) -> job_pb2.RunSpec:
    try:
        return job_pb2.RunSpec.FromString(order.run)
    except DecodeError as error:
        raise InvalidInput(f"run {order.attempt_id}: malformed; submit it again") from error


def _outcome(attempt: agent_pb2.RunAttempt) -> RunResult | Failed:
    if attempt.WhichOneof("outcome") == "result":
        return RunResult(attempt.result.SerializeToString())
    return failed_from_proto(attempt.error)


def _restored(attempt: agent_pb2.RunAttempt, deadline: float) -> Run:
    """Return an attempt of an earlier process; of its order, only what is reported is known."""
    order = RunOrder(
        attempt_id=AttemptId(attempt.attempt_id),
        job_id=JobId(""),
        lease_id=LeaseId(""),
        device_id=DeviceId(""),
        epoch=Epoch(attempt.epoch),
        limit_s=0.0,
        run=b"",
    )
    if any(True for _ in digests_of(attempt)):
        return Run(order, RunPhase.STORING, deadline=deadline)
    return Run(
        order,
        RunPhase.FINISHED,
        outcome=_outcome(attempt),
        log_is_cut=attempt.log_truncated,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
    )
