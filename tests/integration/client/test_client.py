"""The client against a farm of processes."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest

import farm
from farm import te
from farm.building import ItemState
from farm.errors import (
    ArtifactError,
    BuildFailed,
    DeviceBusy,
    Fenced,
    InvalidArguments,
    InvalidInput,
    NobodyCanServe,
    NotFound,
    NoVariant,
    TrackerUnreachable,
)

ARM = "llvm -mtriple=aarch64-linux-gnu"


@pytest.fixture
def client(embedded_farm):
    with farm.connect(embedded_farm.address) as connected:
        yield connected


def scale(name="scale", factor=3, size=16):
    x = te.placeholder((size,), "int32", name="x")
    return te.function(name, [x, te.compute((size,), lambda i: x[i] * factor, name="y")])


def layer():
    x = te.placeholder((9, 20), "int8", name="x")
    w = te.placeholder((20, 7), "int8", name="w")
    k = te.reduce_axis(20)
    y = te.compute(
        (9, 7), lambda i, j: te.sum(x[i, k].astype("int32") * w[k, j].astype("int32"), k), name="y"
    )
    return te.function("layer", [x, w, y])


def test_build_on_the_farm_gives_the_bytes_of_a_local_build(client):
    request = {"ea": [layer()], "llvm": [layer(), scale()], ARM: [layer(), scale()]}
    events = []
    artifact = client.build(request, variants=True, progress=events.append)
    assert artifact.digest == farm.build(request, variants=True).digest
    done = [event for event in events if event.state is ItemState.DONE]
    assert len(done) == 6
    assert len({event.agent_id for event in done}) == 3


def test_build_again_is_served_from_the_cache(client):
    request = {"llvm": [scale("cached", 11)]}
    first = client.build(request)
    events = []
    assert client.build(request, progress=events.append).digest == first.digest
    assert [event.cached for event in events if event.state is ItemState.DONE] == [True]


def test_build_of_something_unsupported_reports_it_by_target(client):
    x = te.placeholder((4,), "float32", name="x")
    bad = te.function("bad", [x, te.compute((4,), lambda i: te.exp(x[i]), name="y")])
    with pytest.raises(BuildFailed, match="bad for ea -config=ea16") as caught:
        client.build({"ea": [bad], "llvm": [scale()]}, keep_going=True)
    assert caught.value.details["ea -config=ea16/bad"] == "UNSUPPORTED_FUNCTION"


def test_build_for_a_target_that_no_agent_builds_names_what_they_build(client):
    with pytest.raises(NobodyCanServe, match="llvm/aarch64"):
        client.build({"llvm -mtriple=riscv64-linux-gnu": [scale()]})


@pytest.mark.parametrize("selector", ["kind=ea", "kind=cpu,emulator!=qemu-user"])
def test_session_loads_calls_and_times(client, selector):
    artifact = client.build({"ea": [layer()], "llvm": [layer()]}, variants=True)
    rng = np.random.default_rng(0)
    x, w = rng.integers(-128, 128, (9, 20), np.int8), rng.integers(-128, 128, (20, 7), np.int8)
    with client.acquire(selector) as session:
        module = session.load(artifact)
        np.testing.assert_array_equal(module["layer"](x, w), x.astype(np.int32) @ w)
        timing = module.time("layer", x, w, repeat=7)
    assert len(timing.samples_ns) == 7
    assert 0 < timing.min_s <= timing.median_s
    assert timing.timing_class == ("simulated" if "ea" in selector else "native")


@pytest.mark.parametrize("size", [16, 40_000, 100_000], ids=["small", "large output", "blobs"])
def test_load_and_call_is_what_both_are_one_after_the_other(client, size):
    artifact = farm.build({"llvm": [scale(size=size), scale("twice", 2, size)]})
    x = np.arange(size, dtype=np.int32)
    with client.acquire("kind=cpu,emulator!=qemu-user") as session:
        module, tripled = session.load_and_call(artifact, "scale", x)
        assert (tripled == 3 * x).all()
        assert (module["twice"](x) == 2 * x).all()
        with pytest.raises(NotFound, match="there is scale, twice"):
            session.load_and_call(artifact, "thrice", x)
        with pytest.raises(InvalidArguments):
            session.load_and_call(artifact, "scale", x[1:])
        assert (module["scale"](x) == 3 * x).all()


def test_artifact_too_large_for_the_request_is_loaded_from_the_store(client, monkeypatch):
    monkeypatch.setattr("farm.client.session.MAX_INLINE_ARTIFACT_BYTES", 0)
    artifact = farm.build({"llvm": [scale(factor=7)]})
    with client.acquire("kind=cpu,emulator!=qemu-user") as session:
        scaled = session.load(artifact)["scale"](np.arange(16, dtype=np.int32))
    assert (scaled == 7 * np.arange(16)).all()


def test_large_arrays_travel_through_the_store(client):
    size = 1 << 20
    artifact = client.build({"llvm": [scale("large", 5, size)]})
    x = np.arange(size, dtype=np.int32)
    with client.acquire("kind=cpu,emulator!=qemu-user") as session:
        np.testing.assert_array_equal(session.load(artifact)["large"](x), x * 5)


def test_call_with_arrays_that_do_not_fit_is_refused_before_it_is_sent(client):
    artifact = client.build({"llvm": [scale()]})
    with client.acquire("kind=cpu,emulator!=qemu-user") as session:
        function = session.load(artifact)["scale"]
        for arrays in ([np.zeros(16, np.int64)], [np.zeros(15, np.int32)], []):
            with pytest.raises(InvalidArguments, match="scale"):
                function(*arrays)
        assert function(np.ones(16, np.int32)).tolist() == [3] * 16


def test_unknown_function_names_those_that_exist(client):
    artifact = client.build({"llvm": [scale()]})
    with (
        client.acquire("kind=cpu,emulator!=qemu-user") as session,
        pytest.raises(NotFound, match="scale"),
    ):
        session.load(artifact)["other"]


def test_load_of_an_artifact_without_a_slice_lists_has_and_needs(client):
    artifact = client.build({ARM: [scale()]})
    with (
        client.acquire("kind=ea") as session,
        pytest.raises(NoVariant, match="aarch64"),
    ):
        session.load(artifact)


def test_load_of_a_damaged_file_is_refused(client, tmp_path):
    path = tmp_path / "broken.farm"
    data = bytearray(client.build({"llvm": [scale()]}).to_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with client.acquire("kind=ea") as session, pytest.raises(ArtifactError):
        session.load(path)


def test_acquire_of_what_nobody_has_names_the_nearest(client):
    with pytest.raises(NobodyCanServe, match="kind=gpu"):
        client.acquire("kind=gpu")


def test_acquire_of_a_busy_device_waits_or_says_so(client):
    with client.acquire("kind=ea") as session:
        with pytest.raises(DeviceBusy, match=session.device.device_id):
            client.acquire("kind=ea", wait_s=0)
        taken = []
        waiter = threading.Thread(
            target=lambda: taken.append(client.acquire("kind=ea", wait_s=200))
        )
        waiter.start()
    waiter.join(200)
    assert taken[0].device.device_id == session.device.device_id
    taken[0].close()


def test_lease_of_a_client_that_stopped_renewing_ends_and_is_fenced(client, embedded_farm):
    stopped = client.acquire("kind=ea", ttl_s=3.0)
    stopped._closing.set()  # what a frozen process does: it renews no more
    stopped._renewer.join()
    stopped._closing.clear()
    with farm.connect(embedded_farm.address) as other, other.acquire("kind=ea", wait_s=200):
        with pytest.raises(Fenced):
            stopped.load(client.build({"llvm": [scale()]}))
        stopped.close()


def test_closed_session_refuses_work(client):
    session = client.acquire("kind=ea")
    session.close()
    session.close()
    with pytest.raises(InvalidInput, match="closed"):
        session.load(client.build({"llvm": [scale()]}))


def test_run_takes_a_device_and_gives_it_back(client):
    artifact = client.build({"ea": [scale()], "llvm": [scale()]}, variants=True)
    devices = []
    outcome = client.run(
        artifact,
        "scale",
        [np.ones(16, np.int32)],
        selector="kind=ea",
        repeat=3,
        leased=devices.append,
    )
    assert outcome.outputs[0].tolist() == [3] * 16
    assert len(outcome.samples_ns) == 3
    assert outcome.target == "ea -config=ea16"
    assert devices == [outcome.device]
    with client.acquire("kind=ea", wait_s=200):
        pass


def test_connect_to_somebody_who_is_silent_says_so(monkeypatch):
    monkeypatch.setattr("farm.client.client.CONNECT_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        with pytest.raises(TrackerUnreachable, match="farm up"):
            farm.connect(f"{host}:{port}")


def test_connect_to_nobody_says_how_to_start_one():
    with pytest.raises(TrackerUnreachable, match="farm up") as caught:
        farm.connect("127.0.0.1:1")
    assert caught.value.exit_code == 10
