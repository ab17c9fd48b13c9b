"""Disks that are full, and blobs whose bits have changed or that are gone.

Promised: a full disk on an agent is the farm's fault, never the kernel's; the work is tried elsewhere, and no torn file
is left. On a tracker's full disk new jobs are refused with STORE_FULL, while results still commit; what has no room yet
stays with its agent. A damaged or lost blob is found by its digest: it is fetched again where a good one is, else the
work fails by the farm's fault, and a build's cache does not count it: what is built again is replaced at once.
Seen here: outcomes, attempts and errors as clients get them, every file of the caches against its name, and the rows of
the kernels' own witness.
"""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest

import farm
from farm import te
from farm.client.job import Outcome, Verdict
from farm.errors import InfrastructureError, StoreFull
from fault.disks import check_can_mount, fill, small_disk
from fault.farms import LIMIT_S, until
from fault.witness import TARGET

NUMBERS = itertools.count(1)
FAMILY = "llvm/x86_64"


def torn(folder):
    """Files whose content is not what their name says."""
    named = [it for it in folder.rglob("*") if it.is_file() and len(it.name) == 64]
    return [it for it in named if hashlib.sha256(it.read_bytes()).hexdigest() != it.name]


def function(number):
    x = te.placeholder((4,), "int32", name="x")
    return te.function("f", [x, te.compute((4,), lambda i: x[i] - number, name="y")])


def wide(number):
    """A function whose output is too large for a message, so that it is a blob, and another each time."""
    x = te.placeholder((1,), "int32", name="x")
    size = 1 << 18
    return te.function("w", [x, te.compute((size,), lambda i: x[0] + number, name="y")])


def test_full_disk_of_an_agent_is_the_farms_fault_and_the_work_goes_elsewhere(make_farm):
    check_can_mount()
    running = make_farm()
    running.start_tracker()
    full = running.start_agent(
        "a1", "cpu", builds=[FAMILY], slots=4, prefix=small_disk(running.folder("a1"), "16m")
    )
    client = running.client()
    running.until_good(client, "a1-cpu")
    filler = fill(running.view("a1"))
    number, mine = next(NUMBERS), next(NUMBERS)
    running.start_agent("a2", "cpu", builds=[FAMILY])
    running.until_good(client, "a1-cpu", "a2-cpu")
    with client.acquire("device_id=a2-cpu"):
        failed = client.submit(
            running.artifact,
            "witness",
            [np.array([mine, 1, 0], np.int32)],
            selector="device_id=a1-cpu",
        )
        info = failed.wait(LIMIT_S)
        assert (info.outcome, info.verdict) == (Outcome.INFRA_FAILED, None), running.story()
        assert [it.state.value for it in info.attempts] == ["infra_failed"] * 3
        assert "No space left" in str(info.failure)
    jobs = [running.submit(client, it) for it in (number, *itertools.islice(NUMBERS, 3))]
    running.check(client, reruns=True)  # those that a1 began were tried on a2
    assert all(job.status().attempts[-1].device_id == "a2-cpu" for job in jobs)
    assert running.runs(mine) == (0, 0)
    artifact = client.build({TARGET: [function(next(NUMBERS))]})
    assert list(artifact.symbols) == ["f"]
    assert torn(running.view("a1")) == []
    filler.unlink()
    running.submit(client, next(NUMBERS), selector="device_id=a1-cpu")
    running.check(client, reruns=True)
    assert full.ended is None


def test_full_disk_of_the_tracker_refuses_what_is_new_and_keeps_what_was_promised(make_farm):
    check_can_mount()
    running = make_farm()
    data = running.root / "tracker"
    tracker = running.start_tracker(prefix=small_disk(data, "64m"))
    running.start_agent("a1", "cpu")
    client = running.client()
    running.until_good(client, "a1-cpu")
    shift = next(NUMBERS)
    artifact = farm.build({TARGET: [wide(shift)]})
    first = running.submit(client, next(NUMBERS), ticks=100)
    large = client.submit(artifact, "w", [np.array([1], np.int32)], selector="kind=cpu")
    running.until_runs(1 if not running.jobs else max(running.jobs))
    seen = tracker_view(tracker, data)
    filler = fill(seen)
    with pytest.raises(StoreFull, match="its disk is full"):
        running.submit(client, next(NUMBERS))
    running.jobs.pop(max(running.jobs))
    with pytest.raises(StoreFull):
        client.submit(artifact, "w", [np.arange(1 << 20, dtype=np.int32)])
    assert first.wait(LIMIT_S).verdict is Verdict.PASS  # committed while the disk was full
    outbox = running.folder("a1") / "outbox"
    record = outbox / f"{large.job_id}.1.run"
    until(lambda: record.exists() and b"llvm" in record.read_bytes(), running.story())
    assert not large.status().ended  # its output has no room yet, and is not lost
    filler.unlink()
    assert (large.result(LIMIT_S).outputs[0] == 1 + shift).all()
    assert len(large.status().attempts) == 1
    running.submit(client, next(NUMBERS))
    running.check(client)
    assert torn(seen) == []


def tracker_view(tracker, data):
    return type(data)(f"/proc/{tracker.pid}/root{data}")


@pytest.fixture(scope="module")
def running(shared_farm):
    shared_farm.start_tracker()
    shared_farm.start_agent("a1", "cpu", builds=[FAMILY])
    shared_farm.until_good(shared_farm.client(), "a1-cpu")
    return shared_farm


@pytest.fixture(scope="module")
def client(running):
    return running.client()


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def remove(path):
    path.unlink()


def in_store(running, digest):
    name = digest.sha256
    return running.root / "tracker" / "cas" / "blobs" / name[:2] / name[2:4] / name


def in_cache(running, digest):
    name = digest.sha256
    (found,) = (running.folder("a1") / "cache").rglob(name)
    return found


@pytest.fixture
def program(client):
    """An artifact that nobody has seen, and what its function takes away."""
    shift = next(NUMBERS)
    return client.build({TARGET: [function(shift)]}), shift


@pytest.mark.parametrize("damage", [flip, remove])
def test_blob_damaged_in_an_agents_cache_is_fetched_again(running, client, program, damage):
    artifact, shift = program
    values = np.zeros(4, np.int32)
    client.submit(artifact, "f", [values], selector="kind=cpu").result(LIMIT_S)
    damage(in_cache(running, artifact.digest))
    job = client.submit(artifact, "f", [values], selector="kind=cpu")
    assert job.result(LIMIT_S).outputs[0].tolist() == [-shift] * 4
    assert len(job.status().attempts) == 1
    assert torn(running.folder("a1")) == []


@pytest.mark.parametrize("damage", [flip, remove])
def test_blob_damaged_in_the_store_fails_by_the_farms_fault_until_it_is_sent_again(
    running, client, program, damage
):
    artifact, shift = program
    values = np.zeros(4, np.int32)
    with client.acquire("kind=cpu"):  # so that the job waits
        job = client.submit(artifact, "f", [values], selector="kind=cpu")
        damage(in_store(running, artifact.digest))
    info = job.wait(LIMIT_S)
    assert (info.outcome, info.verdict) == (Outcome.INFRA_FAILED, None), running.story()
    assert isinstance(info.failure, InfrastructureError)
    assert artifact.digest.sha256 in str(info.failure)
    assert not in_store(running, artifact.digest).exists()
    again = client.submit(artifact, "f", [values], selector="kind=cpu")  # sends what is missing
    assert again.result(LIMIT_S).outputs[0].tolist() == [-shift] * 4
    assert torn(running.root / "tracker") == []


@pytest.mark.parametrize("damage", [flip, remove])
def test_build_whose_cached_module_is_damaged_is_built_again(running, client, program, damage):
    artifact, shift = program
    store = running.root / "tracker" / "cas" / "blobs"
    (section,) = artifact.sections
    content = hashlib.sha256(section.data).hexdigest()
    damage(store / content[:2] / content[2:4] / content)
    damage(in_store(running, artifact.digest))
    cached = []

    def build():
        return client.build(
            {TARGET: [function(shift)]}, progress=lambda news: cached.append(news.cached)
        )

    assert build().digest == artifact.digest
    assert False in cached  # compiled again
    assert torn(running.root / "tracker") == []
