"""Its jobs, which go on when a test says so."""

from __future__ import annotations

import threading

import grpc
import numpy as np

from farm.api.v1 import error_pb2, job_pb2, job_pb2_grpc, tensor_pb2
from farm.errors import NotFound
from small_tracker.blobs import fail

TARGET = "llvm -mtriple=x86_64-linux-gnu -mcpu=generic"


class Jobs(job_pb2_grpc.JobServiceServicer):
    """Jobs that go on when a test says so; a stream ends, broken, after `break_after` messages."""

    def __init__(self, blobs):
        self.blobs = blobs
        self.changed = threading.Condition()
        self.jobs = {}
        self.keys = {}
        self.chunks = {}
        self.submits = 0
        self.lose_answers = 0
        self.break_after = None
        self.streams = 0
        self.told = []
        """States that waiting clients were told, in order."""
        self.repeat_chunks = False
        self.skip_chunk = None
        self.whys = {}
        self.cancelled = []

    def change(self, job_id, **fields):
        """Give a job other fields, and tell whoever waits."""
        with self.changed:
            for name, value in fields.items():
                if isinstance(value, int | str | float):
                    setattr(self.jobs[job_id], name, value)
                elif isinstance(value, list):
                    getattr(self.jobs[job_id], name).extend(value)
                else:
                    getattr(self.jobs[job_id], name).CopyFrom(value)
            self.changed.notify_all()

    def print(self, job_id, data, *, truncated=False):
        """Let a kernel print a chunk."""
        with self.changed:
            chunks = self.chunks.setdefault(job_id, [])
            number = len(chunks) + 1
            chunks.append(
                job_pb2.LogChunk(number=number, data=data, truncated=truncated, attempt_id="a-1")
            )
            self.jobs[job_id].log_chunks = number
            self.changed.notify_all()

    def passed(self, job_id, values=(1, 2, 3, 4), samples_ns=(), device_id="cpu-1"):
        """End a job with a result."""
        data = np.asarray(values, "<i4")
        attempt = job_pb2.JobAttempt(
            attempt_id="a-1",
            device_id=device_id,
            agent_id="agent-1",
            epoch=7,
            state=job_pb2.ATTEMPT_STATE_DONE,
            started_at=1e9,
            ended_at=1e9 + 2,
        )
        tensor = tensor_pb2.Tensor(dtype="int32", shape=data.shape, inline=data.tobytes())
        self.change(
            job_id,
            attempts=[attempt],
            result=job_pb2.JobResult(outputs=[tensor], samples_ns=samples_ns, target=TARGET),
            verdict=job_pb2.VERDICT_PASS,
            outcome=job_pb2.OUTCOME_COMPLETED,
            ended_at=1e9 + 3,
            state=job_pb2.JOB_STATE_TERMINAL,
        )

    def failed(self, job_id, outcome, verdict=0, error=None):
        """End a job without a result."""
        fields = {"error": error_pb2.Error(code=error.code, message=error.message)} if error else {}
        self.change(
            job_id, outcome=outcome, verdict=verdict, state=job_pb2.JOB_STATE_TERMINAL, **fields
        )

    def Submit(self, request, context):
        self.submits += 1
        self.blobs.need(request.run.artifact, context)
        for tensor in request.run.inputs:
            if tensor.WhichOneof("content") == "blob":
                self.blobs.need(tensor.blob, context)
        with self.changed:
            existed = request.client_key in self.keys
            job_id = self.keys.setdefault(request.client_key, f"job-{len(self.keys) + 1}")
            if not existed:
                self.jobs[job_id] = job_pb2.Job(
                    job_id=job_id,
                    client_key=request.client_key,
                    account=request.account or "own",
                    priority=request.priority,
                    state=job_pb2.JOB_STATE_QUEUED,
                    run=request.run,
                    submitted_at=1e9,
                )
                self.request = request
        if self.lose_answers:
            self.lose_answers -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
        return job_pb2.SubmitResponse(job_id=job_id, existed=existed)

    def _find(self, job_id, context):
        job = self.jobs.get(job_id)
        if job is None:
            fail(context, NotFound(f"job {job_id}: unknown; list them with `farm jobs`"))
        return job

    def GetJob(self, request, context):
        return self._find(request.job_id, context)

    def Wait(self, request, context):
        self._find(request.job_id, context)
        self.streams += 1
        last, sent = None, 0
        while context.is_active():
            with self.changed:
                job = self.jobs[request.job_id]
                if job == last:
                    self.changed.wait(0.05)
                    continue
                last = job_pb2.Job()
                last.CopyFrom(job)
            self.told.append(last.state)
            yield last
            sent += 1
            if last.state == job_pb2.JOB_STATE_TERMINAL:
                return
            if sent == self.break_after:
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    def Logs(self, request, context):
        self.streams += 1
        upcoming, sent = max(1, request.from_chunk), 0
        if self.repeat_chunks:
            upcoming = max(1, upcoming - 1)
        while context.is_active():
            with self.changed:
                chunks = self.chunks.get(request.job_id, [])
                if len(chunks) < upcoming:
                    if self.jobs[request.job_id].state == job_pb2.JOB_STATE_TERMINAL:
                        return
                    self.changed.wait(0.05)
                    continue
                chunk = chunks[upcoming - 1]
            upcoming += 1
            if chunk.number == self.skip_chunk:
                continue
            yield chunk
            sent += 1
            if sent == self.break_after:
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")

    def Cancel(self, request, context):
        job = self._find(request.job_id, context)
        self.cancelled.append((request.job_id, request.reason))
        if job.state != job_pb2.JOB_STATE_TERMINAL:
            self.failed(request.job_id, job_pb2.OUTCOME_CANCELLED)
        return self.jobs[request.job_id]

    def ListJobs(self, request, context):
        found = [
            job
            for job in reversed(self.jobs.values())
            if (request.include_terminal or job.state != job_pb2.JOB_STATE_TERMINAL)
            and request.account in ("", job.account)
        ]
        answer = job_pb2.ListJobsResponse(jobs=found[: request.limit])
        for job in answer.jobs:
            del job.run.inputs[:]
            job.ClearField("result")
        return answer

    def Why(self, request, context):
        self._find(request.job_id, context)
        return self.whys.get(
            request.job_id, job_pb2.WhyResponse(reason="it runs", estimate_s=-1, position=0)
        )
