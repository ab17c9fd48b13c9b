"""The tuner: stops when it should, records everything, measures nothing twice, and lets only what is right win."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from unit.tune.landscapes import X86, Landscape

import farm.ops as ops
import farm.te as te
from farm.errors import InfrastructureError, InvalidInput, ScheduleError, TrackerUnreachable
from farm.ir import Function
from farm.ir.stmt import For, walk
from farm.measuring import Status
from farm.target import Target
from farm.tune.measurer import FarmMeasurer, Subject
from farm.tune.records import Outcome, Records
from farm.tune.roofline import Ceilings, Work, work_of
from farm.tune.scheduler import choose, gradient
from farm.tune.task import Task
from farm.tune.tuner import Progress
from farm.tune.tuning import tune as tune_whole

tune = partial(tune_whole, ceilings=False)


def elementwise(name: str = "scale", size: int = 4096) -> Function:
    x = te.placeholder((size,), name="x")
    return te.function(name, [x, ops.relu(x)])


def layers(name: str = "layers") -> Function:
    """A function with a space of some hundreds: four element-wise blocks, the narrower the better by `by_width`."""
    x = te.placeholder((4096,), name="x")
    y = ops.relu(ops.add(ops.multiply(ops.relu(x), x), x))
    return te.function(name, [x, y])


def width(function: Function) -> int:
    """Return the extent of the last vectorized loop."""
    found = [
        s.extent for s in walk(function.body) if isinstance(s, For) and s.kind.value == "vectorized"
    ]
    return found[-1] if found else 1


def by_width(function: Function) -> float:
    """Return 10 for each lane of all vectorized loops together."""
    loops = [stmt for stmt in walk(function.body) if isinstance(stmt, For)]
    return 10.0 * sum(loop.extent for loop in loops if loop.kind.value == "vectorized")


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    with Records(tmp_path / "tune.db") as opened:
        yield opened


def test_every_trial_is_recorded_and_the_best_wins_by_comparison(records: Records) -> None:
    land = Landscape(by_width)
    found = tune(layers(), land, trials=40, records=records)
    assert found.trials == found.measured == 40
    (decision,) = found.decisions
    kept = records.under(decision.task.key)
    assert len(kept) == 40
    assert {record.outcome for record in kept} == {Outcome.OK}
    assert all(record.samples["wall_ns"] and record.trace for record in kept)
    assert decision.winner is not None
    assert decision.is_new
    best = min(record.value or 0 for record in kept)
    assert decision.winner.value == best
    assert 0 < decision.winner.ratio < 1
    assert records.best(decision.task.key.workload, X86) == decision.winner
    assert len(land.compared) == 1
    assert 2 <= len(land.compared[0]) <= 7


def test_a_seed_repeats_a_tuning() -> None:
    def order(seed: int) -> list[str]:
        land = Landscape(by_width)
        tune(layers(), land, trials=30, seed=seed)
        return list(land.measured)

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_default_is_tried_first_and_nothing_is_measured_twice() -> None:
    land = Landscape(by_width, devices=4)
    found = tune(layers(), land, trials=40)
    (decision,) = found.decisions
    assert max(land.measured.values()) == 1
    assert str(decision.task.build(decision.task.default)) in list(land.measured)[:16]
    assert land.most_in_flight == 8


def test_small_space_is_used_up_whatever_the_trials() -> None:
    land = Landscape(by_width, devices=3)
    found = tune(elementwise(), land, trials=1000)
    assert found.trials == found.decisions[0].task.template.space.size == len(land.measured)


def test_tie_keeps_the_incumbent(records: Records) -> None:
    found = tune(layers(), Landscape(lambda function: 500.0), trials=20, records=records)
    (decision,) = found.decisions
    assert not decision.is_new
    assert decision.winner is not None
    assert decision.winner.configuration == decision.task.template.default
    later = tune(layers(), Landscape(lambda function: 400.0), trials=20, records=records, seed=7)
    assert later.decisions[0].winner is not None
    assert later.decisions[0].winner.configuration == decision.task.template.default


def test_winner_of_an_earlier_tuning_is_the_incumbent_of_the_next(records: Records) -> None:
    first = tune(layers(), Landscape(by_width), trials=40, records=records).decisions[0]
    assert first.winner is not None
    land = Landscape(by_width)
    second = tune(layers(), land, trials=5, records=records, transfer=False, seed=3).decisions[0]
    assert not second.is_new
    assert second.winner is not None
    assert second.winner.configuration == first.winner.configuration
    assert land.compared[0][0] == str(
        second.task.build(second.task.template.space.number(first.winner.configuration))
    )


FAILURES = (
    Status.WRONG,
    Status.CRASH,
    Status.TIMEOUT,
    Status.REFUSED,
    Status.BUILD_FAILED,
    Status.FORGED,
)


def test_failures_are_recorded_under_their_status_and_never_win(records: Records) -> None:
    def formula(function: Function) -> float | Status:
        wide = width(function)
        return FAILURES[wide % len(FAILURES)] if wide > 8 else 1000.0 / wide

    land = Landscape(formula)
    function = layers()
    found = tune(function, land, trials=60, records=records)
    (decision,) = found.decisions
    kept = records.under(decision.task.key)
    assert len(kept) == 60
    for record in kept:
        scheduled = decision.task.build(decision.task.template.space.number(record.configuration))
        wanted = formula(scheduled)
        assert record.outcome.value == (wanted.value if isinstance(wanted, Status) else "ok")
    assert decision.winner is not None
    assert (
        width(
            decision.task.build(decision.task.template.space.number(decision.winner.configuration))
        )
        <= 8
    )
    assert sum(decision.task.errors.values()) == sum(
        count for outcome, count in decision.task.outcomes.items() if outcome is not Outcome.OK
    )
    assert len(decision.task.errors) <= len(FAILURES)


def test_when_everything_fails_nothing_wins_and_the_reasons_are_counted(records: Records) -> None:
    found = tune(elementwise(), Landscape(lambda function: Status.CRASH), trials=4, records=records)
    (decision,) = found.decisions
    assert decision.winner is None
    assert records.best(decision.task.key.workload, X86) is None
    ((key, count),) = decision.task.errors.items()
    assert key[0] is Outcome.CRASH
    assert count == found.trials


def test_resumed_tuning_measures_nothing_twice_wherever_it_broke_off(records: Records) -> None:
    measured: dict[str, int] = {}
    for broken in (7, 13, None):
        land = Landscape(by_width, devices=2, fails_after=broken)
        try:
            found = tune(layers(), land, trials=30, records=records, resume=True)
        except InfrastructureError:
            assert broken is not None
        for name, count in land.measured.items():
            measured[name] = measured.get(name, 0) + count
    assert found.trials == 30
    assert found.measured == 10
    assert set(measured.values()) == {1}
    assert len(measured) == 30


def test_decision_replaces_what_it_knew_of_and_leaves_what_it_could_not_compare(
    records: Records,
) -> None:
    first = tune(layers(), Landscape(by_width), trials=12, records=records).decisions[0].winner
    assert first is not None
    assert first.replaces == ()
    unknown = replace(first, value=1.0, wall=first.wall - 1, run="somebody")
    records.add(winners_=[unknown])  # as by an import
    slow = Landscape(lambda function: 10 * by_width(function))
    second = tune(layers(), slow, trials=12, records=records).decisions[0].winner
    assert second is not None
    assert set(second.replaces or ()) == {first.id, unknown.id}
    assert second.value > first.value
    assert records.standing() == {second.key: second}
    alien = replace(first, configuration={"other": 1}, wall=second.wall + 1, value=1e9)
    alien = replace(alien, replaces=(second.id,))
    records.add(winners_=[alien])
    third = tune(layers(), slow, trials=12, records=records).decisions[0].winner
    assert third is not None
    assert third.replaces == ()
    assert records.standing() == {third.key: third}


def test_tuning_of_another_function_or_device_resumes_nothing(records: Records) -> None:
    tune(layers(), Landscape(by_width), trials=10, records=records)
    for land, function in (
        (Landscape(by_width, host="host-2"), layers()),
        (Landscape(by_width), elementwise()),
    ):
        found = tune(function, land, trials=4, records=records, resume=True)
        assert found.measured == 4


def test_ctrl_c_keeps_what_was_measured(records: Records) -> None:
    def observer(progress: Progress) -> None:
        if progress.measured == 9:
            raise KeyboardInterrupt

    found = tune(layers(), Landscape(by_width), trials=50, records=records, observer=observer)
    assert found.interrupted
    assert found.measured == 9
    assert len(list(records.find())) == 9


def test_trial_of_a_former_run_that_no_schedule_is_made_of_any_more_is_left_out_of_the_comparison(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tune(layers(), Landscape(by_width), trials=12, records=records).decisions[0]
    assert first.winner is not None
    bad = first.task.template.space.number(first.winner.configuration)
    build = Task.build

    def refused(task: Task, number: int) -> Function:
        if number == bad:
            raise ScheduleError("vectorize: not this one any more")
        return build(task, number)

    monkeypatch.setattr(Task, "build", refused)
    land = Landscape(by_width)
    found = tune(layers(), land, trials=12, records=records, resume=True)
    assert found.measured == 0
    assert len(land.compared) == 1
    assert found.decisions[0].winner not in (None, first.winner)


@pytest.mark.parametrize("answers", [True, False])
def test_comparison_that_is_interrupted_is_cancelled(answers: bool) -> None:
    told = []

    def wait() -> None:
        raise KeyboardInterrupt

    def cancel(reason: str) -> None:
        told.append(reason)
        if not answers:
            raise TrackerUnreachable("tracker: nobody answers")

    job = SimpleNamespace(wait=wait, cancel=cancel)
    client = SimpleNamespace(compare=lambda *args, **more: job)
    measurer = FarmMeasurer(client)  # type: ignore[arg-type]
    measurer._places = []
    with pytest.raises(KeyboardInterrupt):
        measurer.compare(Subject(elementwise(), Target.parse(X86)), [elementwise(), elementwise()])
    assert len(told) == 1


def test_best_of_the_most_similar_device_is_measured_first(records: Records) -> None:
    tune(layers(), Landscape(by_width, host="near"), trials=30, records=records)
    known = sorted(records.find(host="near"), key=lambda record: record.value or 0)
    land = Landscape(by_width, host="far")
    tune(layers(), land, trials=11, records=records)
    tried = {record.configuration_text for record in records.find(host="far")}
    assert len(tried) == 11
    assert {record.configuration_text for record in known[:10]} <= tried
    without = Landscape(by_width, host="third")
    tune(layers(), without, trials=11, records=records, transfer=False)
    assert {r.configuration_text for r in records.find(host="third")} != tried


def test_quarantined_candidates_are_not_tried_again(records: Records) -> None:
    def formula(function: Function) -> float | Status:
        return Status.QUARANTINED if width(function) == 16 else by_width(function)

    tune(elementwise(), Landscape(formula), trials=100, records=records)
    bad = [record for record in records.find() if record.outcome is Outcome.QUARANTINED]
    assert len(bad) == 1
    land = Landscape(formula, host="host-2")
    found = tune(elementwise(), land, trials=100, records=records)
    assert found.trials == found.decisions[0].task.template.space.size - 1
    assert not [r for r in records.find(host="host-2") if r.configuration == bad[0].configuration]


class Clock:
    """A clock that goes on by a second with each look."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        self.at += 1
        return self.at

    def wall(self) -> float:
        return 1e9 + self.at


def test_time_and_patience_end_a_search() -> None:
    timed = tune(layers(), Landscape(by_width), trials=1000, time_s=60, clock=Clock())
    assert 3 < timed.trials < 60
    flat = tune(layers(), Landscape(lambda function: 5.0), trials=1000, patience=12)
    assert 12 <= flat.trials <= 15


def test_tuning_near_the_roofline_ends() -> None:
    def formula(own: float) -> Callable[[Function], float]:
        return lambda function: 1.0 if function.name.startswith("ceiling") else own

    fast = tune(layers(), Landscape(formula(0.001)), trials=25, near=0.5)
    assert fast.trials < 5
    slow = tune(layers(), Landscape(formula(1e9)), trials=25, near=0.5)
    assert slow.trials == 25


def test_ceilings_are_recorded_once_for_reports(records: Records) -> None:
    land = Landscape(by_width)
    for _ in range(2):
        tune_whole(layers(), land, trials=2, records=records, transfer=False)
    names = sorted(workload.name for workload in records.workloads())
    assert names == ["ceiling_arithmetic", "ceiling_memory", "layers"]
    assert len([r for r in records.find() if r.template.startswith("ceiling")]) == 2


def test_several_workloads_share_the_trials_where_they_gain_most(records: Records) -> None:
    def formula(function: Function) -> float:
        return by_width(function) if function.name == "gains" else 0.001

    found = tune(
        [layers("gains"), layers("flat")],
        Landscape(formula, devices=2),
        trials=100,
        records=records,
    )
    trials = {decision.task.name: decision.task.trials for decision in found.decisions}
    assert sum(trials.values()) == 100
    assert trials["gains"] > 2 * trials["flat"] >= 32


@pytest.mark.parametrize(("trials", "least"), [(2, 1), (7, 3), (20, 10)])
def test_few_trials_are_shared_by_all_workloads(trials: int, least: int) -> None:
    found = tune([layers("one"), layers("two")], Landscape(by_width, devices=1), trials=trials)
    assert min(decision.task.trials for decision in found.decisions) >= least


class Known:
    def __init__(self, trials: int, bests: list[float], weight: float = 1.0) -> None:
        self.trials, self.bests, self.weight = trials, bests, weight


def test_gradient_prefers_the_unknown_then_what_gains_then_what_counts_more() -> None:
    fresh, gaining = Known(3, [5.0]), Known(40, [100.0] * 30 + [50.0] * 10)
    flat, heavy = Known(40, [50.0] * 40), Known(40, [50.0] * 40, weight=10)
    assert choose([gaining, fresh]) == 1
    assert choose([flat, gaining]) == 1
    assert choose([flat, heavy]) == 1
    assert gradient(Known(40, [])) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda land: tune([], land), "no functions"),
        (lambda land: tune(layers(), land, trials=0), "trials is 0"),
        (lambda land: tune(layers(), land, time_s=-1), "time_s is -1"),
        (lambda land: tune(layers(), land, patience=0), "patience is 0"),
        (lambda land: tune(layers(), land, near=2), "near is 2"),
        (lambda land: tune(layers(), land, resume=True), "no records to resume"),
        (lambda land: tune([layers(), layers()], land), "one name"),
        (lambda land: tune(layers(), land, weights={"other": 2}), "unknown functions"),
        (lambda land: tune(layers(), land, strategy="luck"), "strategy"),
        (lambda land: tune(layers(), land, target="opencl"), "opencl"),
        (lambda land: tune(replace(layers(), target="ea"), land), "the devices run llvm/x86_64"),
    ],
)
def test_what_cannot_be_tuned_is_refused(call: Callable[[Landscape], object], message: str) -> None:
    land = Landscape(by_width)
    with pytest.raises(InvalidInput, match=message):
        call(land)
    assert not land.measured


def test_functions_of_other_targets_and_without_choices_are_skipped_with_the_reason() -> None:
    tiny = elementwise("tiny", 1)
    elsewhere = replace(layers("elsewhere"), target="llvm -mtriple=aarch64-linux-gnu")
    both = [replace(layers(), target=X86), replace(layers(), target="ea")]
    found = tune([tiny, elsewhere, *both], Landscape(by_width), trials=3)
    assert [decision.task.name for decision in found.decisions] == ["layers"]
    reasons = dict(found.skipped)
    assert set(reasons) == {"tiny", "elsewhere"}
    assert "aarch64" in reasons["elsewhere"]
    assert "nothing to choose" in reasons["tiny"]


def test_work_counts_operations_and_bytes() -> None:
    a, b = te.placeholder((4, 8), name="a"), te.placeholder((8, 16), name="b")
    product = te.function("product", [a, b, ops.matmul(a, b)])
    assert work_of(product) == Work(2 * 4 * 8 * 16, 4 * (32 + 128 + 64))
    assert Ceilings(4.0, 2.0).bound(Work(100, 10)) == 25
    assert Ceilings(4.0, 2.0).bound(Work(8, 10)) == 5
