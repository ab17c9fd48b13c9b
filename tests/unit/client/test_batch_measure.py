"""A batch of candidates on devices that come and go, without a farm."""

from __future__ import annotations

import contextlib
import threading
import time
from types import SimpleNamespace

import pytest

from farm.artifact import BuiltModule, ParamSpec, Signature, assemble
from farm.client import Candidate, Workload, batch_measure, lane
from farm.client.batch_measure import Batch, Plan
from farm.errors import (
    BuildFailed,
    Cancelled,
    DeviceLost,
    FarmError,
    InfrastructureError,
    InvalidInput,
    NobodyCanServe,
    TimeLimit,
)
from farm.measuring import Measurement, Options, Samples, Statistics, Status
from farm.target import Target

TARGET = Target.parse("llvm -mtriple=x86_64-linux-gnu")


def artifact():
    """An artifact that nobody runs."""
    module = BuiltModule(
        kind="device",
        symbol="f",
        target=str(TARGET),
        format="elf-object",
        format_version=1,
        requires=TARGET.requires,
        toolchain="test",
        signature=Signature((ParamSpec("y", "int32", (1,), "output"),)),
        data=b"none",
    )
    return assemble(TARGET, [module])


ARTIFACT = artifact()


def measured(value):
    statistics = Statistics(3, 3, value, value, value, 0.0, value, value)
    samples = Samples(cpu_ns=(int(value),) * 3)
    return Measurement(Status.OK, statistics=statistics, samples=samples, host="h")


class FakeClient:
    """Devices that do with a candidate what ``script`` says of (candidate, device)."""

    def __init__(self, devices, script):
        self.free = list(devices)
        self.script = script
        self.measured = []
        self.requests = []
        self.lock = threading.Condition()
        self.store = SimpleNamespace(forget=lambda: True)
        self.held = 0

    @contextlib.contextmanager
    def acquire(self, selector, *, wait_s, holder):
        with self.lock:
            self.lock.wait_for(lambda: self.free, 60)
            name = self.free.pop(0)
            self.held += 1
        try:
            yield FakeSession(self, name)
        finally:
            with self.lock:
                self.free.append(name)
                self.held -= 1
                self.lock.notify_all()


class FakeSession:
    def __init__(self, client, name):
        self.client = client
        self.device = SimpleNamespace(device_id=name, targets=(str(TARGET),))
        self.sent = []

    def send_measure(self, request):
        self.sent.append(request)
        self.client.requests.append(request)
        return len(self.sent) - 1

    def receive_measured(self, seq):
        key = self.sent[seq].subject.name
        self.client.measured.append((key, self.device.device_id))
        outcome = self.client.script(key, self.device.device_id)
        if isinstance(outcome, FarmError):
            raise outcome
        return outcome

    def close(self):
        pass


def run(client, keys, *, devices=1, builds_ahead=3, **more):
    plan = Plan("", devices, Workload(), Options(), builds_ahead, more.pop("race", True), None)
    batch = Batch(client, plan)
    try:
        return list(batch.measure(Candidate(key, ARTIFACT) for key in keys))
    finally:
        batch.close()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(lane, "PAUSE_S", 0.0)
    monkeypatch.setattr(lane, "IDLE_S", 0.01)
    monkeypatch.setattr(batch_measure, "PAUSE_S", 0.0)


def lost(key):
    return DeviceLost(f"lease of {key}: its agent's stream broke; attach again")


def test_result_that_is_there_is_given_before_another_candidate_is_taken():
    client = FakeClient(["a"], lambda key, device: measured(10.0))
    batch = Batch(client, Plan("", 1, Workload(), Options(), 4, True, None))
    taken = []

    def candidates():
        for number in range(4):
            until = time.monotonic() + 30
            while batch._outstanding and batch._results.empty() and time.monotonic() < until:
                time.sleep(0.001)  # choosing takes as long as measuring
            taken.append(number)
            yield Candidate(str(number), ARTIFACT)

    with contextlib.closing(batch):
        counts = [len(taken) for _ in batch.measure(candidates())]
    assert len(counts) == 4
    assert all(count <= given + 2 for given, count in enumerate(counts)), counts


def test_candidate_that_kills_two_devices_is_quarantined_and_the_others_are_measured_once():
    client = FakeClient(
        ["a", "b"], lambda key, device: lost(key) if key == "bad" else measured(10.0)
    )
    found = run(client, ["one", "bad", "two", "three"])
    by_key = {it.candidate.key: it for it in found}
    assert len(found) == 4
    assert by_key["bad"].status is Status.QUARANTINED
    assert set(by_key["bad"].lost_devices) == {"a", "b"}
    assert "not tried again" in by_key["bad"].error.message
    for key in ("one", "two", "three"):
        assert by_key[key].status is Status.OK
        assert [it for it, _ in client.measured].count(key) == 1
    assert client.held == 0


def test_candidate_whose_device_went_away_is_measured_on_another():
    gone = []

    def script(key, device):
        if key == "x" and not gone:
            gone.append(device)
            return lost(key)
        return measured(10.0)

    (found,) = run(FakeClient(["a", "b"], script), ["x"])
    assert (found.status, found.lost_devices) == (Status.OK, ("a",))
    assert found.device_id == "b"


def test_candidate_that_kills_the_only_device_again_and_again_is_quarantined():
    found = run(FakeClient(["a"], lambda key, device: lost(key)), ["x"])
    assert [it.status for it in found] == [Status.QUARANTINED]


def test_farm_that_fails_for_long_ends_the_batch(monkeypatch):
    monkeypatch.setattr(lane, "AWAY_S", -1.0)
    failing = InfrastructureError("agent: its disk is full; free it")
    with pytest.raises(InfrastructureError, match="disk"):
        run(FakeClient(["a"], lambda key, device: failing), ["x", "y"])


def test_error_that_no_retry_mends_ends_the_batch_at_once():
    refused = InvalidInput("reference f: does not run on this device; correct it")
    with pytest.raises(InvalidInput, match="reference"):
        run(FakeClient(["a"], lambda key, device: refused), ["x"])


def test_batch_without_any_device_says_so():
    client = FakeClient([], None)

    def acquire(selector, *, wait_s, holder):
        raise NobodyCanServe("selector: no device matches; see `farm devices`")

    client.acquire = acquire
    with pytest.raises(NobodyCanServe):
        run(client, ["x"])


def test_later_candidates_are_raced_against_the_best_so_far():
    values = iter([50.0, 20.0, 30.0, 40.0])
    client = FakeClient(["a"], lambda key, device: measured(next(values)))
    run(client, ["a", "b", "c", "d"], builds_ahead=1)
    assert [request.incumbent for request in client.requests] == [0.0, 50.0, 20.0, 20.0]
    assert not any(request.unraced for request in client.requests)
    client = FakeClient(["a"], lambda key, device: measured(20.0))
    run(client, ["a", "b"], builds_ahead=1, race=False)
    assert [request.incumbent for request in client.requests] == [0.0, 0.0]
    assert all(request.unraced for request in client.requests)


def test_candidates_are_taken_in_the_callers_thread_and_not_far_ahead():
    taken, threads = [], set()

    def candidates():
        for number in range(20):
            taken.append(number)
            threads.add(threading.current_thread())
            yield Candidate(str(number), ARTIFACT)

    client = FakeClient(["a", "b"], lambda key, device: measured(1.0))
    batch = Batch(client, Plan("", 2, Workload(), Options(), 3, True, None))
    results = batch.measure(candidates())
    try:
        for count, _ in enumerate(results, 1):
            # Ready or being built: 3; on their way to two devices: 4; done, and waiting to be given: the rest.
            assert len(taken) - len(client.measured) <= 3 + 4 + 1
            if count == 20:
                break
    finally:
        batch.close()
    assert threads == {threading.current_thread()}
    assert sorted(map(int, (key for key, _ in client.measured))) == list(range(20))


def test_candidate_that_does_not_build_never_reaches_a_device():
    client = FakeClient(["a"], lambda key, device: measured(1.0))

    def build(request):
        raise BuildFailed("f for llvm: no; correct it")

    client.build = build
    from farm import te

    x = te.placeholder((4,), "int32", name="x")
    function = te.function("f", [x, te.compute((4,), lambda i: x[i], name="y")])
    batch = Batch(client, Plan("", 1, Workload(), Options(), 2, True, None))
    try:
        found = list(batch.measure([Candidate("bad", function), Candidate("good", ARTIFACT)]))
    finally:
        batch.close()
    by_key = {it.candidate.key: it.status for it in found}
    assert by_key == {"bad": Status.BUILD_FAILED, "good": Status.OK}
    assert client.measured == [("good", "a")]


def doubled(build):
    """What comes of two functions, the second asked for when the first was built."""
    client = FakeClient(["a"], lambda key, device: measured(1.0))
    client.build = build
    from farm import te

    x = te.placeholder((4,), "int32", name="x")
    function = te.function("f", [x, te.compute((4,), lambda i: x[i], name="y")])
    batch = Batch(client, Plan("", 1, Workload(), Options(), 1, True, None))

    try:  # one is built at a time
        found = list(batch.measure(Candidate(key, function) for key in ("one", "two")))
        return [it.status for it in found]
    finally:
        batch.close()


@pytest.mark.parametrize(
    "error",
    [
        NobodyCanServe("build: no agent builds llvm/x86_64; start one"),
        Cancelled("call: CANCELLED", grpc="CANCELLED"),  # of a tracker that is being stopped
        TimeLimit("call: DEADLINE_EXCEEDED", grpc="DEADLINE_EXCEEDED"),  # of one that stands still
        InfrastructureError("call: INTERNAL"),
    ],
)
def test_builder_that_is_gone_for_a_while_ends_no_batch(error):
    answers = iter([ARTIFACT, error, error, ARTIFACT])

    def build(request):
        answer = next(answers)
        if isinstance(answer, FarmError):
            raise answer
        return answer

    assert doubled(build) == [Status.OK, Status.OK]


def test_batch_that_nobody_ever_built_for_ends_at_once():
    def build(request):
        raise NobodyCanServe("build: no agent builds llvm/x86_64; start one")

    with pytest.raises(NobodyCanServe):
        doubled(build)


@pytest.mark.parametrize(
    "error",
    [
        Cancelled("call: CANCELLED", grpc="CANCELLED"),
        TimeLimit("call: DEADLINE_EXCEEDED", grpc="DEADLINE_EXCEEDED"),
    ],
)
def test_tracker_that_stops_or_stands_still_ends_no_batch(error):
    answers = iter([error, error])
    client = FakeClient(["a"], lambda key, device: next(answers, None) or measured(1.0))
    assert [it.status for it in run(client, ["x"])] == [Status.OK]


def test_closing_early_gives_the_devices_back():
    client = FakeClient(["a", "b"], lambda key, device: measured(1.0))
    batch = Batch(client, Plan("", 2, Workload(), Options(), 4, True, None))
    results = batch.measure(Candidate(str(n), ARTIFACT) for n in range(1000))
    next(results)
    batch.close()
    with client.lock:
        assert client.lock.wait_for(lambda: client.held == 0, 10)
