"""The tuner: keeps devices busy with candidates, keeps what comes of them, and decides.

Owns: the order of trials among workloads, when to stop, what is recorded when, the decision. Does not own: choosing
configurations (`task`, `search`), measuring (`measurer`), the database (`records`).

Invariant: a result is in the database before it is told to anybody; whoever ends the tuner loses nothing that was
measured. Only what was right may win, and only by a comparison; a tie keeps the incumbent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from farm.client.measuring import Candidate, Measured
from farm.core.clock import Clock, SystemClock
from farm.errors import FarmError, ScheduleError
from farm.measuring import Comparison, Status, Verdict
from farm.tune.limits import Limits
from farm.tune.measurer import Measurer
from farm.tune.records.database import Records
from farm.tune.records.record import Outcome
from farm.tune.records.standing import standing, when
from farm.tune.records.winner import Winner
from farm.tune.scheduler import choose
from farm.tune.task import Task

SLICE = 16
"""Trials of a workload in a row, if there are several."""


@dataclass(slots=True)
class DeviceUse:
    """What a device did for this tuning."""

    trials: int = 0
    busy_s: float = 0.0
    last: Outcome = Outcome.OK


@dataclass(slots=True)
class Progress:
    """Where a tuning stands; the same object at each call.

    Attributes
    ----------
    phase
        ``search``, ``decide`` or ``done``.
    measured
        Trials of this run; those resumed are not counted.
    """

    tasks: Sequence[Task]
    limits: Limits
    began: float
    now: float
    phase: str = "search"
    measured: int = 0
    devices: dict[str, DeviceUse] = field(default_factory=dict)
    current: str = ""

    @property
    def trials(self) -> int:
        """Of all workloads, resumed ones included."""
        return sum(task.trials for task in self.tasks)

    @property
    def elapsed_s(self) -> float:
        """Since the start."""
        return self.now - self.began

    @property
    def rate(self) -> float:
        """Trials a second in this run."""
        return self.measured / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Until the trials or the time are used up, as it looks now."""
        left = [(self.limits.trials - self.trials) / self.rate] if self.rate > 0 else []
        if self.limits.time_s is not None:
            left.append(self.limits.time_s - self.elapsed_s)
        return max(0.0, min(left)) if left else None


Observer = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Decision:
    """How one workload's tuning ended.

    Attributes
    ----------
    winner
        None if nothing ran right.
    is_new
        Whether it took the place of the incumbent (at first, of what is good without tuning).
    comparison
        None if nothing had to be compared, or the farm failed meanwhile (`error` says how).
    """

    task: Task
    winner: Winner | None
    is_new: bool = False
    comparison: Comparison | None = None
    error: FarmError | None = None


class Tuner:
    """One tuning of one or several workloads.

    Parameters
    ----------
    bounds
        For each task the least time that a call can take, where it is known.
    """

    def __init__(
        self,
        measurer: Measurer,
        tasks: Sequence[Task],
        limits: Limits,
        records: Records | None = None,
        *,
        bounds: Sequence[float | None] = (),
        observer: Observer | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._measurer, self._tasks, self._limits, self._records = measurer, tasks, limits, records
        self._bounds = list(bounds) or [None] * len(tasks)
        self._observer = observer or (lambda progress: None)
        self._clock = clock or SystemClock()
        now = self._clock.now()
        self.progress = Progress(tasks, limits, now, now)

    def search(self) -> None:
        """Try configurations until a limit is reached."""
        if self._records is not None:
            self._records.add(workloads_=[task.workload for task in self._tasks])
        self._tell()
        share = min(
            SLICE, max(1, self._limits.trials // len(self._tasks))
        )  # few trials: some for each
        while open_tasks := [task for task in self._tasks if not self._is_over(task)]:
            task = open_tasks[choose(open_tasks)]
            left = self._limits.trials - self.progress.trials
            self._try(task, left if len(open_tasks) == 1 else min(share, left))

    def decide(self) -> list[Decision]:
        """Compare the best of each workload with its incumbent; record what wins."""
        self.progress.phase = "decide"
        self._tell()
        decisions = [self._decide(task) for task in self._tasks]
        self.progress.phase = "done"
        self._tell()
        return decisions

    def _try(self, task: Task, count: int) -> None:
        self.progress.current = task.name
        found = self._measurer.measure(task.subject, self._candidates(task, count), task.best)
        with contextlib.closing(found) as results:  # type: ignore[type-var]
            for measured in results:
                self._take(task, measured)

    def _candidates(self, task: Task, count: int) -> Iterator[Candidate | None]:
        """Yield what to measure, as long as no limit is reached; None while results have to come first."""
        given = 0
        while given < count and not self._is_over(task):
            number = task.next()
            if number is None:
                if not task.waiting:
                    return
                yield None
                continue
            given += 1
            try:
                function = task.build(number)
            except ScheduleError as error:
                record = task.refused(number, error, self._clock.wall(), self._second())
                if self._records is not None:
                    self._records.add([record])
                self._tell()
                continue
            yield Candidate(str(number), function, task.template.target)

    def _take(self, task: Task, measured: Measured) -> None:
        number = int(measured.candidate.key)
        record = task.measured(number, measured, self._clock.wall(), self._second())
        if self._records is not None:
            self._records.add([record])
        self.progress.measured += 1
        if measured.device_id:
            use = self.progress.devices.setdefault(measured.device_id, DeviceUse())
            use.trials += 1
            use.busy_s += measured.seconds.get("device", 0.0)
            use.last = record.outcome
        self._tell()

    def _is_over(self, task: Task) -> bool:
        limits, progress = self._limits, self.progress
        bound = self._bounds[self._tasks.index(task)]
        return (
            task.exhausted
            or progress.trials >= limits.trials
            or (limits.time_s is not None and self._second() >= limits.time_s)
            or (limits.patience is not None and task.since_gain >= limits.patience)
            or (
                limits.near is not None
                and bound is not None
                and task.best is not None
                and bound / task.best >= limits.near
            )
        )

    def _decide(self, task: Task) -> Decision:
        incumbent, replaced = self._known(task)
        finalists = task.finalists(incumbent)
        self.progress.current = task.name
        if task.best is None or not finalists:
            return Decision(task, incumbent)
        if len(finalists) == 1:
            winner = task.winner(
                finalists[0][0], task.best, task.unit, self._clock.wall(), replaced
            )
            return self._record(Decision(task, winner, is_new=False))
        try:
            compared = self._measurer.compare(task.subject, [each for _, each in finalists])
        except FarmError as error:
            return Decision(task, incumbent, error=error)
        chosen = winner_of(compared)
        if chosen is None:
            return Decision(task, incumbent, comparison=compared, error=compared.error)
        found = compared.measurements[chosen]
        assert found.value is not None, "only what ran right wins"
        winner = task.winner(
            finalists[chosen][0], found.value, found.unit, self._clock.wall(), replaced
        )
        if chosen:
            pair = compared.pairs[chosen - 1]
            winner = replace(winner, ratio=pair.ratio, low=pair.low, high=pair.high)
        return self._record(Decision(task, winner, chosen > 0, compared))

    def _known(self, task: Task) -> tuple[Winner | None, tuple[str, ...]]:
        """Return the decision to beat, and the ids of those that what comes out replaces."""
        if self._records is None:
            return None, ()
        key = task.key
        known = self._records.open_decisions(
            workload=key.workload, target=key.target, host=key.host, cache=key.cache
        )
        incumbent = max(standing(known).values(), key=when, default=None)
        if incumbent is None or not task.template.space.contains(incumbent.configuration):
            return incumbent, ()  # it cannot be compared
        return incumbent, tuple(each.id for each in known)

    def _record(self, decision: Decision) -> Decision:
        if self._records is not None and decision.winner is not None:
            self._records.add(winners_=[decision.winner])
        return decision

    def _second(self) -> float:
        return self._clock.now() - self.progress.began

    def _tell(self) -> None:
        self.progress.now = self._clock.now()
        self._observer(self.progress)


def winner_of(compared: Comparison) -> int | None:
    """Return which candidate of a comparison wins: the fastest of those that beat the first; None if none ran right.

    A candidate that is not proven to be faster does not win, however small its ratio.
    """
    right = [each.status is Status.OK and each.value is not None for each in compared.measurements]
    if not any(right):
        return None
    if not right[0]:
        values = [
            each.value if ok and each.value is not None else float("inf")
            for each, ok in zip(compared.measurements, right, strict=True)
        ]
        return values.index(min(values))
    faster = [
        (pair.ratio, number)
        for number, pair in enumerate(compared.pairs, 1)
        if pair.verdict is Verdict.FASTER and right[number]
    ]
    return min(faster)[1] if faster else 0
