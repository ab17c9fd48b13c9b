"""Run jobs as clients see them: submit, look, wait, read logs, cancel.

Owns: what is checked of a spec before it is promised, keeping specs small, streams that follow a job.
Does not own: what becomes of a job (`state.jobs`), messages of the service (`service.job`).

Invariant: nothing is shown before it is stored: a look waits until all that it shows is.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farm.api.v1 import job_pb2
from farm.core.ids import JobId
from farm.core.limits import (
    DEFAULT_LIMIT_S,
    MAX_INLINE_BYTES,
    MAX_JOB_LIMIT_S,
    MAX_RANK,
    MAX_REPEAT,
    MIN_LIMIT_S,
)
from farm.errors import InvalidInput, NotFound
from farm.measuring.checks import blobs_named, check_compare, check_subject
from farm.measuring.wire import options_from_proto
from farm.rpc import digest_from_proto, digest_to_proto
from farm_tracker.run_rows import parse_selector
from farm_tracker.state.events import JobCancelled, JobSubmitted, JobWatched
from farm_tracker.state.why import Explanation, explain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from farm.api.v1 import tensor_pb2
    from farm.target import Selector
    from farm_tracker.cas import BlobStore
    from farm_tracker.state.commands import JobAccepted
    from farm_tracker.state.demand import Variant
    from farm_tracker.state.run import LogPart, RunAttempt, RunJob
    from farm_tracker.tracker import Tracker
    from farm_tracker.variants import Variants

MAX_INPUTS = 256
LOOKED_AT_ONCE = 1000
"""Jobs of a long list that are looked at without a pause for others."""
SMALL_SPEC_BYTES = 16 << 10
"""Inputs of larger specs become blobs, so that a hundred thousand queued jobs fit into memory."""

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")


@dataclass(frozen=True, slots=True)
class Wish:
    """A checked submit, less its spec."""

    account: str
    client_key: str
    priority: int
    queue_limit_s: float
    wait_for_device: bool
    cancel_when_unwatched: bool


@dataclass(frozen=True, slots=True)
class JobView:
    """A job and its attempts at one moment, all of it stored."""

    job: RunJob
    attempts: tuple[RunAttempt, ...]
    epoch_s: float
    """When the tracker's clock was 0, in seconds since the Unix epoch."""

    def at_wall(self, at: float | None) -> float:
        """Return a point in time in seconds since the Unix epoch; 0 for none."""
        return 0.0 if at is None else self.epoch_s + at


class Jobs:
    """The jobs of one tracker."""

    def __init__(self, tracker: Tracker, blobs: BlobStore, variants: Variants) -> None:
        self._tracker = tracker
        self._blobs = blobs
        self._variants = variants

    async def submit(self, wish: Wish, spec: job_pb2.RunSpec) -> JobAccepted:
        """Promise to run something; return once the promise is stored.

        Raises
        ------
        InvalidInput, NotFound
            The spec is malformed, or a blob that it names is absent, or the artifact has no such function.
        ArtifactError
            The artifact is none, or damaged.
        NoVariant
            No device that matches runs what the artifact has.
        StoreFull
            The disk is too full to promise anything new.
        NobodyCanServe, QuotaExceeded
            As `state.jobs.submit`.
        """
        content = _content(wish, spec)
        variants: tuple[Variant, ...] = ()
        if (wish.account, wish.client_key) not in self._tracker.state.client_jobs:
            self._tracker.check_room()
            check_spec(spec)
            await asyncio.to_thread(self._settle_blobs, spec)
            variants = await self._variants.of(digest_from_proto(spec.artifact), spec.symbol)
        return await self._tracker.submit(
            JobSubmitted(
                job_id=JobId(self._tracker.ids("job")),
                account=wish.account,
                client_key=wish.client_key,
                content=content,
                selector=parse_selector(spec.selector),
                run=spec.SerializeToString(deterministic=True),
                limit_s=spec.limit_s or DEFAULT_LIMIT_S,
                priority=wish.priority,
                queue_limit_s=wish.queue_limit_s,
                wait_for_device=wish.wait_for_device,
                cancel_when_unwatched=wish.cancel_when_unwatched,
                variants=variants,
            )
        )

    def find(self, job_id: str) -> RunJob:
        """Return a job; raises NotFound."""
        job = self._tracker.state.run_jobs.get(JobId(job_id))
        if job is None:
            raise self._unknown(job_id)
        return job

    def _unknown(self, job_id: str) -> NotFound:
        """Return why there is no job of this id, as far as the farm's diary tells."""
        kept = f"{self._tracker.state.limits.job_retain_s / 3600:g} h after their end (`farm up --keep-jobs`)"
        for note in reversed(self._tracker.state.notes):
            if note.kind == "job.ended" and note.subject == job_id:
                ended = time.strftime(
                    "%Y-%m-%d %H:%M:%S", time.gmtime(self._tracker.epoch_s + note.at)
                )
                return NotFound(
                    f"job {job_id[:80]}: it ended at {ended} UTC ({note.text}) and was deleted since, with its log and "
                    f"results: jobs are kept for {kept}; submit it again",
                    job_id=job_id[:80],
                )
        return NotFound(
            f"job {job_id[:80]}: unknown; there never was one of this id, or it was deleted: jobs are kept for "
            f"{kept}; see `farm jobs --all`",
            job_id=job_id[:80],
        )

    async def look(self, job_id: str) -> JobView:
        """Return a job as it is stored; raises NotFound."""
        view = self._view(self.find(job_id))
        await self._tracker.settled()
        return view

    async def listed(self, account: str, *, include_ended: bool, limit: int) -> list[JobView]:
        """Return jobs, newest first; others get their turn while many are looked through."""
        found: list[JobView] = []
        known = self._tracker.state.run_jobs
        for number, job_id in enumerate(reversed(list(known)), 1):
            if len(found) >= limit:
                break
            job = known.get(job_id)  # it may have been forgotten meanwhile
            if job is not None and (include_ended or job.is_open) and account in ("", job.account):
                found.append(self._view(job))
            if number % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
        await self._tracker.settled()
        return found

    async def follow(self, job_id: str) -> AsyncGenerator[JobView, None]:
        """Yield the job as it is, then each change, until it has ended.

        Raises
        ------
        NotFound
            There is no such job, or it was forgotten.
        InfrastructureError
            The tracker stops.
        """
        watched = self.find(job_id).cancel_when_unwatched
        if watched:
            self._tracker.post(JobWatched(JobId(job_id), True))
        changed = self._tracker.watch_job(JobId(job_id))
        shown = None
        try:
            while True:
                changed.clear()
                view = await self.look(job_id)
                told = (view.job.state, view.job.attempt_ids, view.attempts, view.job.log)
                if told != shown:
                    shown = told
                    yield view
                if not view.job.is_open:
                    return
                await self._next(changed)
        finally:
            self._tracker.unwatch_job(JobId(job_id), changed)
            if watched:
                self._tracker.post_last(JobWatched(JobId(job_id), False))

    async def logs(
        self, job_id: str, from_chunk: int
    ) -> AsyncGenerator[tuple[int, LogPart, bytes], None]:
        """Yield (number, part, bytes) of each chunk of a job's log from a number on, until it has ended.

        Raises
        ------
        NotFound, BlobCorrupt
            The job, or a chunk in the store, is absent; or the chunk is damaged.
        """
        self.find(job_id)
        changed = self._tracker.watch_job(JobId(job_id))
        number = max(1, from_chunk)
        try:
            while True:
                changed.clear()
                view = await self.look(job_id)
                for part in view.job.log[number - 1 :]:
                    data = b""
                    if part.blob is not None:
                        data = await asyncio.to_thread(self._blobs.get, part.blob)
                    yield number, part, data
                    number += 1
                if not view.job.is_open:
                    return
                await self._next(changed)
        finally:
            self._tracker.unwatch_job(JobId(job_id), changed)

    async def cancel(self, job_id: str, reason: str, actor: str) -> JobView:
        """End a job; return it once that is stored."""
        self.find(job_id)
        await self._tracker.post(JobCancelled(JobId(job_id), reason, actor))
        return await self.look(job_id)

    def why(self, job_id: str, seen: Selector) -> Explanation:
        """Return what a job waits for, naming no device that `seen` does not match; raises NotFound."""
        now = self._tracker.clock.now()
        return explain(self._tracker.state, self.find(job_id), now, seen)

    def _view(self, job: RunJob) -> JobView:
        attempts = tuple(self._tracker.state.run_attempts[it] for it in job.attempt_ids)
        return JobView(job, attempts, self._tracker.epoch_s)

    async def _next(self, changed: asyncio.Event) -> None:
        """Wait for a change, or for the tracker's own end."""
        waiting = asyncio.ensure_future(changed.wait())
        try:
            ends: set[asyncio.Future[Any]] = {waiting, self._tracker.ending}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise self._tracker.ending.result()
        finally:
            waiting.cancel()

    def _settle_blobs(self, spec: job_pb2.RunSpec) -> None:
        """Check that every blob is there; store the inputs of a large spec as blobs. Blocking."""
        compare = spec.compare
        if spec.ByteSize() > SMALL_SPEC_BYTES:
            for tensor in (*spec.inputs, *compare.workload.inputs):
                if tensor.WhichOneof("content") == "inline":
                    tensor.blob.CopyFrom(digest_to_proto(self._blobs.put(tensor.inline)))
        wanted = [spec.artifact, *(it.blob for it in spec.inputs if it.HasField("blob"))]
        digests = [
            *map(digest_from_proto, wanted),
            *blobs_named(compare.subjects, compare.workload),
        ]
        missing = self._blobs.missing(digests)
        if missing:
            raise NotFound(f"job: {missing[0]} is not in the store; send it first")


def check_spec(spec: job_pb2.RunSpec) -> None:
    """Check everything of a spec that can be known without its blobs; raises InvalidInput."""
    parse_selector(spec.selector)
    digest_from_proto(spec.artifact)
    if not _SYMBOL.fullmatch(spec.symbol):
        raise InvalidInput(f"job: malformed symbol ({spec.symbol[:80]!r}); use a C identifier")
    if not 0 <= spec.repeat <= MAX_REPEAT:
        raise InvalidInput(f"job: repeat {spec.repeat} is out of range; send 0 to {MAX_REPEAT}")
    if not MIN_LIMIT_S <= (spec.limit_s or DEFAULT_LIMIT_S) <= MAX_JOB_LIMIT_S:
        raise InvalidInput(
            f"job: limit_s {spec.limit_s:g} is out of range; send {MIN_LIMIT_S:g} to {MAX_JOB_LIMIT_S:g}"
        )
    check_tensors(spec.inputs, "job: input")
    if spec.HasField("compare"):
        _check_compare(spec)


def _check_compare(spec: job_pb2.RunSpec) -> None:
    compare = spec.compare
    check_compare(compare)
    options_from_proto(compare.options)
    check_tensors(compare.workload.inputs, "job: input")
    first = compare.subjects[0]
    named = [*compare.subjects]
    if compare.workload.HasField("reference"):
        check_subject(compare.workload.reference)
        named.append(compare.workload.reference)
    if any(subject.artifact.inline for subject in named):
        raise InvalidInput("job: an artifact travels inside; store it and send its digest alone")
    if (spec.artifact, spec.symbol) != (first.artifact.digest, first.symbol):
        raise InvalidInput(
            "job: artifact and symbol are not those of the first candidate; send those"
        )
    if spec.inputs or spec.repeat:
        raise InvalidInput(
            "job: a comparison has its inputs in its workload and no repeat; drop them"
        )


def check_tensors(tensors: Sequence[tensor_pb2.Tensor], what: str) -> None:
    """Check the form of arrays; raises InvalidInput."""
    if len(tensors) > MAX_INPUTS:
        raise InvalidInput(f"{what}s: {len(tensors)} arrays; send at most {MAX_INPUTS}")
    for index, tensor in enumerate(tensors):
        kind = tensor.WhichOneof("content")
        if kind is None or not 0 < len(tensor.dtype) <= 16 or len(tensor.shape) > MAX_RANK:
            raise InvalidInput(f"{what} {index}: malformed array; send dtype, shape and content")
        if any(extent < 0 for extent in tensor.shape):
            raise InvalidInput(f"{what} {index}: negative extent ({list(tensor.shape)}); send >= 0")
        if kind == "blob":
            digest_from_proto(tensor.blob)
        elif len(tensor.inline) > MAX_INLINE_BYTES:
            raise InvalidInput(
                f"{what} {index}: {len(tensor.inline)} bytes inline; send a blob above {MAX_INLINE_BYTES}"
            )


def _content(wish: Wish, spec: job_pb2.RunSpec) -> str:
    """Return a digest of everything that is asked for, whoever asks under whichever key."""
    options = (
        wish.priority,
        wish.queue_limit_s,
        wish.wait_for_device,
        wish.cancel_when_unwatched,
    )
    data = repr(options).encode() + spec.SerializeToString(deterministic=True)
    return hashlib.sha256(data).hexdigest()
