"""JobService on the wire.

Owns: its messages' checks, and that a caller sees only its account's jobs. Does not own: jobs.

Invariant: an answer was stored before it was given.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from farm.api.v1 import job_pb2, job_pb2_grpc
from farm.core.limits import (
    MAX_KEY_BYTES,
    MAX_LISTED_JOBS,
    MAX_NUMBER,
    MAX_PRIORITY,
    MAX_QUEUE_LIMIT_S,
    MAX_REASON_BYTES,
    MIN_QUEUE_LIMIT_S,
)
from farm_tracker.identity.caller import caller, check_account, labels
from farm_tracker.jobs import JobView, Wish
from farm_tracker.service.convert import check_count, check_range, check_text, failure_to_proto
from farm_tracker.service.streams import errors_to_status
from farm_tracker.state.model import DEFAULT_ACCOUNT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc

    from farm_tracker.jobs import Jobs
    from farm_tracker.state.run import RunAttempt

    Context = grpc.aio.ServicerContext[Any, Any]

MAX_ACCOUNT_BYTES = 128
DEFAULT_QUEUE_LIMIT_S = 86_400.0
DEFAULT_LISTED = 100
SHOWN_AT_ONCE = 50
"""Jobs of a list that are made ready to be sent without a pause for others."""


class JobService(job_pb2_grpc.JobServiceServicer):
    """Serves the jobs of one tracker."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def Submit(
        self, request: job_pb2.SubmitRequest, context: Context
    ) -> job_pb2.SubmitResponse:
        """Promise to run something."""
        async with errors_to_status(context):
            accepted = await self._jobs.submit(_wish(request), request.run)
            return job_pb2.SubmitResponse(job_id=accepted.job_id, existed=accepted.existed)
        raise AssertionError("unreachable")

    async def GetJob(self, request: job_pb2.GetJobRequest, context: Context) -> job_pb2.Job:
        """Return a job."""
        async with errors_to_status(context):
            self._check(request.job_id)
            return job_to_proto(await self._jobs.look(request.job_id))
        raise AssertionError("unreachable")

    async def Wait(
        self, request: job_pb2.WaitRequest, context: Context
    ) -> AsyncIterator[job_pb2.Job]:
        """Give a job whenever it changes."""
        async with errors_to_status(context):
            self._check(request.job_id)
            async with contextlib.aclosing(self._jobs.follow(request.job_id)) as views:
                async for view in views:
                    yield job_to_proto(view)

    async def Logs(
        self, request: job_pb2.LogsRequest, context: Context
    ) -> AsyncIterator[job_pb2.LogChunk]:
        """Give a job's log."""
        async with errors_to_status(context):
            self._check(request.job_id)
            check_count(request.from_chunk, MAX_NUMBER, "from_chunk")
            logs = self._jobs.logs(request.job_id, request.from_chunk)
            async with contextlib.aclosing(logs) as chunks:
                async for number, part, data in chunks:
                    yield job_pb2.LogChunk(
                        number=number,
                        data=data,
                        truncated=part.blob is None,
                        attempt_id=part.attempt_id,
                    )

    async def Cancel(self, request: job_pb2.CancelRequest, context: Context) -> job_pb2.Job:
        """End a job."""
        async with errors_to_status(context):
            self._check(request.job_id)
            reason = check_text(request.reason, "reason", MAX_REASON_BYTES)
            return job_to_proto(await self._jobs.cancel(request.job_id, reason, actor()))
        raise AssertionError("unreachable")

    async def ListJobs(
        self, request: job_pb2.ListJobsRequest, context: Context
    ) -> job_pb2.ListJobsResponse:
        """Return jobs, newest first."""
        async with errors_to_status(context):
            check_count(request.limit, MAX_LISTED_JOBS, "limit")
            found = await self._jobs.listed(
                check_text(request.account, "account", MAX_ACCOUNT_BYTES),
                include_ended=request.include_terminal,
                limit=request.limit or DEFAULT_LISTED,
            )
            answer = job_pb2.ListJobsResponse()
            for start in range(0, len(found), SHOWN_AT_ONCE):
                some = found[start : start + SHOWN_AT_ONCE]
                answer.jobs.extend(job_to_proto(it, with_data=False) for it in some)
                await asyncio.sleep(0)
            return answer
        raise AssertionError("unreachable")

    async def Why(self, request: job_pb2.WhyRequest, context: Context) -> job_pb2.WhyResponse:
        """Return what a job waits for."""
        async with errors_to_status(context):
            self._check(request.job_id)
            found = self._jobs.why(request.job_id, labels())
            return job_pb2.WhyResponse(
                reason=found.reason,
                position=found.position,
                estimate_s=found.estimate_s,
                devices=found.devices,
            )
        raise AssertionError("unreachable")

    def _check(self, job_id: str) -> None:
        check_text(job_id, "job_id", MAX_KEY_BYTES)
        check_account(self._jobs.find(job_id).account)


def actor() -> str:
    """Return what the farm's diary calls whoever makes this request."""
    return caller().account or caller().name()


def job_to_proto(view: JobView, *, with_data: bool = True) -> job_pb2.Job:
    """Return the message for a job, without its inputs and outputs if they are not wanted."""
    job = view.job
    run = job_pb2.RunSpec.FromString(job.run)
    result = job_pb2.JobResult.FromString(job.result) if job.result is not None else None
    if not with_data:
        run.ClearField("inputs")
        if run.HasField("compare"):
            run.compare.workload.ClearField("inputs")
        if result is not None:
            result.ClearField("outputs")
            result.ClearField("comparison")
    return job_pb2.Job(
        job_id=job.job_id,
        client_key=job.client_key,
        account=job.account,
        priority=job.priority,
        state=job_pb2.JobState.Value(f"JOB_STATE_{job.state}"),
        outcome=job_pb2.Outcome.Value(f"OUTCOME_{job.outcome or 'UNSPECIFIED'}"),
        verdict=job_pb2.Verdict.Value(f"VERDICT_{job.verdict or 'UNSPECIFIED'}"),
        run=run,
        attempts=[_attempt(view, it) for it in view.attempts],
        result=result,
        error=failure_to_proto(job.failure) if job.failure else None,
        submitted_at=view.at_wall(job.queued_at),
        ended_at=view.at_wall(job.ended_at),
        log_chunks=len(job.log),
    )


def _attempt(view: JobView, attempt: RunAttempt) -> job_pb2.JobAttempt:
    return job_pb2.JobAttempt(
        attempt_id=attempt.attempt_id,
        device_id=attempt.device_id,
        agent_id=attempt.agent_id,
        epoch=attempt.epoch,
        state=job_pb2.AttemptState.Value(f"ATTEMPT_STATE_{attempt.state}"),
        error=failure_to_proto(attempt.failure) if attempt.failure else None,
        started_at=view.at_wall(attempt.started_at),
        ended_at=view.at_wall(attempt.ended_at),
    )


def _wish(request: job_pb2.SubmitRequest) -> Wish:
    queue_limit_s = request.queue_limit_s or DEFAULT_QUEUE_LIMIT_S
    return Wish(
        account=check_text(request.account, "account", MAX_ACCOUNT_BYTES) or DEFAULT_ACCOUNT,
        client_key=check_text(request.client_key, "client_key", MAX_KEY_BYTES),
        priority=int(check_range(request.priority, -MAX_PRIORITY, MAX_PRIORITY, "priority")),
        queue_limit_s=check_range(
            queue_limit_s, MIN_QUEUE_LIMIT_S, MAX_QUEUE_LIMIT_S, "queue_limit_s"
        ),
        wait_for_device=request.wait_for_device,
        cancel_when_unwatched=request.cancel_when_unwatched,
    )
