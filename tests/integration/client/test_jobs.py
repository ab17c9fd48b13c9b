"""Jobs and operators' calls on a farm of processes."""

from __future__ import annotations

import numpy as np
import pytest

import farm
from farm import te
from farm.client import JobState, Outcome, Verdict
from farm.errors import Cancelled, InvalidInput, NobodyCanServe

CPU = "kind=cpu,emulator!=qemu-user"


@pytest.fixture
def client(embedded_farm):
    with farm.connect(embedded_farm.address) as connected:
        yield connected


@pytest.fixture(scope="module")
def kernel():
    x = te.placeholder((16,), "int32", name="x")
    y = te.compute((16,), lambda i: x[i] * 3, name="y")
    return farm.build({"llvm": [te.function("triple", [x, y])]})


def test_job_runs_and_gives_its_result(client, kernel):
    job = client.submit(kernel, "triple", [np.arange(16, dtype=np.int32)], selector=CPU, repeat=5)
    result = job.result(60)
    assert result.outputs[0].tolist() == [3 * n for n in range(16)]
    assert len(result.samples_ns) == 5
    assert result.target.startswith("llvm")
    info = job.status()
    assert (info.state, info.outcome, info.verdict) == (
        JobState.TERMINAL,
        Outcome.COMPLETED,
        Verdict.PASS,
    )
    assert [attempt.device_id for attempt in info.attempts] == [result.device_id]


def test_same_submit_is_one_job_and_another_under_its_key_is_refused(client, kernel):
    x = np.ones(16, np.int32)
    first = client.submit(kernel, "triple", [x], selector=CPU, client_key="on-a-farm")
    again = client.submit(kernel, "triple", [x], selector=CPU, client_key="on-a-farm")
    assert (again.job_id, again.existed) == (first.job_id, True)
    with pytest.raises(InvalidInput):
        client.submit(kernel, "triple", [x + 1], selector=CPU, client_key="on-a-farm")
    assert first.result(60).outputs[0].tolist() == [3] * 16


def test_job_for_nobody_is_refused_unless_it_may_wait(client, kernel):
    x = np.ones(16, np.int32)
    with pytest.raises(NobodyCanServe, match="kind"):
        client.submit(kernel, "triple", [x], selector="kind=gpu")
    job = client.submit(kernel, "triple", [x], selector="kind=gpu", wait_for_device=True)
    assert job.status().state is JobState.QUEUED
    why = job.why()
    assert why.reason
    assert why.devices == {}
    assert job.job_id in [info.job_id for info in client.jobs()]
    job.cancel("not needed")
    with pytest.raises(Cancelled):
        job.result(30)
    assert job.job_id not in [info.job_id for info in client.jobs()]
    assert job.job_id in [info.job_id for info in client.jobs(include_ended=True)]


def test_job_waits_for_a_device_that_is_held_and_says_so(client, kernel):
    hold = client.hold(CPU, ttl_s=120, holder="the test")
    try:
        job = client.submit(kernel, "triple", [np.ones(16, np.int32)], selector=CPU)
        why = job.why()
        assert why.position == 1
        assert hold.device.device_id in why.devices
        (lease,) = [it for it in client.leases() if it.lease_id == hold.lease_id]
        assert (lease.device_id, lease.holder, lease.job_id) == (
            hold.device.device_id,
            "the test",
            "",
        )
        assert client.extend(hold.lease_id, 60, lease_token=hold.lease_token) == 60
    finally:
        client.release(hold.lease_id, lease_token=hold.lease_token)
    assert job.result(60).outputs[0].tolist() == [3] * 16


def test_drained_device_takes_nothing_until_it_is_resumed(client, kernel):
    (device,) = client.devices(CPU)
    name = f"device_id={device.device_id}"
    client.drain(name, "the test")
    try:
        job = client.submit(kernel, "triple", [np.ones(16, np.int32)], selector=name)
        assert "the test" in str(job.why())
        assert job.status().state is JobState.QUEUED
    finally:
        client.resume(name)
    assert job.result(60).outputs[0].tolist() == [3] * 16
    kinds = [event.kind for event in client.events() if event.subject == device.device_id]
    assert kinds


def test_events_tell_of_a_job(client, kernel):
    before = max((event.number for event in client.events()), default=0)
    job = client.submit(kernel, "triple", [np.ones(16, np.int32)], selector=CPU)
    job.wait(60)
    mine = [event for event in client.events(after=before) if event.subject == job.job_id]
    assert mine
    assert [event.number for event in mine] == sorted({event.number for event in mine})
