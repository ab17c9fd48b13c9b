"""The commands against a farm of three agents: results, JSON keys, and an exit code for every failure."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import farm
from farm.artifact import Artifact
from farm.target import Target

ARM = "llvm -mtriple=aarch64-linux-gnu"
EA = "ea -config=ea16"
DEVICE_KEYS = {
    *("device_id", "agent_id", "targets", "labels", "timing_class", "admin", "observed", "health"),
    *("health_cause", "use", "epoch"),
}
needs_qemu = pytest.mark.skipif(
    shutil.which("qemu-aarch64") is None, reason="qemu-aarch64 is missing: install qemu-user"
)


@pytest.fixture
def built(cli, kernels, tmp_path):
    """An artifact with ``double`` for three targets."""
    targets = ("--target", "llvm", "--target", ARM, "--target", EA, "--variants")
    out = tmp_path / "double.farm"
    ended = cli("build", kernels, *targets, "--out", out)
    assert ended.code == 0, ended.err
    return out


def test_devices_in_json_are_those_of_the_agents(cli):
    ended = cli("devices", "-o", "json")
    assert (ended.code, ended.err) == (0, "")
    devices = ended.json["devices"]
    assert [set(device) for device in devices] == [DEVICE_KEYS] * len(devices)
    assert {(d["agent_id"], d["labels"]["arch"], d["timing_class"]) for d in devices} >= {
        ("cpu-1", Target.parse("llvm").family.removeprefix("llvm/"), "native"),
        ("ea-1", "ea", "simulated"),
    }
    assert {(d["admin"], d["observed"]) for d in devices} == {("enabled", "online")}


def test_devices_in_text_are_a_table(cli):
    ended = cli("devices", "kind=ea")
    header, row = ended.out.splitlines()
    assert header.split() == [
        *("DEVICE", "ADMIN", "OBSERVED", "HEALTH", "USE", "TIMING", "AGENT", "LABELS", "TARGETS")
    ]
    assert row.split()[:7] == ["ea-1-ea", "enabled", "online", "good", "idle", "simulated", "ea-1"]


def test_devices_that_nothing_matches_are_an_empty_list(cli):
    assert cli("devices", "arch=vax", "-o", "json").json == {"devices": []}
    assert cli("devices", "arch=vax").out == "no device matches arch=vax\n"


def test_devices_with_a_malformed_selector_end_with_2(cli):
    ended = cli("devices", "=", "-o", "json")
    assert (ended.code, ended.error["code"]) == (2, "INVALID_SELECTOR")


def test_build_on_the_farm_is_spread_over_agents_and_equals_the_local_one(cli, kernels, tmp_path):
    kernels.write_text(kernels.read_text().replace("* 2", "* 3"))  # built by no other test
    targets = ("--target", "llvm", "--target", ARM, "--target", EA, "--variants")
    ended = cli("build", kernels, *targets, "-o", "json")
    assert ended.code == 0, ended.err
    builds = [(b["kind"], b["target"], b["agent_id"], b["cached"]) for b in ended.json["builds"]]
    own = str(Target.parse("llvm"))
    assert sorted(builds) == sorted(
        [
            ("device", own, "cpu-1", False),
            ("host", own, "cpu-1", False),
            ("device", str(Target.parse(ARM)), "aarch64-1", False),
            ("device", EA, "ea-1", False),
        ]
    )
    assert cli("build", kernels, *targets, "--local", "--out", "local.farm").code == 0
    assert (tmp_path / "kernels.farm").read_bytes() == (tmp_path / "local.farm").read_bytes()


def test_build_again_is_served_from_the_cache(cli, built, kernels):
    ended = cli("build", kernels, "-o", "json")
    assert [build["cached"] for build in ended.json["builds"]] == [True]


@needs_qemu
def test_run_saves_outputs_that_another_device_takes_as_inputs(cli, built, tmp_path):
    np.save("x.npy", np.arange(8, dtype=np.int32))
    first = cli(
        *("run", built, "double", "--device", "arch=aarch64", "--input", "x=x.npy"),
        *("--save", "out", "--repeat", "3", "-o", "json"),
    )
    assert first.code == 0, first.err
    assert first.json["target"] == str(Target.parse(ARM))
    assert set(first.json["device"]) == DEVICE_KEYS
    assert first.json["outputs"] == [
        {
            "name": "y",
            "dtype": "int32",
            "shape": [8],
            "min": 0,
            "max": 14,
            "mean": 7.0,
            "first": [0, 2, 4, 6, 8, 10, 12, 14],
            "path": "out/y.npy",
        }
    ]
    timing = first.json["timing"]
    assert timing["timing_class"] == "emulated"
    assert len(timing["samples_ns"]) == 3
    assert timing["min_s"] * 1e9 == pytest.approx(min(timing["samples_ns"]))
    second = cli("run", built, "double", "--device", "kind=ea", "--input", "x=out/y.npy", "-ojson")
    assert second.code == 0, second.err
    assert second.json["target"] == EA
    assert second.json["timing"] is None
    assert second.json["outputs"][0]["first"] == [0, 4, 8, 12, 16, 20, 24, 28]


def test_run_in_text_says_what_its_times_mean(cli, built):
    ended = cli("run", built, "double", "--device", "kind=ea", "--random", "1", "--repeat", "2")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("double on ea-1-ea, built for ea -config=ea16\n  y: int32[8]  min ")
    assert "2 calls (simulated: the time of the simulation, not of the device)" in ended.out
    assert ended.err == "waiting for a device\nrunning on ea-1-ea\n"


def test_run_with_random_inputs_is_repeatable(cli, built):
    runs = [
        cli("run", built, "double", "--device", "driver=cpu", "--random", "5", "-o", "json")
        for _ in range(2)
    ]
    assert runs[0].json["outputs"] == runs[1].json["outputs"]


@pytest.mark.parametrize(
    ("function", "options", "exit_code", "code"),
    [
        ("crash", (), 1, "KERNEL_CRASHED"),
        ("spin", ("--limit", "0.5"), 4, "TIME_LIMIT"),
    ],
)
def test_run_of_a_kernel_that_misbehaves_says_so_and_the_device_lives(
    cli, hostile, built, function, options, exit_code, code
):
    ended = cli("run", hostile, function, "--device", "driver=cpu", *options, "-o", "json")
    assert (ended.code, ended.error["code"]) == (exit_code, code)
    again = cli("run", built, "double", "--device", "driver=cpu", "--random", "1", "-o", "json")
    assert again.code == 0, again.err


def test_run_that_is_interrupted_ends_with_130_and_frees_the_device(hostile, embedded_farm):
    command = ["run", str(hostile), "spin", "--device", "driver=cpu", "--limit", "60"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from farm.cli.main import main; main()", *command],
        env={**os.environ, "FARM_TRACKER": embedded_farm.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr.readline() == "waiting for a device\n"
        assert process.stderr.readline() == "running on cpu-1-cpu\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=180)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out, err) == (130, "", "error: interrupted\n")
    with farm.connect(embedded_farm.address) as client, client.acquire("driver=cpu", wait_s=120):
        pass


def test_run_without_a_slice_for_the_device_ends_with_2(cli, kernels):
    assert cli("build", kernels, "--target", ARM).code == 0
    ended = cli(
        "run", "kernels.farm", "double", "--device", "driver=cpu", "--random", "1", "-o", "json"
    )
    assert (ended.code, ended.error["code"]) == (2, "NO_VARIANT")


def test_run_on_a_device_that_nobody_has_ends_with_7_and_names_the_nearest(cli, built):
    ended = cli("run", built, "double", "--device", "arch=vax", "--random", "1", "-o", "json")
    assert (ended.code, ended.error["code"]) == (7, "NOBODY_CAN_SERVE")
    assert "nearest" in ended.error["message"]


def test_run_on_a_busy_device_ends_with_4_after_the_wait(cli, built, embedded_farm):
    with farm.connect(embedded_farm.address) as client, client.acquire("kind=ea"):
        ended = cli(
            *("run", built, "double", "--device", "kind=ea", "--random", "1"),
            *("--wait", "0.3", "-o", "json"),
        )
    assert (ended.code, ended.error["code"]) == (4, "DEVICE_BUSY")


def test_build_for_a_target_that_nobody_builds_ends_with_7(cli, kernels):
    target = "llvm -mtriple=riscv64-linux-gnu"
    ended = cli("build", kernels, "--target", target, "-o", "json")
    assert (ended.code, ended.error["code"]) == (7, "NOBODY_CAN_SERVE")


def test_build_of_what_the_target_cannot_compile_ends_with_3_and_a_report(cli, kernels, tmp_path):
    kernels.write_text(
        kernels.read_text()
        + 'f = te.placeholder((8,), "float64", name="f")\n'
        + 'g = te.compute((8,), lambda i: te.exp(f[i]), name="g")\n'
        + 'functions.append(te.function("exponential", [f, g]))\n'
    )
    ended = cli("build", kernels, "--target", EA, "--keep-going", "-o", "json")
    assert (ended.code, ended.error["code"]) == (3, "BUILD_FAILED")
    assert ended.error["details"] == {f"{EA}/exponential": "UNSUPPORTED_FUNCTION"}
    assert not (tmp_path / "kernels.farm").exists()


@pytest.mark.parametrize("command", ["devices", "build", "run"])
def test_command_without_a_tracker_ends_with_10(cli, built, kernels, command, monkeypatch):
    monkeypatch.setenv("FARM_TRACKER", "127.0.0.1:1")
    arguments = {
        "devices": (),
        "build": (kernels,),
        "run": (built, "double", "--random", "1"),
    }[command]
    ended = cli(command, *arguments, "-o", "json")
    assert (ended.code, ended.error["code"]) == (10, "TRACKER_UNREACHABLE")
    assert "127.0.0.1:1" in ended.error["message"]
    assert "farm up" in ended.error["message"]


def test_malformed_tracker_address_ends_with_2(cli):
    ended = cli("devices", "--tracker", "nowhere", "-o", "json")
    assert (ended.code, ended.error["code"]) == (2, "INVALID_INPUT")


def test_artifact_of_a_build_has_the_digest_that_was_told(cli, kernels, tmp_path):
    ended = cli("build", kernels, "-o", "json")
    artifact = Artifact.load(tmp_path / "kernels.farm")
    assert ended.json["artifact"]["digest"] == str(artifact.digest)
