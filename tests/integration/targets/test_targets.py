"""One artifact for every kind of device, each slice run on its own device through a farm."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import farm
from farm import te
from farm.cli.main import run
from farm.core.elements import numpy_dtype
from farm.errors import BuildFailed, KernelCrashed, NoVariant, TimeLimit
from farm.ir import interpret
from farm.ir.declaration import functions_of
from farm.runtime.qemu import EMULATED, find_emulator
from farm.target import Target
from farm.testing import EmbeddedFarm
from farm.testing.agents import AgentPlan


def lacking(package, extra):
    if importlib.util.find_spec(package) is None:
        return f"{package} is missing: install kernel-farm[{extra}]"
    return ""


def no_emulator(arch):
    if find_emulator(arch) is None:
        return f"{EMULATED[arch].program} is missing: install the Debian package qemu-user"
    return lacking("ziglang", "cross")


# Device, the target built for it, a selector of the device, and why it cannot be had here ("" if it can).
OWN = Target.parse("llvm")
KINDS = {
    "cpu": (OWN, "kind=cpu,emulator!=qemu-user", ""),
    "qemu:aarch64/cortex-a72@aarch64": (
        Target.from_tag("raspberrypi-4b"),
        "arch=aarch64",
        no_emulator("aarch64"),
    ),
    "qemu:riscv64@riscv64": (
        Target.from_tag("visionfive2"),
        "device_id=riscv64",
        no_emulator("riscv64"),
    ),
    "qemu:riscv64/v@vectors": (
        Target.parse("llvm -mtriple=riscv64-linux-gnu -mattr=+v"),
        "arch=riscv64,cpu=v",
        no_emulator("riscv64"),
    ),
    "qemu:armv7@armv7": (Target.from_tag("raspberrypi-2b"), "arch=armv7", no_emulator("armv7")),
    "wasm": (
        Target.from_tag("wasm"),
        "kind=wasm",
        lacking("wasmtime", "wasm") or lacking("ziglang", "cross"),
    ),
    "opencl": (
        Target.parse("opencl"),
        "kind=opencl",
        lacking("pyopencl", "opencl") or ("" if shutil.which("ld") else "PoCL needs ld: binutils"),
    ),
}
HERE = {device: kind for device, kind in KINDS.items() if not kind[2]}


def saxpy():
    a, x = te.placeholder((1,), "float32", name="a"), te.placeholder((100,), "float32", name="x")
    y = te.compute((100,), lambda i: a[0] * x[i] + x[99 - i], name="y")
    return te.function("saxpy", [a, x, y])


def halves():
    """Both float types of 16 bits, multiplied in float32."""
    x, w = te.placeholder((24,), "float16", name="x"), te.placeholder((24,), "bfloat16", name="w")
    product = te.compute((24,), lambda i: x[i].astype("float32") * w[i].astype("float32"))
    y = te.compute((24,), lambda i: product[i].astype("bfloat16") + w[i], name="y")
    z = te.compute((24,), lambda i: product[i].astype("float16") - x[i], name="z")
    return te.function("halves", [x, w, y, z])


HALVES = [
    np.linspace(-3, 7, 24).astype(np.float16),
    np.linspace(-9, 70000, 24).astype(numpy_dtype("bfloat16")),
]
INPUTS = [
    np.array([1.5], np.float32),
    np.linspace(-3, 7, 100, dtype=np.float32),
]


PLACED = {target: [saxpy(), halves()] for target, _, _ in HERE.values()}


@pytest.fixture(scope="module")
def address():
    """A farm with one agent that owns a device of each kind and builds for all of them."""
    families = tuple(sorted({target.family for target, _, _ in HERE.values()}))
    plan = AgentPlan("all", families, tuple(HERE), slots=1)
    with EmbeddedFarm("processes", plans=(plan,)) as embedded:
        yield embedded.address


@pytest.fixture(scope="module")
def client(address):
    with farm.connect(address) as found:
        yield found


@pytest.fixture(scope="module")
def artifact(client):
    """One artifact of one request with a slice for each target."""
    return client.build(PLACED, variants=True)


@pytest.mark.parametrize("device", KINDS)
def test_slice_of_one_artifact_runs_on_its_own_device_bit_for_bit(device, client, artifact):
    target, selector, why = KINDS[device]
    if why:
        pytest.skip(why)
    with client.acquire(selector) as session:
        module = session.load(artifact)
        # A device with vectors also runs code without; the more demanding slice is taken.
        assert module["saxpy"].target == str(target)
        timed = module["saxpy"].time(*INPUTS, repeat=2)
        assert len(timed.samples_ns) == 2
        (expected,) = interpret(saxpy(), INPUTS)
        assert module["saxpy"](*INPUTS).tobytes() == expected.tobytes()
        for found, wanted in zip(
            module["halves"](*HALVES), interpret(halves(), HALVES), strict=True
        ):
            assert found.dtype == wanted.dtype
            assert found.tobytes() == wanted.tobytes()


def fits(device, target):
    """Whether a device runs a target: its own, what its host runs, and what asks for less than it has."""
    own = KINDS[device][0]
    if own == target or (device == "opencl" and target == OWN):
        return True
    return device == "qemu:riscv64/v@vectors" and target == KINDS["qemu:riscv64@riscv64"][0]


@pytest.mark.parametrize("device", KINDS)
def test_device_refuses_every_other_slice_by_name(device, client, artifact):
    _, selector, why = KINDS[device]
    if why:
        pytest.skip(why)
    with client.acquire(selector) as session:
        for target, _, _ in HERE.values():
            if fits(device, target):
                continue
            with pytest.raises(NoVariant) as error:
                session.load(artifact.thin([target]))
            lacks = "lacks cpu-feature:v" if "riscv64" in device else "the device runs no"
            if "riscv64" not in (target.option("mtriple") or ""):
                lacks = f"the device runs no {target.family}"
            assert f"{target}: {lacks}" in error.value.message


def test_built_on_the_farm_and_here_it_is_the_same_artifact(artifact):
    here = farm.build(PLACED, variants=True)
    assert here.digest == artifact.digest


@pytest.mark.skipif(bool(KINDS["qemu:riscv64@riscv64"][2]), reason=KINDS["qemu:riscv64@riscv64"][2])
def test_c_file_is_built_and_run_on_another_cpu_by_two_commands(address, client, tmp_path, capsys):
    source = Path(__file__).parents[3] / "docs" / "examples" / "saxpy.c"
    out = tmp_path / "saxpy.farm"
    target = "llvm -mtriple=riscv64-linux-gnu"
    tracker = ["--tracker", address, "-o", "json"]
    built = []
    for _ in range(2):
        assert run(["build", str(source), "--target", target, "--out", str(out), *tracker]) == 0
        built += json.loads(capsys.readouterr().out)["builds"]
    assert [(item["agent_id"], item["cached"]) for item in built] == [("all", False), ("", True)]
    rng = np.random.default_rng(5)
    arrays = [np.array(2.5, np.float32), *rng.standard_normal((2, 1024)).astype(np.float32)]
    with client.acquire("device_id=riscv64") as session:
        result = session.load(farm.Artifact.load(out))["saxpy"](*arrays)
    assert result.tobytes() == (arrays[2] + arrays[0] * arrays[1]).tobytes()
    device = ["--device", "device_id=riscv64", "--random", "1", "--repeat", "3"]
    assert run(["run", str(out), "saxpy", *device, *tracker]) == 0
    assert "samples_ns" in capsys.readouterr().out


@pytest.mark.skipif(bool(KINDS["wasm"][2]), reason=KINDS["wasm"][2])
def test_compiler_that_crashes_on_the_farm_is_a_build_error_and_the_farm_goes_on(client):
    text = b"""
declare <4 x float> @llvm.aarch64.neon.fmulx.v4f32(<4 x float>, <4 x float>)
define void @f(ptr %x) {
  %v = load <4 x float>, ptr %x
  %w = call <4 x float> @llvm.aarch64.neon.fmulx.v4f32(<4 x float> %v, <4 x float> %v)
  store <4 x float> %w, ptr %x
  ret void
}
"""
    (function,) = functions_of("f.ll", text, ["f(x: float32[4] inout)"])
    with pytest.raises(BuildFailed, match="the compiler crashed"):
        client.build({OWN: [function]})
    good = text.replace(b"@llvm.aarch64.neon.fmulx.v4f32", b"@llvm.minnum.v4f32")
    assert client.build({OWN: functions_of("f.ll", good, ["f(x: float32[4] inout)"])}).symbols


@pytest.mark.skipif(bool(KINDS["wasm"][2]), reason=KINDS["wasm"][2])
def test_crash_names_the_line_of_its_source_if_that_was_asked_for(client):
    pytest.importorskip("elftools", reason="pyelftools is missing: install kernel-farm[debug]")
    text = b"""// farm: wild(x: int64[2], y: int64[2] output)
void wild(const long *x, long *y) {
  y[0] = x[0];
  *(volatile long *)x[1] = 3;
  y[1] = 1;
}
"""
    lines = Target.parse(f"{OWN} -debug=lines")
    with client.acquire("kind=cpu,emulator!=qemu-user") as session:
        for target, wanted in ((lines, ("wild", "source.c", "4")), (OWN, (None, None, None))):
            module = session.load(client.build({target: functions_of("wild.c", text)}))
            with pytest.raises(KernelCrashed) as caught:
                module["wild"](np.array([1, 8], np.int64))
            details = caught.value.details
            assert details["signal"] == "SIGSEGV"
            assert tuple(details.get(name) for name in ("symbol", "file", "line")) == wanted
            assert ("in line 4 of source.c, function wild" in caught.value.message) == (
                wanted[0] is not None
            )


@pytest.mark.parametrize("device", ["wasm", "qemu:armv7@armv7"])
def test_kernel_that_never_returns_is_ended_and_the_session_goes_on(device, client):
    target, selector, why = KINDS[device]
    if why:
        pytest.skip(why)
    text = b"""
define void @spin(ptr %x) {
  br label %again
again:
  store volatile i32 1, ptr %x
  br label %again
}
define void @one(ptr %x) {
  store i32 1, ptr %x
  ret void
}
"""
    declared = [f"{name}(x: int32[1] inout)" for name in ("spin", "one")]
    made = client.build({target: functions_of("f.ll", text, declared)})
    with client.acquire(selector) as session:
        module, zero = session.load(made), np.zeros(1, np.int32)
        with pytest.raises(TimeLimit):
            module["spin"](zero, limit_s=1)
        assert module["one"](zero).tolist() == [1]


@pytest.mark.skipif(bool(KINDS["opencl"][2]), reason=KINDS["opencl"][2])
@pytest.mark.parametrize(
    ("hostile", "error"),
    [
        (b"for (;;) ((volatile __global float *)b_y)[0] += 1;", TimeLimit),
        (b"*(volatile __global float *)8 = 1;", KernelCrashed),
    ],
)
def test_hostile_source_of_an_artifact_is_a_typed_error_and_the_session_goes_on(
    hostile, error, client, artifact
):
    thin = artifact.thin(["opencl"])
    sections = [
        dataclasses.replace(section, data=section.data.replace(b"  b_y[", hostile + b"  b_y[", 1))
        if section.kind == "device"
        else section
        for section in thin.sections
    ]
    changed = dataclasses.replace(thin, sections=tuple(sections))
    assert changed != thin
    with client.acquire("kind=opencl") as session:
        limit_s = 2.0 if error is TimeLimit else 100.0
        with pytest.raises(error):
            session.load(changed)["saxpy"](*INPUTS, limit_s=limit_s)
        assert session.load(thin)["saxpy"](*INPUTS).shape == (100,)
