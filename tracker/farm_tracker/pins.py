"""Which blobs of the store must stay.

Owns: what open builds, jobs and sessions need, and what is kept for people. Does not own: eviction (`cas`).

Invariant: it may be asked from any thread. A blob that is named while the answer is made was looked up just before, and
so is held for longer than the making takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm.api.v1 import job_pb2
from farm.measuring.checks import blobs_named

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from farm.api.v1 import tensor_pb2
    from farm_tracker.builds import Builds
    from farm_tracker.state.run import RunJob
    from farm_tracker.tracker import Tracker

KEPT_S = 5.0
"""Much less than a blob that was just looked up is held for."""


class Pins:
    """The blobs that one tracker needs."""

    def __init__(self, tracker: Tracker, builds: Builds) -> None:
        self._tracker = tracker
        self._builds = builds
        self._last: tuple[float, set[str]] | None = None

    def __call__(self) -> set[str]:
        """Return the names (SHA-256) of all of them, as of up to `KEPT_S` ago: with many jobs it takes a while."""
        now, last = self._tracker.clock.now(), self._last
        if last is None or not 0.0 <= now - last[0] < KEPT_S:
            last = self._last = (now, self.now())
        return last[1]

    def now(self) -> set[str]:
        """Return the names of all of them as they are now."""
        pinned = {digest.sha256 for digest in self._builds.needed()}
        for unit in list(self._tracker.state.units.values()):
            if unit.is_open:
                pinned.add(unit.spec.function.sha256)
        # Building a list of a dictionary's values is one step for other threads.
        for job in list(self._tracker.state.run_jobs.values()):
            pinned.update(names_of(job))
        pinned.update(self._tracker.sessions.needed())
        return pinned


def names_of(job: RunJob) -> Iterator[str]:
    """Yield what a job needs: its artifact and inputs until it has ended, its results and log as long as it is kept."""
    if job.is_open:
        spec = job_pb2.RunSpec.FromString(job.run)
        yield spec.artifact.sha256
        yield from _blobs(spec.inputs)
        for digest in blobs_named(spec.compare.subjects, spec.compare.workload):
            yield digest.sha256
    if job.result is not None:
        yield from _blobs(job_pb2.JobResult.FromString(job.result).outputs)
    for part in job.log:
        if part.blob is not None:
            yield part.blob.sha256


def _blobs(tensors: Iterable[tensor_pb2.Tensor]) -> Iterator[str]:
    return (it.blob.sha256 for it in tensors if it.WhichOneof("content") == "blob")
