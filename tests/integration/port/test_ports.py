"""An accelerator that is only installed: the farm builds and runs for it, whatever its package does."""

from __future__ import annotations

import json

import numpy as np
import pytest

import farm
from farm import ops, te
from farm.cli.main import run
from farm.client.measuring import Candidate, Workload
from farm.codegen.accelerator import with_knobs
from farm.errors import (
    BuildFailed,
    DeviceBusy,
    FarmError,
    KernelCrashed,
    KernelFailed,
    TimeLimit,
)
from farm.ir import interpret
from farm.measuring import Status
from farm.tune import Search
from farm.tune.templates import template_for

M, N, K = 21, 13, 30


def dense(name="layer"):
    x, w = te.placeholder((M, K), "int8", name="x"), te.placeholder((K, N), "int8", name="w")
    return te.function(name, [x, w, ops.matmul(x, w)])


def operands(seed):
    rng = np.random.default_rng(seed)
    x, w = rng.integers(-128, 128, (M, K), np.int8), rng.integers(-128, 128, (K, N), np.int8)
    return (x, w), x.astype(np.int32) @ w.astype(np.int32)


def double(name):
    x = te.placeholder((4,), "int32", name="x")
    return te.function(name, [x, te.compute((4,), lambda i: x[i] * 2, name="y")])


@pytest.fixture(scope="module")
def client(port_farm):
    with farm.connect(port_farm.address) as connected:
        yield connected


@pytest.mark.parametrize(
    ("kind", "knobs"),
    [
        ("tile8", {"slots": 8}),  # a full target
        ("dotcore", {"intrinsic": "mv16"}),  # intrinsics
        ("blas", {"type": "float64", "rows": 16}),  # a library
    ],
)
def test_layer_is_bit_equal_on_an_accelerator_that_is_only_installed(client, kind, knobs):
    artifact = client.build({kind: [with_knobs(dense(), knobs)]})
    inputs, expected = operands(1)
    with client.acquire(f"kind={kind},config={kind}") as session:
        module = session.load(artifact)
        assert module["layer"].target == f"{kind} -config={kind}"
        assert np.array_equal(module["layer"](*inputs), expected)
        assert len(module.time("layer", *inputs, repeat=3).samples_ns) == 3


def test_code_for_another_configuration_does_not_run_and_leaves_the_cpu(client):
    only = client.build({"tile8": [dense()]})
    with client.acquire("config=tile8-small") as session, pytest.raises(FarmError, match="tile8"):
        session.load(only)
    both = client.build({"tile8": [dense()], "llvm": [dense()]}, variants=True)
    inputs, expected = operands(2)
    with client.acquire("config=tile8-small") as session:
        module = session.load(both)
        assert module["layer"].target.startswith("llvm")
        assert np.array_equal(module["layer"](*inputs), expected)


def test_job_and_commands_take_it_as_any_other_device(port_farm, client, tmp_path, capsys):
    (tmp_path / "layer.py").write_text(
        "from farm import ops, te\n"
        "x, w = te.placeholder((8, 8), 'int8', name='x'), te.placeholder((8, 8), 'int8', name='w')\n"
        "functions = [te.function('layer', [x, w, ops.matmul(x, w)])]\n"
    )
    out, at = str(tmp_path / "layer.farm"), ["--tracker", port_farm.address]
    built = ["build", str(tmp_path / "layer.py"), "--target", "tile8", "--out", out]
    assert run([*built, *at]) == 0
    assert run(["inspect", out, "-o", "json"]) == 0
    assert run(["run", out, "layer", "--device", "kind=tile8", "--random", "1", *at]) == 0
    job = ["submit", out, "layer", "--device", "kind=tile8", "--random", "1", "--wait"]
    assert run([*job, *at]) == 0
    assert run(["build", str(tmp_path / "layer.py"), "--target", "tile9", "--out", out, *at]) == 2
    capsys.readouterr()
    assert run(["devices", *at, "-o", "json"]) == 0
    devices = json.loads(capsys.readouterr().out)["devices"]
    kinds = {"blas", "brittle", "cpu", "dotcore", "marlann", "mute", "tile8"}
    assert {it["labels"]["kind"] for it in devices} == kinds


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("raise_it", r"brittle \(farm-brittle 1.0\): compile raised ValueError: no such luck"),
        ("abort_it", "crashed"),
    ],
)
def test_code_generator_that_goes_wrong_costs_one_build(client, name, problem):
    with pytest.raises(BuildFailed, match=problem):
        client.build({"brittle": [double(name)]})
    assert client.build({"brittle": [double(f"fine_after_{name}")]}).symbols


def test_program_that_goes_wrong_costs_one_call(client):
    names = ("runraise", "runabort", "runloop", "fine")
    artifact = client.build({"brittle": [double(name) for name in names]})
    values = np.arange(4, dtype=np.int32)
    with client.acquire("kind=brittle") as session:
        module = session.load(artifact)
        for name, error in (
            ("runraise", KernelFailed),
            ("runabort", KernelCrashed),
            ("runloop", TimeLimit),
        ):
            with pytest.raises(error) as raised:
                module[name](values, limit_s=2.0 if name == "runloop" else 60.0)
            assert name != "runraise" or "brittle (farm-brittle 1.0)" in raised.value.message
            assert np.array_equal(module["fine"](values), values * 2)


def test_package_that_cannot_be_imported_is_a_bad_device_and_a_failed_build(client):
    (mute,) = (it for it in client.devices() if it.labels["kind"] == "mute")
    assert mute.health == "bad"
    assert "mute (farm-mute 1.0)" in mute.health_cause
    assert "nothing to say" in mute.health_cause
    with pytest.raises(BuildFailed, match=r"mute \(farm-mute 1.0\): import .* nothing to say"):
        client.build({"mute": [double("f")]})
    with pytest.raises(DeviceBusy, match="nothing to say"):
        client.acquire("kind=mute", wait_s=0)
    assert all(it.observed == "online" for it in client.agents())


def test_knobs_are_searched_by_cycles_that_devices_count(client):
    template = template_for(dense(), "tile8")
    assert template.default == {"slots": 1}
    candidates = [
        Candidate(
            f"slots {configuration['slots']}", template.schedule(configuration).function, "tile8"
        )
        for configuration in map(template.space.configuration, range(template.space.size))
    ]
    workload = Workload(reference=dense(), seed=3)
    found = {
        it.candidate.key: it
        for it in client.measure(candidates, workload=workload, selector="config=tile8", race=False)
    }
    assert {it.status for it in found.values()} == {Status.OK}
    values = [found[f"slots {slots}"].value for slots in (1, 2, 4, 8)]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[2] == values[3]  # 21 rows need three accumulators at most
    assert all(it.measurement.unit == "cycles" for it in found.values())


def quantised(name="layer"):
    """A convolution of int8 with bias, shift and a positive half of int8, as quantised networks have them."""
    x = te.placeholder((1, 9, 8, 5), "int8", name="x")
    w = te.placeholder((3, 3, 5, 12), "int8", name="w")
    bias = te.placeholder((12,), "int16", name="bias")
    sums = ops.conv2d(x, w, layout="NHWC", padding=1, stride=(2, 1))

    def body(*at):
        return te.clip((sums[at] + bias[at[-1]].astype("int32")) >> 7, 0, 127).astype("int8")

    return te.function(name, [x, w, bias, te.compute(sums.shape, body, name="y")])


def test_quantised_convolution_is_built_run_and_tuned_for_marlann(client):
    function = quantised()
    rng = np.random.default_rng(9)
    inputs = [
        rng.integers(p.buffer.dtype.min, p.buffer.dtype.max, p.buffer.shape, p.buffer.dtype.numpy)
        for p in function.params[:-1]
    ]
    (expected,) = interpret(function, inputs)
    artifact = client.build({"marlann": [function], "llvm": [function]}, variants=True)
    with client.acquire("kind=marlann") as session:
        module = session.load(artifact)
        assert module["layer"].target == "marlann -config=marlann"
        assert np.array_equal(module["layer"](*inputs), expected)
    with client.acquire("kind=cpu") as session:
        assert np.array_equal(session.load(artifact)["layer"](*inputs), expected)

    template = template_for(function, "marlann")
    search = Search(template.space, seed=1)
    first = template.space.number(template.default)
    found = {}

    def candidates():
        for number in dict.fromkeys((first, *search.ask(6))):
            configuration = template.space.configuration(number)
            yield Candidate(str(number), template.schedule(configuration).function, "marlann")

    workload = Workload(reference=function, seed=4)
    for it in client.measure(candidates(), workload=workload, selector="kind=marlann", race=False):
        assert it.status is Status.OK, it.error
        found[int(it.candidate.key)] = it.value
    assert len(set(found.values())) > 1
    assert min(found.values()) <= found[first]


def test_intrinsics_and_libraries_are_tuned_as_targets_are(client):
    for kind, unit in (("dotcore", "cycles"), ("blas", "ns")):
        template = template_for(dense(), kind)
        numbers = dict.fromkeys((template.space.number(template.default), 0, 1))
        candidates = [
            Candidate(str(it), template.schedule(template.space.configuration(it)).function, kind)
            for it in numbers
        ]
        workload = Workload(reference=dense())
        results = list(
            client.measure(candidates, workload=workload, selector=f"kind={kind}", race=False)
        )
        assert [(it.status, it.error) for it in results] == [(Status.OK, None)] * len(numbers)
        assert {it.measurement.unit for it in results} == {unit}
