"""Samples of a function whose time the test decides."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from farm_agents.fingerprint import host_facts, host_name
from farm_agents.worker import alone as lonely
from farm_agents.worker import compare, measure
from farm_agents.worker.blobs import Blobs
from farm_agents.worker.compare import run_rounds
from farm_agents.worker.observers import Energy, _energy
from farm_agents.worker.race import Judged, Race
from farm_agents.worker.sampling import (
    MAX_CALLS,
    MAX_WINDOWS,
    ClockChanged,
    Host,
    Sampler,
    sets_of,
)
from farm_agents.worker.subject import Phases, Subject

from farm.api.v1 import measure_pb2
from farm.measuring import CacheMode, Options, Status
from farm.runtime.prepared import Lap


class Fake:
    """Takes as long as it is told, call by call."""

    def __init__(self, costs_ns, wall=1.0):
        self.costs = iter(costs_ns)
        self.wall = wall
        self.laps = []

    def lap(self, number):
        self.laps.append(number)
        cpu = round(next(self.costs) * number)
        return Lap(round(cpu * self.wall), cpu)

    def poison(self, byte):
        pass


def sampler(costs, wall=1.0, **options):
    return Sampler(Fake(costs, wall), Options(**{"sample_s": 0.001, **options}), Host())


@pytest.mark.parametrize("cost_ns", [1, 50, 999, 40_000, 2_000_000])
def test_calls_of_a_sample_last_as_long_as_it_should(cost_ns):
    made = sampler(itertools.repeat(cost_ns))
    assert made.calibrate() == cost_ns
    assert made.calls == 1 or 1e6 <= made.calls * cost_ns < 3e6


def test_calibrating_counts_cpu_time_so_that_a_busy_machine_changes_nothing():
    quiet, busy = (sampler(itertools.repeat(500), wall=wall) for wall in (1.0, 20.0))
    quiet.calibrate()
    busy.calibrate()
    assert quiet.calls == busy.calls


def test_cold_samples_are_one_call_each():
    made = sampler(itertools.repeat(100), cache=CacheMode.COLD)
    made.calibrate()
    made.sample()
    assert (made.calls, made.samples().calls) == (1, 1)


def test_warming_up_ends_when_three_windows_agree_or_its_time_is_over():
    made = sampler([900, 500, 101, 100, 102, 1], warm_up_s=60.0)
    assert made.warm_up() == 102
    assert len(made.prepared.laps) == 5
    never = sampler(itertools.cycle([100, 200]), warm_up_s=60.0)
    never.warm_up()  # a clock that stands still would never end it either
    assert len(never.prepared.laps) == MAX_WINDOWS


class Seen(Fake):
    """Notes after how many calls it was looked at."""

    def __init__(self, costs_ns):
        super().__init__(costs_ns)
        self.looks = []

    def damage(self):
        self.looks.append(len(self.laps))
        return ""


def long_calls(costs, **options):
    made = Sampler(Seen(costs), Options(**{"warm_up_s": 60.0, **options}), Host())
    case = (SimpleNamespace(), [])
    return Subject("f", None, made.prepared, [case], [], 0.0, Blobs(Path("nowhere"))), made


@pytest.mark.parametrize(
    ("costs", "checked", "kept"),
    [([900, 500, 101, 100, 102, 1], 950, (100, 102)), ([101, 100, 1], 102, (101, 100))],
)
def test_long_calls_that_agree_while_warming_up_are_samples(costs, checked, kept):
    subject, made = long_calls(costs)
    last, _ = measure.settle(subject, made, "cpu_ns", checked)
    assert last == kept[-1]
    assert made.samples().cpu_ns == kept


def test_long_calls_that_never_agree_are_no_samples():
    subject, made = long_calls(itertools.cycle([100, 200]))
    assert measure.settle(subject, made, "cpu_ns", 100.0) == (100.0, False)
    assert (made.count, len(made.prepared.laps)) == (0, MAX_WINDOWS - 1)


def test_any_sample_may_be_the_one_that_is_looked_at():
    found = set()
    for _ in range(200):
        subject, made = long_calls(itertools.repeat(3_000_000), samples=4)
        race = Race(0.0, 5.0, has_timer=False)
        measure.take_samples(subject, made, race, Phases(), "cpu_ns", 3e6)
        assert made.count == len(made.prepared.laps) == 4
        assert made.prepared.looks
        found |= set(made.prepared.looks)
    assert found == {1, 2, 3, 4}


def test_clock_that_stands_still_is_noticed():
    with pytest.raises(ClockChanged):
        sampler(itertools.repeat(0)).calibrate()


def test_samples_hold_all_that_was_read():
    made = sampler([1000, 1000, 5000])
    made.observers = {"cycles": SimpleNamespace(read=itertools.count(0, 7).__next__)}
    for _ in range(3):
        made.sample()
    found = made.samples()
    assert found.cpu_ns == found.wall_ns == (1000, 1000, 5000)
    assert len(found.start_ns) == len(found.switches) == 3
    assert found.observed == {"cycles": (7, 7, 7)}
    assert (found.steal_ns, found.clock_hz) == ((), ())


@pytest.mark.parametrize(
    ("size", "cache", "sets"),
    [(1 << 20, CacheMode.WARM, 1), (1 << 20, CacheMode.COLD, 1), (1 << 30, CacheMode.ROTATE, 2)],
)
def test_sets_of_arrays_follow_the_cache_mode(size, cache, sets):
    assert sets_of(size, cache) == sets
    assert sets_of(8, CacheMode.ROTATE) == 64
    assert MAX_CALLS > 64


def rounds(first, other, **more):
    samplers = [sampler(first), sampler(other)]
    request = measure_pb2.CompareRequest(min_rounds=10, max_rounds=100, **more)
    return run_rounds(samplers, request, "cpu_ns", budget_s=60.0), samplers


def test_rounds_end_when_the_difference_is_known():
    count, samplers = rounds(itertools.repeat(1000), itertools.repeat(1100))
    assert count == 10
    assert samplers[0].count == samplers[1].count == 10


def test_rounds_go_on_while_nothing_is_known_and_end_at_the_most():
    count, _ = rounds(itertools.repeat(1000), itertools.cycle([1019, 1021]))
    assert count == 100


def test_looks_become_rarer_as_rounds_grow(monkeypatch):
    looked = []
    monkeypatch.setattr(
        compare, "_is_decided", lambda samples, *_: looked.append(len(samples[0].wall_ns))
    )
    samplers = [sampler(itertools.repeat(1000)) for _ in range(2)]
    request = measure_pb2.CompareRequest(min_rounds=15, max_rounds=5000)
    assert run_rounds(samplers, request, "cpu_ns", budget_s=600.0) == 5000
    assert looked[:4] == [15, 25, 35, 45]
    assert len(looked) < 60
    assert all(later - look >= 0.1 * look - 1 for look, later in itertools.pairwise(looked))


class Lazy(Fake):
    """Takes `work_ns`; in a row, or called on outputs that are right, next to nothing if `is_lazy`."""

    def __init__(self, work_ns, *, is_lazy, wrong_from=10**9):
        self.work_ns, self.is_lazy, self.wrong_from = work_ns, is_lazy, wrong_from
        self.anew = 0
        self.content = np.zeros(2)

    def poison(self, byte):
        self.content[:] = np.nan

    def outputs(self):
        return (self.content,)

    def lap(self, number):
        is_right = not np.isnan(self.content).any()
        took = 700 if is_right and self.is_lazy else 700 + self.work_ns * number
        self.anew += not is_right
        self.content[:] = 7.0
        return Lap(took, took)

    def damage(self):
        return "wrote before y" if self.anew >= self.wrong_from else ""


def alone(work_ns, value, **more):
    made = Lazy(work_ns, **more)
    case = (SimpleNamespace(), [])
    subject = Subject("f", None, made, [case], [], 0.0, Blobs(Path("nowhere")))
    lonely.check_alone(subject, value, "cpu_ns")
    return made.anew


@pytest.mark.parametrize("work_ns", [50_000, 1_000_000])
def test_function_that_does_nothing_where_its_outputs_are_right_is_found_out(work_ns):
    with pytest.raises(Judged, match="none of the work") as found:
        alone(work_ns, 2.0, is_lazy=True)
    assert found.value.status is Status.FORGED


@pytest.mark.parametrize("work_ns", [20, 5_000, 1_000_000])
def test_function_that_works_each_time_is_called_twice_more(work_ns):
    assert alone(work_ns, float(work_ns), is_lazy=False) == lonely.ALONE_LOOKS


def test_function_that_is_wrong_when_it_is_called_alone_is_found_out():
    with pytest.raises(Judged, match="wrote before y") as found:
        alone(1000, 1000.0, is_lazy=False, wrong_from=2)
    assert found.value.status is Status.WRONG


def test_order_of_candidates_turns_from_round_to_round():
    order = []

    class Noted(Fake):
        def lap(self, number):
            order.append(self.name)
            return super().lap(number)

    samplers = []
    for name in "ab":
        fake = Noted(itertools.repeat(1000))
        fake.name = name
        samplers.append(Sampler(fake, Options(), Host()))
    run_rounds(samplers, measure_pb2.CompareRequest(min_rounds=10, max_rounds=10), "cpu_ns", 60.0)
    assert "".join(order) == "abba" * 5


def test_energy_counter_turns_over(tmp_path):
    folder = tmp_path / "intel-rapl:0"
    folder.mkdir()
    assert _energy(None, tmp_path) is None  # nothing to read there
    (folder / "max_energy_range_uj").write_text("1000\n")
    counter = folder / "energy_uj"
    counter.write_text("900\n")
    found = _energy(None, tmp_path)
    assert isinstance(found, Energy)
    assert found.read() == 900
    counter.write_text("100\n")
    assert found.read() == 1100


def test_fingerprint_is_the_same_each_time_and_names_what_it_cannot_read():
    facts = host_facts()
    host_facts.cache_clear()
    assert host_facts() == facts
    assert all(text is None or text for text in facts.values())
    name = host_name(facts, {"kind": "native"})
    assert name == host_name(dict(facts), {"kind": "native"})
    assert name != host_name(facts, {"kind": "qemu"})
    assert name != host_name({**facts, "kernel": "other"}, {"kind": "native"})
