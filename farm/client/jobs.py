"""Jobs: durable requests that the farm brings to an end, whoever restarts meanwhile.

Owns: submitting, waiting, reading logs, cancelling, and going on after a broken connection. Does not own: what the
answers mean (`farm.client.job`), when to give up (`farm.client.patience`).

Invariant: a submit that is repeated is one job; a log that is followed across broken connections has no gap and
nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from farm.api.v1 import job_pb2 as pb
from farm.api.v1 import job_pb2_grpc
from farm.artifact import Artifact
from farm.client.calls import Calls
from farm.client.job import JobInfo, JobResult, LogChunk, Why
from farm.client.patience import Patience
from farm.core.ids import random_id
from farm.core.limits import DEFAULT_LIMIT_S
from farm.errors import InfrastructureError, NotFound
from farm.measuring.wire import comparison_from_proto
from farm.rpc import digest_from_proto, digest_to_proto
from farm.target import Selector


class JobCalls(Calls):
    """The part of a client that has to do with jobs."""

    @cached_property
    def _job_stub(self) -> job_pb2_grpc.JobServiceStub:
        return job_pb2_grpc.JobServiceStub(self._channel)

    def submit(
        self,
        artifact: Artifact | Path | str,
        symbol: str,
        arrays: Sequence[Any],
        *,
        selector: str = "",
        repeat: int = 0,
        limit_s: float = DEFAULT_LIMIT_S,
        priority: int = 0,
        account: str = "",
        client_key: str = "",
        wait_for_device: bool = False,
        queue_limit_s: float = 0.0,
        cancel_when_unwatched: bool = False,
    ) -> Job:
        """Ask for one run of a function; returns when the farm has promised to bring it to an end.

        Parameters
        ----------
        artifact
            The artifact or its file; uploaded unless the farm has it, as are large arrays.
        arrays
            One for each parameter that is an input or inout, in order.
        selector
            As in `acquire`.
        repeat
            Timed calls after the first, up to 10,000.
        limit_s
            Time limit of the calls, 0.01 to 495 s: a job has its device for ten minutes at most, all else included.
        priority
            Higher runs first, -100 to 100.
        account
            Who pays; empty: your own.
        client_key
            Names this request: submitting it again, after a crash of this process too, gives the same job. Empty: a
            new one is made.
        wait_for_device
            Queue it even if no device of the farm matches now.
        queue_limit_s
            The job ends as ``time_limit`` if it has not started after so long, up to 30 days; 0: a day.
        cancel_when_unwatched
            Cancel it 60 s after the last `Job.wait` for it has gone.

        Raises
        ------
        NobodyCanServe
            No device of the farm could ever match.
        InvalidInput
            Something is out of range, or the key was used for another request.
        """
        text = str(Selector.parse(selector))

        def run() -> pb.RunSpec:
            return pb.RunSpec(
                selector=text,
                artifact=digest_to_proto(self._store.put_artifact(artifact)),
                symbol=symbol,
                inputs=self._store.tensors(arrays),
                repeat=repeat,
                limit_s=limit_s,
            )

        return self.submit_run(
            run,
            priority=priority,
            account=account,
            client_key=client_key,
            wait_for_device=wait_for_device,
            queue_limit_s=queue_limit_s,
            cancel_when_unwatched=cancel_when_unwatched,
        )

    def submit_run(
        self,
        run: Callable[[], pb.RunSpec],
        *,
        priority: int = 0,
        account: str = "",
        client_key: str = "",
        wait_for_device: bool = False,
        queue_limit_s: float = 0.0,
        cancel_when_unwatched: bool = False,
    ) -> Job:
        """Submit what `run` returns, which stores the blobs that it names; all else as in `submit`."""
        key = client_key or random_id("submit")

        def request() -> pb.SubmitRequest:
            return pb.SubmitRequest(
                client_key=key,
                run=run(),
                priority=priority,
                account=account,
                wait_for_device=wait_for_device,
                queue_limit_s=queue_limit_s,
                cancel_when_unwatched=cancel_when_unwatched,
            )

        def send() -> pb.SubmitResponse:
            patience = self._patience()
            message = patience.call(lambda _: request())  # transfers have limits of their own
            return patience.call(lambda limit: self._job_stub.Submit(message, timeout=limit))

        answer = self._store.sending(send)
        return Job(answer.job_id, self, key, answer.existed)

    def job(self, job_id: str) -> Job:
        """Return the handle of a job, which may be anybody's; nothing is asked yet."""
        return Job(job_id, self)

    def jobs(
        self, *, account: str = "", include_ended: bool = False, limit: int = 100
    ) -> list[JobInfo]:
        """Return jobs, newest first.

        Parameters
        ----------
        account
            Whose; empty: everybody's.
        include_ended
            Those that have ended too.
        limit
            At most so many, up to 1,000.
        """
        request = pb.ListJobsRequest(account=account, include_terminal=include_ended, limit=limit)
        answer = self._patience().call(
            lambda limit_s: self._job_stub.ListJobs(request, timeout=limit_s)
        )
        return [JobInfo.from_proto(job) for job in answer.jobs]


@dataclass(frozen=True, slots=True)
class Job:
    """The handle of a job; it survives the loss of the connection, and another process can make one from the id.

    Attributes
    ----------
    client_key
        Under which it was submitted here; empty if it was not.
    existed
        It was submitted before, under the same key.
    """

    job_id: str
    _calls: JobCalls
    client_key: str = ""
    existed: bool = False

    def status(self) -> JobInfo:
        """Return the job as it is; raises NotFound if the farm does not know it."""
        return JobInfo.from_proto(self._get())

    def wait(
        self,
        timeout_s: float | None = None,
        progress: Callable[[JobInfo], None] | None = None,
    ) -> JobInfo:
        """Wait until the job has ended, well or badly, while the tracker restarts too.

        Parameters
        ----------
        timeout_s
            How long to wait; None: as long as it takes.
        progress
            Called with the job as it is, then at each change.

        Raises
        ------
        StillRunning
            It did not end in time; it goes on.
        TrackerUnreachable
            The tracker was away for two minutes; the job goes on.
        """
        request = pb.WaitRequest(job_id=self.job_id)
        patience, stub = self._patience(timeout_s), self._calls._job_stub
        while True:
            for message in patience.stream(lambda limit: stub.Wait(request, timeout=limit)):
                info = JobInfo.from_proto(message)
                if progress is not None:
                    progress(info)
                if info.ended:
                    return info
            patience.bear(
                InfrastructureError(f"job {self.job_id}: the tracker stopped telling; wait again")
            )

    def result(self, timeout_s: float | None = None) -> JobResult:
        """Wait until the job has ended, and fetch its result.

        Raises
        ------
        FarmError
            Why the job did not pass (`JobInfo.failure`); or as `wait`.
        """
        failure = self.wait(timeout_s).failure
        if failure is not None:
            raise failure
        job = self._get()
        outputs = self._patience().call(lambda _: self._calls._store.arrays(job.result.outputs))
        comparison = None
        if job.result.HasField("comparison"):
            comparison = comparison_from_proto(job.result.comparison)
        return JobResult(
            outputs,
            tuple(job.result.samples_ns),
            job.result.target,
            JobInfo.from_proto(job),
            comparison,
        )

    def logs(
        self, *, follow: bool = True, first: int = 1, timeout_s: float | None = None
    ) -> Iterator[LogChunk]:
        """Yield what the kernel printed, without a gap and nothing twice, across broken connections.

        Parameters
        ----------
        follow
            Go on until the job has ended; else end with what there is now.
        first
            Number of the first chunk wanted.

        Raises
        ------
        StillRunning
            The job did not end in time; it goes on.
        """
        patience, stub = self._patience(timeout_s), self._calls._job_stub
        upcoming = first
        last = None if follow else self._get().log_chunks
        if last is not None and upcoming > last:
            return
        chunks = patience.stream(
            lambda limit: stub.Logs(
                pb.LogsRequest(job_id=self.job_id, from_chunk=upcoming), timeout=limit
            )
        )
        for chunk in chunks:
            if chunk.number < upcoming:
                continue
            if chunk.number > upcoming:
                raise InfrastructureError(
                    f"job {self.job_id}: chunk {upcoming} of its log is missing; read the log again"
                )
            upcoming += 1
            yield LogChunk.from_proto(chunk)
            if upcoming - 1 == last:
                return

    def cancel(self, reason: str = "") -> JobInfo:
        """End the job, and return it as it then is: perhaps running still; one that has ended stays as it is."""
        request = pb.CancelRequest(job_id=self.job_id, reason=reason)
        stub = self._calls._job_stub
        answer = self._patience().call(lambda limit: stub.Cancel(request, timeout=limit))
        return JobInfo.from_proto(answer)

    def why(self) -> Why:
        """Return what it is waiting for, its place in the queue, and until about when."""
        request = pb.WhyRequest(job_id=self.job_id)
        stub = self._calls._job_stub
        answer = self._patience().call(lambda limit: stub.Why(request, timeout=limit))
        return Why.from_proto(answer)

    def artifact(self) -> Artifact:
        """Fetch the artifact that it runs; raises NotFound if the farm has it no more."""
        run = self._get().run
        if not run.HasField("artifact"):
            raise NotFound(f"job {self.job_id}: it has no artifact; look at its attempts")
        digest = digest_from_proto(run.artifact)
        return Artifact.from_bytes(self._patience().call(lambda _: self._calls._store.get(digest)))

    def _get(self) -> pb.Job:
        request = pb.GetJobRequest(job_id=self.job_id)
        stub = self._calls._job_stub
        return self._patience().call(lambda limit: stub.GetJob(request, timeout=limit))

    def _patience(self, timeout_s: float | None = None) -> Patience:
        return self._calls._patience(timeout_s, f"job {self.job_id}")
