"""Measuring many candidates on a whole farm: every one has a result, under its right status."""

from __future__ import annotations

import candidates
import pytest

import farm
from farm import te
from farm.client import Candidate, Workload
from farm.errors import InvalidInput, NobodyCanServe
from farm.ir.declaration import functions_of
from farm.measuring import CacheMode, Options, Status, Verdict
from farm.runtime.qemu import find_emulator

TARGET = "llvm -mtriple=x86_64-linux-gnu"
OPTIONS = Options(samples=3, sample_s=0.001, warm_up_s=0.02)
WORKLOAD = Workload(reference=candidates.twice(), seed=3)
CPU = "kind=cpu,emulator!=qemu-user"


@pytest.fixture(scope="module")
def client(embedded_farm):
    """A client of the farm that tests share."""
    with farm.connect(embedded_farm.address) as connected:
        yield connected


def handmade(name):
    return Candidate(name, candidates.artifact(name, candidates.BODIES[name]), symbol=name)


def does_not_build():
    text = b"; farm: twice(x: float32[4], y: float32[4] inout)\ndefine void @other() { ret void }\n"
    return Candidate("broken", functions_of("x.ll", text)[0], TARGET)


def test_every_candidate_has_its_result_and_only_right_ones_have_a_value(client):
    given = [
        Candidate("own", candidates.twice(), TARGET),
        does_not_build(),
        *map(handmade, ("right", "half", "crash", "row")),
    ]
    found = {
        it.candidate.key: it
        for it in client.measure(
            given, workload=WORKLOAD, selector=CPU, options=OPTIONS, race=False
        )
    }
    assert {key: it.status for key, it in found.items()} == {
        "own": Status.OK,
        "broken": Status.BUILD_FAILED,
        "right": Status.OK,
        "half": Status.WRONG,
        "crash": Status.CRASH,
        "row": Status.WRONG,
    }
    for it in found.values():
        assert (it.value is not None) == (it.status is Status.OK) == (it.error is None)
    assert found["own"].measurement.checked
    assert found["own"].device_id
    assert found["broken"].device_id == ""


def test_candidates_may_depend_on_results_that_were_given_before(client):
    told, asked = [], []

    def ask():
        while len(asked) < 4:
            if len(told) < len(asked):
                yield None
                continue
            asked.append(f"c{len(asked)}")
            yield Candidate(asked[-1], candidates.twice(), TARGET)

    for result in client.measure(ask(), selector=CPU, options=OPTIONS, builds_ahead=1):
        told.append(result.candidate.key)
    assert told == asked == ["c0", "c1", "c2", "c3"]


def test_two_candidates_of_one_key_are_refused_and_the_device_is_back(client):
    given = [handmade("right"), handmade("right")]
    with pytest.raises(InvalidInput, match="one key"):
        list(client.measure(given, selector=CPU, options=OPTIONS))
    with client.acquire(CPU, wait_s=200.0):
        pass


def test_measure_that_no_device_can_do_is_refused(client):
    with pytest.raises(NobodyCanServe):
        list(client.measure([handmade("right")], selector="kind=toaster"))


@pytest.mark.parametrize("wrong", [{"builds_ahead": 0}, {"devices": 0}])
def test_measure_out_of_range_is_refused(client, wrong):
    with pytest.raises(InvalidInput):
        list(client.measure([handmade("right")], **wrong))


@pytest.mark.parametrize("cache", [CacheMode.COLD, CacheMode.ROTATE])
def test_cache_modes_are_part_of_what_comes_back(client, cache):
    options = Options(cache=cache, samples=3, sample_s=0.001, warm_up_s=0.02)
    (found,) = client.measure([handmade("right")], selector=CPU, options=options, workload=WORKLOAD)
    assert (found.status, found.measurement.cache) == (Status.OK, cache)


def test_comparison_is_a_job_that_says_what_is_slower(client):
    given = [handmade("right"), Candidate("own", candidates.twice(), TARGET), handmade("slow")]
    options = Options(samples=3, sample_s=0.001, warm_up_s=0.02, budget_s=20.0, limit_s=400.0)
    job = client.compare(
        given,
        workload=WORKLOAD,
        selector=CPU,
        options=options,
        threshold=0.4,
        rounds=(10, 20),
        client_key="compare-1",
    )
    result = job.result(timeout_s=250)
    found = result.comparison
    assert [it.status for it in found.measurements] == [Status.OK] * 3
    assert found.pairs[1].verdict is Verdict.SLOWER
    assert found.pairs[1].low > 100
    assert result.job.candidates == ("right", "own", "slow")
    assert (result.outputs, result.device_id != "") == ((), True)
    again = client.compare(
        given,
        workload=WORKLOAD,
        selector=CPU,
        options=options,
        threshold=0.4,
        rounds=(10, 20),
        client_key="compare-1",
    )
    assert (again.job_id, again.existed) == (job.job_id, True)
    (listed,) = [it for it in client.jobs(include_ended=True) if it.job_id == job.job_id]
    assert listed.candidates == ("right", "own", "slow")


def test_comparison_of_cycles_is_exact(client):
    plain = product("plain")
    job = client.compare(
        [Candidate("one", plain, "ea"), Candidate("two", product("other"), "ea")],
        workload=Workload(reference=plain),
        selector="kind=ea",
    )
    found = job.result(timeout_s=250).comparison
    (pair,) = found.pairs
    assert (pair.verdict, pair.ratio, pair.low, pair.high) == (Verdict.SAME, 1, 1, 1)


@pytest.mark.parametrize(
    ("names", "more"),
    [
        (["right"], {}),
        (["right", "right"], {}),
        (["right", "slow"], {"threshold": 2.0}),
        (["right", "slow"], {"rounds": (1, 2)}),
    ],
)
def test_comparison_out_of_range_is_refused(client, names, more):
    with pytest.raises(InvalidInput):
        client.compare([handmade(name) for name in names], selector=CPU, **more)


def test_comparison_with_a_candidate_that_is_wrong_says_so(client):
    job = client.compare([handmade("right"), handmade("half")], workload=WORKLOAD, selector=CPU)
    found = job.result(timeout_s=250).comparison
    assert [it.status for it in found.measurements] == [Status.OK, Status.WRONG]
    assert (found.pairs[0].verdict, found.rounds) == (Verdict.NONE, 0)


def product(name):
    """An integer product that the accelerator takes."""
    a = te.placeholder((32, 32), "int8", name="a")
    b = te.placeholder((32, 32), "int8", name="b")
    k = te.reduce_axis(32, "k")
    c = te.compute(
        (32, 32),
        lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), k),
        name="c",
    )
    return te.function(name, [a, b, c])


@pytest.mark.skipif(not find_emulator("aarch64"), reason="qemu-user is not installed")
def test_emulated_cpu_is_checked_and_its_time_is_of_its_own_class(client):
    given = [Candidate("emulated", candidates.twice(), "llvm -mtriple=aarch64-linux-gnu")]
    (found,) = client.measure(given, workload=WORKLOAD, selector="arch=aarch64", options=OPTIONS)
    assert found.status is Status.OK, found.error
    measurement = found.measurement
    assert (measurement.timing_class, measurement.clock) == ("emulated", "wall_ns")
    assert (measurement.checked, measurement.samples.cpu_ns) == (True, ())
    assert found.value > 0


def test_accelerator_is_timed_in_cycles_and_what_runs_beside_it_is_refused(client):
    layer = product("product")
    given = [
        Candidate("ea", layer, "ea"),
        Candidate("host", layer, "llvm"),
    ]
    found = {
        it.candidate.key: it
        for it in client.measure(
            given, workload=Workload(reference=layer), selector="kind=ea", options=OPTIONS
        )
    }
    measurement = found["ea"].measurement
    assert (found["ea"].status, measurement.unit, measurement.clock) == (
        Status.OK,
        "cycles",
        "cycles",
    ), found["ea"]
    assert measurement.timing_class == "simulated"
    assert measurement.checked
    assert len(set(measurement.samples.observed["cycles"])) == 1
    assert found["ea"].value > 100
    assert found["host"].status is Status.REFUSED
