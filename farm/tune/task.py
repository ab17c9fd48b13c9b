"""One workload under tuning: what was tried, what came of it, what is next.

Owns: the search through its space, its trials and its best. Does not own: measuring, or several workloads (`tuner`).

Invariant: a configuration is tried once, in this tuning or in one that it resumes.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from farm.client.measuring import Measured
from farm.errors import FarmError, KernelFailed, ScheduleError
from farm.ir import Function
from farm.schedule import Schedule
from farm.tune.limits import GAIN
from farm.tune.measurer import Subject
from farm.tune.records.record import Key, Outcome, Record, Workload
from farm.tune.records.winner import Winner
from farm.tune.search import Search
from farm.tune.space import Configuration
from farm.tune.templates import Template

AT_ONCE = 4
"""Configurations that are chosen at a time: choosing costs more than the results between them gain."""
FINALISTS = 5


@dataclass(frozen=True, slots=True)
class Point:
    """One trial as progress shows it.

    Attributes
    ----------
    second
        Since the tuning began.
    """

    second: float
    outcome: Outcome
    value: float | None


class Task:
    """One workload on one target.

    Parameters
    ----------
    function
        As its author wrote it.
    key
        What its values are comparable under.
    run
        Names this tuning in records.
    weight
        How much a saving here counts among several workloads.
    """

    def __init__(
        self,
        function: Function,
        template: Template,
        key: Key,
        *,
        seed: int = 0,
        strategy: str | None = None,
        run: str = "",
        weight: float = 1.0,
    ) -> None:
        self.name, self.function, self.template, self.key = function.name, function, template, key
        self.workload, self.weight, self.run = Workload.of(function), weight, run
        self.subject = Subject(function, template.target)
        more = {} if strategy is None else {"strategy": strategy}
        self.search = Search(template.space, seed=seed, **more)
        self.trials = 0
        self.since_gain = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.errors: Counter[tuple[Outcome, str]] = Counter()
        self.points: list[Point] = []
        self.best: float | None = None
        self.bests: list[float] = []
        self.unit = ""
        self.default_value: float | None = None
        self._first: deque[int] = deque()
        self._schedules: dict[int, Schedule] = {}
        self._good: dict[int, float] = {}
        self.default = template.space.number(template.default)
        """The configuration that is good without tuning."""

    @property
    def exhausted(self) -> bool:
        """Whether everything has been tried or is being tried."""
        return not self._first and self.search.exhausted

    @property
    def waiting(self) -> bool:
        """Whether results are on their way."""
        return bool(self.search.history.pending)

    def resume(self, records: Iterable[Record]) -> int:
        """Take trials of an earlier tuning under the same key for this one's; return how many."""
        count = 0
        for record in records:
            if record.key != self.key or record.template != self.template.name:
                continue
            if not self.template.space.contains(record.configuration):
                continue
            number = self.template.space.number(record.configuration)
            if number not in self.search.history.costs:
                self._tell(number, record, 0.0)
                count += 1
        return count

    def exclude(self, configurations: Iterable[str]) -> None:
        """Never try configurations, given as canonical JSON."""
        for text in configurations:
            configuration = json.loads(text)
            if self.template.space.contains(configuration):
                number = self.template.space.number(configuration)
                if self.search.history.is_new(number):
                    self.search.tell(number, None)

    def try_first(self, configurations: Iterable[Configuration]) -> int:
        """Try configurations before what the search proposes, unless they were tried; return how many are left."""
        for configuration in configurations:
            if not self.template.space.contains(configuration):
                continue
            number = self.template.space.number(configuration)
            if self.search.claim(number):
                self._first.append(number)
        return len(self._first)

    def next(self) -> int | None:
        """Return a configuration to try; None if there is none, before the next result or at all."""
        if not self._first:
            self._first.extend(self.search.ask(AT_ONCE))
        return self._first.popleft() if self._first else None

    def build(self, number: int) -> Function:
        """Return the function of a configuration; raises ScheduleError if it is refused after all."""
        schedule = self.template.schedule(self.template.space.configuration(number))
        function = schedule.function
        if function.name != self.name:  # what was verified stays what it is
            function = replace(function, name=self.name)
        self._schedules[number] = schedule
        return function

    def refused(self, number: int, error: FarmError, wall: float, second: float) -> Record:
        """Return the record of a configuration that no schedule was made of."""
        record = Record(
            key=self.key,
            template=self.template.name,
            configuration=self.template.space.configuration(number),
            trace="",
            outcome=Outcome.SCHEDULE_REFUSED,
            error_code=error.code,
            error_message=error.message,
            run=self.run,
            wall=wall,
        )
        self._tell(number, record, second)
        return record

    def measured(self, number: int, found: Measured, wall: float, second: float) -> Record:
        """Return the record of a trial."""
        record = replace(
            record_of(self.key, found),
            template=self.template.name,
            configuration=self.template.space.configuration(number),
            trace=self._schedules.pop(number).trace.to_json(),
            run=self.run,
            wall=wall,
        )
        self._tell(number, record, second)
        return record

    def finalists(self, incumbent: Winner | None) -> list[tuple[int, Function]]:
        """Return what has to be compared to decide: the incumbent (or the default) first, then the best trials."""
        first = self.default
        if incumbent is not None and self.template.space.contains(incumbent.configuration):
            first = self.template.space.number(incumbent.configuration)
        ranked = sorted(self._good, key=self._good.__getitem__)
        if first not in self._good and first in self.search.history.costs:
            first = ranked[0] if ranked else first  # it failed here: nothing to defend
        chosen = dict.fromkeys([first, *ranked[:FINALISTS], self.default])
        usable = [n for n in chosen if n in self._good or n not in self.search.history.costs]
        built = []
        for number in usable:
            with contextlib.suppress(ScheduleError):  # a trial that was resumed, of other rules
                built.append((number, self.build(number)))
        return built

    def winner(
        self, number: int, value: float, unit: str, wall: float, replaces: tuple[str, ...] = ()
    ) -> Winner:
        """Return the decision for a configuration, and which decisions it replaces."""
        return Winner(
            key=self.key,
            template=self.template.name,
            configuration=self.template.space.configuration(number),
            trace=self._schedules[number].trace.to_json(),
            value=value,
            unit=unit,
            run=self.run,
            wall=wall,
            replaces=replaces,
        )

    def _tell(self, number: int, record: Record, second: float) -> None:
        self.search.tell(number, record.value)
        self.trials += 1
        self.outcomes[record.outcome] += 1
        if record.error_message and record.outcome is not Outcome.SLOW:
            self.errors[record.outcome, shortened(record.error_message)] += 1
        self.points.append(Point(second, record.outcome, record.value))
        self.since_gain += 1
        if record.value is not None:
            self.unit = record.unit
            if number == self.default:
                self.default_value = record.value
            if record.checked:  # however noisy: a comparison decides
                self._good[number] = record.value
            if self.best is None or record.value < self.best * (1 - GAIN):
                self.since_gain = 0
            self.best = record.value if self.best is None else min(self.best, record.value)
        if self.best is not None:
            self.bests.append(self.best)


def record_of(key: Key, found: Measured) -> Record:
    """Return the record of what was measured, without its configuration."""
    error, outcome, value = found.error, Outcome(found.status.value), found.value
    if outcome is Outcome.OK and not (value is not None and 0 < value < float("inf")):
        outcome, value = Outcome.FORGED, None
        error = KernelFailed("measure: a call that takes no time; look at the device's clock")
    plain = Record(
        key,
        "",
        {},
        "",
        outcome,
        value=value,
        device_id=found.device_id,
        error_code="" if error is None else error.code,
        error_message="" if error is None else error.message,
        phases=dict(found.seconds),
    )
    measurement = found.measurement
    if measurement is None:
        return plain
    samples = {
        name: list(column) for name, column in measurement.samples.columns().items() if column
    }
    statistics = measurement.statistics
    return replace(
        plain,
        unit=measurement.unit,
        clock=measurement.clock,
        timing_class=measurement.timing_class,
        grade=measurement.grade.value,
        checked=measurement.checked,
        samples={
            **samples,
            "calls": measurement.samples.calls,
            "disturbed": list(measurement.samples.disturbed),
            "observed": {k: list(v) for k, v in measurement.samples.observed.items()},
        },
        statistics={}
        if statistics is None
        else {name: getattr(statistics, name) for name in statistics.__dataclass_fields__},
        fingerprint=dict(measurement.fingerprint),
        phases={**measurement.phases, **found.seconds},
    )


def shortened(message: str, most: int = 200) -> str:
    """Return the first line of a message, without numbers that differ from trial to trial."""
    line = message.splitlines()[0] if message else ""
    return re.sub(r"\b(0x)?[0-9a-f]*\d[0-9a-f]{3,}\b", "#", line)[:most]
