"""Measuring many candidates on several devices at once, with builds ahead.

Owns: what is built when, results, the best so far. Does not own: a device's use (`farm.client.lane`), the wire
(`farm.client.measuring`), or how a device measures (`farm_agents.worker.measure`).

Invariant: candidates are taken, and results given, in the caller's thread alone, what is there before anything else is
taken; a candidate that was taken has exactly one result, unless the batch ends with an error.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farm.artifact import Artifact
from farm.client.lane import Lane, unexpected
from farm.client.measuring import Candidate, Measured, Workload
from farm.client.patience import may_mend
from farm.errors import BuildFailed, FarmError, InvalidInput, NobodyCanServe
from farm.ir import Function
from farm.measuring import Measurement, Options, Status
from farm.target import as_target

if TYPE_CHECKING:
    from farm.client.client import Client

AWAY_S = 120.0
"""How long the farm may fail without a result between before that is an error."""
PAUSE_S = 0.5
CLOSE_S = 5.0
"""How long closing waits for a request for a device that is under way; what it gets is given back."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a batch is measured; as the parameters of `Client.measure`."""

    selector: str
    devices: int
    workload: Workload
    options: Options
    builds_ahead: int
    race: bool
    incumbent: float | None


@dataclass(slots=True)
class Work:
    """A candidate on its way."""

    candidate: Candidate
    artifact: Artifact | None = None
    since: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=dict)
    lost_devices: list[str] = field(default_factory=list)
    tries: int = 0

    def spent(self, phase: str) -> None:
        """Note where its time went since the last phase."""
        now = time.monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self.since
        self.since = now


class Batch:
    """One batch under way; close it."""

    def __init__(self, client: Client, plan: Plan) -> None:
        self.client, self.plan = client, plan
        self.given = 0
        """How many results there were so far."""
        self._building = 0
        self._ready: deque[Work] = deque()
        self._changed = threading.Condition()
        self._results: queue.SimpleQueue[Measured | FarmError] = queue.SimpleQueue()
        self._keys: set[str] = set()
        self._outstanding = 0
        self._closing = False
        self._has_built = False
        self._best: dict[tuple[str, ...], float] = {}
        self._builders = ThreadPoolExecutor(plan.builds_ahead, "farm-build")
        self._lanes = [Lane(self, number) for number in range(plan.devices)]

    def measure(self, candidates: Iterable[Candidate | None]) -> Iterator[Measured]:
        """Yield results; see `Client.measure`."""
        for lane in self._lanes:
            lane.start()
        source = iter(candidates)
        exhausted = False
        while True:
            # A result that is there comes first: taking a candidate may take long, and who is killed meanwhile has not
            # kept what was measured.
            while not exhausted and self._results.empty() and self._wants_more():
                try:
                    candidate = next(source)
                except StopIteration:
                    exhausted = True
                    break
                if candidate is None:
                    break
                self._add(candidate)
            if not self._outstanding:
                return
            result = self._results.get()
            if isinstance(result, FarmError):
                raise result
            self._outstanding -= 1
            yield result

    def close(self) -> None:
        """Give all devices back; what was not measured is dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._builders.shutdown(wait=False, cancel_futures=True)
        for lane in self._lanes:
            lane.interrupt()
        until = time.monotonic() + CLOSE_S
        for lane in self._lanes:
            lane.join(max(0.0, until - time.monotonic()))

    @property
    def closing(self) -> bool:
        """Whether nothing more is wanted."""
        return self._closing

    def take(self, wait_s: float) -> Work | None:
        """Return the next candidate that is built; None if there is none in time, or at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._closing, wait_s)
            return self._ready.popleft() if self._ready and not self._closing else None

    def put_back(self, works: Iterable[Work]) -> None:
        """Have candidates that were not begun measured before others, in order."""
        with self._changed:
            self._ready.extendleft(reversed(list(works)))
            self._changed.notify_all()

    def done(
        self,
        work: Work,
        status: Status,
        error: FarmError | None = None,
        measurement: Measurement | None = None,
        device_id: str = "",
    ) -> None:
        """Give the result of a candidate."""
        if measurement is not None and (value := measurement.value) is not None:
            key = _kind(measurement)
            with self._changed:
                self._best[key] = min(value, self._best.get(key, value))
        self.given += 1
        self._results.put(
            Measured(
                candidate=work.candidate,
                status=status,
                error=error,
                measurement=measurement,
                device_id=device_id,
                seconds=dict(work.seconds),
                lost_devices=tuple(work.lost_devices),
            )
        )

    def fail(self, error: FarmError) -> None:
        """End the batch with an error."""
        self._results.put(error)

    def incumbent(self, like: Measurement | None) -> float:
        """Return what the best so far takes, on devices as that of a measurement; 0 if there is none."""
        if not self.plan.race:
            return 0.0
        known = [] if self.plan.incumbent is None else [self.plan.incumbent]
        if like is not None:
            with self._changed:
                known += [self._best[key] for key in (_kind(like),) if key in self._best]
        return min(known, default=0.0)

    def _wants_more(self) -> bool:
        with self._changed:
            return self._building + len(self._ready) < self.plan.builds_ahead

    def _add(self, candidate: Candidate) -> None:
        if candidate.key in self._keys:
            raise InvalidInput(
                f"measure: two candidates of one key ({candidate.key[:80]}); give each a key of its own"
            )
        self._keys.add(candidate.key)
        self._outstanding += 1
        with self._changed:
            self._building += 1
        self._builders.submit(self._build, Work(candidate))

    def _build(self, work: Work) -> None:
        """Have the artifact of a candidate ready."""
        try:
            work.artifact = self._artifact(work.candidate)
        except (BuildFailed, InvalidInput) as error:
            work.spent("build")
            self.done(work, Status.BUILD_FAILED, error)
        except FarmError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - a thread's end: the caller must learn of it
            self.fail(unexpected(error))
        finally:
            work.spent("build")
            with self._changed:
                self._building -= 1
                if work.artifact is not None:
                    self._ready.append(work)
                self._changed.notify_all()

    def _artifact(self, candidate: Candidate) -> Artifact:
        until = time.monotonic() + AWAY_S
        while True:
            try:
                artifact = artifact_of(self.client, candidate)
            except FarmError as error:
                # Who built before comes back, as an agent does that is started again.
                mends = may_mend(error) or (isinstance(error, NobodyCanServe) and self._has_built)
                if not mends or self._closing or time.monotonic() > until:
                    raise
                time.sleep(PAUSE_S)
            else:
                self._has_built = True
                return artifact


def artifact_of(client: Client, candidate: Candidate) -> Artifact:
    """Return a candidate's artifact: its own, that of its file, or built on the farm."""
    what = candidate.what
    if isinstance(what, Artifact):
        return what
    if not isinstance(what, Function):
        return Artifact.load(what)
    target = as_target(candidate.target or what.target or "llvm")
    return client.build({target: [what]})


def _kind(found: Measurement) -> tuple[str, ...]:
    """Return what values must have in common to be raced against each other."""
    return (found.host, found.timing_class, found.unit, found.clock, found.cache.value)
