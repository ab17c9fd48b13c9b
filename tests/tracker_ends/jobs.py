"""Jobs: runs that wait for the test, and how jobs end."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import pytest

from farm.api.v1 import job_pb2
from farm.rpc import error_from_rpc


class Gate:
    """Runs that wait until they are let go."""

    def __init__(self):
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.outcome = job_pb2.JobResult(target="t")

    async def __call__(self, task):
        self.started.set()
        await self.go.wait()
        return self.outcome


async def until(condition, limit_s=60.0):
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def refused(kind):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield
    assert type(error_from_rpc(caught.value)) is kind


def endings(job):
    return (
        job_pb2.JobState.Name(job.state),
        job_pb2.Outcome.Name(job.outcome),
        job_pb2.Verdict.Name(job.verdict),
    )


COMPLETED = "JOB_STATE_TERMINAL", "OUTCOME_COMPLETED"
PASS = (*COMPLETED, "VERDICT_PASS")
FAIL = (*COMPLETED, "VERDICT_FAIL")


def states(job):
    return [
        job_pb2.AttemptState.Name(it.state).removeprefix("ATTEMPT_STATE_") for it in job.attempts
    ]
