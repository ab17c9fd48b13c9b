"""Measuring and comparing, as methods of a client.

Owns: their parameters, and submitting a comparison. Does not own: how a batch is measured
(`farm.client.batch_measure`), or jobs (`farm.client.jobs`).

Invariant: a comparison that is submitted again under its key is the same job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from farm.api.v1 import job_pb2, measure_pb2
from farm.artifact import Artifact
from farm.client.batch_measure import Batch, Plan, artifact_of
from farm.client.jobs import Job, JobCalls
from farm.client.measuring import (
    Candidate,
    Measured,
    Workload,
    check_same_arrays,
    subject_of,
    workload_message,
)
from farm.errors import InvalidInput
from farm.measuring import Options
from farm.measuring.checks import check_rounds
from farm.measuring.values import DEFAULT_ROUNDS, DEFAULT_THRESHOLD, MAX_SUBJECTS
from farm.measuring.wire import options_to_proto
from farm.target import Selector, Target

if TYPE_CHECKING:
    from farm.client.client import Client

MAX_BUILDS_AHEAD = 64
COMPARE_OPTIONS = Options(samples=3, budget_s=60.0, limit_s=120.0)


class MeasureCalls(JobCalls):
    """The part of a client that measures."""

    def measure(
        self,
        candidates: Iterable[Candidate | None],
        *,
        workload: Workload | None = None,
        selector: str = "",
        devices: int | None = None,
        options: Options | None = None,
        builds_ahead: int = 8,
        race: bool = True,
        incumbent: float | None = None,
    ) -> Iterator[Measured]:
        """Build candidates and measure each in a process of its own, on several devices at once.

        Results come in the order in which they are ready. Close the generator (or use it up) to give the devices back.

        Parameters
        ----------
        candidates
            Taken one by one in the thread that iterates over the results, and only `builds_ahead` ahead of the devices,
            so that they may depend on results that were given before (ask and tell). ``None`` means: none before the
            next result; if no result is awaited, that is the end.
        workload
            What they are called with, and what is right; by default random inputs, and numbers are not checked.
        selector
            As in `acquire`.
        devices
            On how many at a time; None: on all that match now.
        options
            How to measure; by default as in a search: few samples.
        builds_ahead
            Builds under way or waiting for a device, 1 to 64.
        race
            Give up early on what is ``options.race_factor`` times slower than the best so far on the same kind of host.
            False: measure each to its end, however slow it is.
        incumbent
            A value to race against from the start, in the unit of the devices.

        Yields
        ------
        Measured
            One for each candidate.

        Raises
        ------
        NobodyCanServe
            No device matches, or nobody builds for a target.
        InvalidInput
            Two candidates have one key, or a parameter is out of range.
        FarmError
            The farm failed for two minutes without a result between; results that were given stand.
        """
        if not 1 <= builds_ahead <= MAX_BUILDS_AHEAD:
            raise InvalidInput(f"measure: builds_ahead {builds_ahead}; use 1 to {MAX_BUILDS_AHEAD}")
        if devices is not None and devices < 1:
            raise InvalidInput(f"measure: devices {devices}; use 1 or more")
        client = self._whole()
        matching = len(client.devices(selector))
        plan = Plan(
            selector=str(Selector.parse(selector)),
            devices=max(1, min(devices or matching, matching)),
            workload=workload or Workload(),
            options=options or Options(),
            builds_ahead=builds_ahead,
            race=race,
            incumbent=incumbent,
        )
        batch = Batch(client, plan)
        try:
            yield from batch.measure(candidates)
        finally:
            batch.close()

    def compare(
        self,
        candidates: Sequence[Candidate],
        *,
        workload: Workload | None = None,
        selector: str = "",
        options: Options | None = None,
        threshold: float = DEFAULT_THRESHOLD,
        rounds: tuple[int, int] = DEFAULT_ROUNDS,
        priority: int = 0,
        account: str = "",
        client_key: str = "",
        queue_limit_s: float = 0.0,
    ) -> Job:
        """Have candidates compared with the first of them, interleaved on one device; a durable job.

        Each is checked alone first. Then all run in turns, in two processes one after the other, until every difference
        is known or the rounds or the budget end: ``job.result().comparison``.

        Parameters
        ----------
        candidates
            2 to 16, with keys of their own; functions are built on the farm first.
        workload, selector
            As in `measure`. Without a reference nobody knows whether all compute the same.
        options
            How to measure; `samples` and `race_factor` do not matter, `limit_s` is of all of it.
        threshold
            Differences below it do not matter, 0.001 to 0.5. Faster and slower mean that the whole 95 % interval of the
            ratio is beyond it, same that it is within it.
        rounds
            At least and at most, 10 to 10,000; each gives a sample of each candidate, of which there may be 20,000.
        priority, account, client_key, queue_limit_s
            As in `submit`.

        Raises
        ------
        InvalidInput
            Something is out of range, or a candidate takes or gives other arrays than the first.
        NobodyCanServe
            No device of the farm could ever match.
        BuildFailed
            A candidate does not build.
        """
        if not 2 <= len(candidates) <= MAX_SUBJECTS:
            raise InvalidInput(f"compare: {len(candidates)} candidates; give 2 to {MAX_SUBJECTS}")
        if len({it.key for it in candidates}) < len(candidates):
            raise InvalidInput("compare: two candidates of one key; give each a key of its own")
        check_rounds(len(candidates), *rounds)
        client = self._whole()
        artifacts = [artifact_of(client, it) for it in candidates]
        check_same_arrays(candidates, artifacts)
        options = options or COMPARE_OPTIONS
        text = str(Selector.parse(selector))

        def run() -> job_pb2.RunSpec:
            subjects = [
                self._stored(subject_of(artifact, it.symbol, it.key, self._store), artifact)
                for artifact, it in zip(artifacts, candidates, strict=True)
            ]
            message = workload_message(workload or Workload(), _hosts(artifacts), self._store)
            if message.HasField("reference") and message.reference.artifact.inline:
                self._store.put(message.reference.artifact.inline)
                message.reference.artifact.ClearField("inline")
            compare = measure_pb2.CompareRequest(
                subjects=subjects,
                workload=message,
                options=options_to_proto(options),
                threshold=threshold,
                min_rounds=rounds[0],
                max_rounds=rounds[1],
            )
            first = subjects[0]
            return job_pb2.RunSpec(
                selector=text,
                artifact=first.artifact.digest,
                symbol=first.symbol,
                limit_s=options.limit_s,
                compare=compare,
            )

        return self.submit_run(
            run,
            priority=priority,
            account=account,
            client_key=client_key,
            queue_limit_s=queue_limit_s,
        )

    def _stored(self, subject: measure_pb2.Subject, artifact: Artifact) -> measure_pb2.Subject:
        """Return a subject whose artifact is in the store: what a job needs has to last as long as it."""
        if subject.artifact.inline:
            self._store.put_artifact(artifact)
            subject.artifact.ClearField("inline")
        return subject

    def _whole(self) -> Client:
        """Return this client with all its parts."""
        return cast("Client", self)


def _hosts(artifacts: Sequence[Artifact]) -> list[Target]:
    """Return the CPUs that candidates were built for, their hosts' if they are for accelerators."""
    texts = {
        section.target
        for artifact in artifacts
        for section in artifact.sections
        if Target.parse(section.target).kind == "llvm"
    }
    return [Target.parse(text) for text in sorted(texts)]
