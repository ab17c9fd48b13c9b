"""A space of which a third is broken in every way there is: the tuning ends, and nothing broken wins."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import candidates
import pytest

import farm
from farm.ir import Function
from farm.ir.declaration import functions_of
from farm.ir.stmt import For, walk
from farm.measuring import Options
from farm.schedule import Schedule
from farm.target import Target
from farm.tune import Limits, Records, Space
from farm.tune.measurer import FarmMeasurer
from farm.tune.records import Key, Workload
from farm.tune.task import Task
from farm.tune.templates import Template
from farm.tune.tuner import Tuner

CPU = "kind=cpu,emulator!=qemu-user"
TARGET = Target.parse(candidates.TARGET)
OPTIONS = Options(samples=3, sample_s=0.001, warm_up_s=0.02, budget_s=0.1)
GOOD = 16
BROKEN = {
    "half": {"wrong"},
    "zeros": {"wrong"},
    "row": {"wrong"},
    "once": {"wrong"},
    "crash": {"crash"},
    "hang": {"slow", "timeout"},  # whichever limit it meets first
    "text": {"build_failed"},
    "timer": {"forged"},
}
"""Names of bodies, and how each may end."""


class Bodies(Template):
    """Bodies by number: the first ones are right, the later the slower."""

    name = "bodies 1"

    def __init__(self) -> None:
        self.function, self.target = candidates.twice(), TARGET
        self.space = Space({"body": range(GOOD + len(BROKEN))})
        self.default = {"body": GOOD // 2}

    def schedule(self, configuration):
        """Return the function with a mark; what is measured is the body of that number."""
        sch = Schedule(self.function)
        sch.annotate(sch.get_loops("y")[0], "body", configuration["body"])
        return sch


class Swapping:
    """A client that measures bodies in the place of marked functions; all else is the farm's."""

    def __init__(self, client) -> None:
        self._client = client

    def __getattr__(self, name):
        return getattr(self._client, name)

    def measure(self, given, **options):
        return self._client.measure(map(self._swapped, given), **options)

    def compare(self, given, **options):
        return self._client.compare(list(map(self._swapped, given)), **options)

    def _swapped(self, candidate):
        number = body_of(candidate)
        if number is None:
            return candidate
        if number < GOOD:
            body = candidates.loop(0, candidates.COUNT, repeats=str(1 + number))
            return replace(candidate, what=candidates.artifact("right", body))
        name = list(BROKEN)[number - GOOD]
        if name == "text":
            text = b"; farm: twice(x: float32[4], y: float32[4] inout)\ndefine void @other() { ret void }\n"
            return replace(candidate, what=functions_of("x.ll", text)[0])
        body = candidates.timer_patch() if name == "timer" else candidates.BODIES[name]
        return replace(candidate, what=candidates.artifact(name, body))


def body_of(candidate) -> int | None:
    """Return the number that a candidate is marked with."""
    if not isinstance(candidate.what, Function):
        return None
    loops = [stmt for stmt in walk(candidate.what.body) if isinstance(stmt, For)]
    return dict(loops[0].annotations).get("body") if loops else None


@pytest.fixture(scope="module")
def ended(embedded_farm, tmp_path_factory):
    """What one tuning of the whole space came to: its records and its decision."""
    path = tmp_path_factory.mktemp("faults") / "tune.db"
    with farm.connect(embedded_farm.address) as client, Records(path) as records:
        measurer = FarmMeasurer(Swapping(client), CPU, options=OPTIONS, decide_s=0.5)
        host = measurer.places()[0].host
        template = Bodies()
        workload = Workload.of(template.function)
        task = Task(
            template.function, template, Key(workload.id, str(TARGET), host, "warm", "test")
        )
        task.try_first([template.default])
        tuner = Tuner(measurer, [task], Limits(trials=100), records)
        tuner.search()
        (decision,) = tuner.decide()
        return records.under(task.key), decision


def test_every_candidate_of_a_space_that_is_broken_ends_under_its_status(ended):
    found, _ = ended
    assert Counter(record.configuration["body"] for record in found) == Counter(
        range(GOOD + len(BROKEN))
    )
    outcomes = {record.configuration["body"]: record.outcome.value for record in found}
    for number, (name, allowed) in enumerate(BROKEN.items(), GOOD):
        assert outcomes[number] in allowed, name
    assert {outcomes[number] for number in range(GOOD)} <= {"ok", "slow"}


def test_nothing_broken_wins(ended):
    found, decision = ended
    assert decision.error is None
    assert decision.winner is not None
    assert decision.winner.configuration["body"] <= GOOD // 2  # nothing slower than the default
    best = min(r.value for r in found if r.value is not None)
    values = {r.configuration["body"]: r.value for r in found}
    assert all(values[number] is None for number in range(GOOD, GOOD + len(BROKEN)))
    assert best == min(values[number] for number in range(GOOD) if values[number] is not None)
