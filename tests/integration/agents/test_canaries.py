"""Devices that compute wrongly, hang or crash are not given out until they are well."""

from __future__ import annotations

import shutil
import sys

import pytest
from farm_agents import canary, health

from farm.api.v1 import device_pb2, session_pb2, tensor_pb2
from farm.core.digest import digest_of
from farm.core.wire import digest_to_proto

WRAPPER = """#!{python}
import os, subprocess, sys, time
real = subprocess.Popen([{real!r}, *sys.argv[1:]], stdout=subprocess.PIPE)
while data := bytearray(os.read(real.stdout.fileno(), 65536)):
    if len(data) > 100:  # the outputs of a call
        lie = open({lie!r}).read() if os.path.exists({lie!r}) else ""
        if lie == "hang":
            time.sleep(3600)
        if lie == "wrong":
            data[20] ^= 1
    os.write(1, data)
sys.exit(real.wait())
"""


@pytest.fixture
def runs(monkeypatch):
    """Let time between checks be short; return the causes that canaries found, in order."""
    monkeypatch.setattr(health, "RECHECK_SICK_S", 0.2)
    monkeypatch.setattr(health, "RECHECK_WELL_S", 0.2)
    monkeypatch.setattr(canary, "CALL_LIMIT_S", 60.0)
    found = Runs()

    async def run(*arguments):
        found.started += 1
        cause = await canary.run_canary(*arguments)
        found.append(cause)
        return cause

    monkeypatch.setattr(health, "run_canary", run)
    return found


@pytest.fixture
def lie(tmp_path, monkeypatch):
    """Put a program before qemu that makes the device lie while the file that is returned says how."""
    real = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if real is None:
        pytest.skip("needs qemu-aarch64: install qemu-user")
    pytest.importorskip("ziglang", reason="needs ziglang: install kernel-farm[cross]")
    told, folder = tmp_path / "lie", tmp_path / "bin"
    folder.mkdir()
    program = folder / "qemu-aarch64"
    program.write_text(WRAPPER.format(python=sys.executable, real=real, lie=str(told)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return told


NUMBER = tensor_pb2.Tensor(dtype="int32", shape=[1], inline=bytes(4))


class Runs(list):
    """What canaries found, in order, and how many were started."""

    started = 0


def health_of(tracker):
    device = tracker.device()
    return device and (
        device_pb2.Health.Name(device.health).removeprefix("HEALTH_"),
        device.health_cause,
    )


def test_device_that_lies_or_hangs_is_bad_with_the_cause_until_it_is_right_twice(
    run_farm, lie, runs, monkeypatch
):
    async def story(tracker, spec):
        lie.write_text("wrong")
        _, cause = await tracker.until(lambda: (it := health_of(tracker)) and it[0] == "BAD" and it)
        assert "gave wrong numbers (1 of 64; at (" in cause
        lie.unlink()
        await tracker.device_is_good()
        assert runs[-2:] == ["", ""]
        assert all("wrong numbers" in it for it in runs[:-2])
        assert len(runs) >= 3
        monkeypatch.setattr(canary, "CALL_LIMIT_S", 3.0)
        lie.write_text("hang")
        _, cause = await tracker.until(lambda: (it := health_of(tracker)) and it[0] == "BAD" and it)
        assert cause.startswith("canary: it hangs")
        lie.unlink()
        await tracker.device_is_good()

    run_farm(story, devices=("qemu:aarch64",), sandbox="none", canary_every_s=0.5)


def test_canary_that_runs_stands_aside_for_a_lease(run_farm, lie, runs, monkeypatch):
    monkeypatch.setattr(canary, "CALL_LIMIT_S", 500.0)
    arm = (canary.FOLDER / "cpu-aarch64.farm").read_bytes()

    async def story(tracker, spec):
        await tracker.device_is_good()
        lie.write_text("hang")
        await tracker.until(lambda: runs.started > len(runs) and runs.started > 1)
        client = await tracker.lease(1)  # served within the test's limit, not the canary's
        lie.unlink()
        load = session_pb2.LoadRequest(artifact=digest_to_proto(digest_of(arm)), inline=arm)
        await client.send(load=load)
        assert (await client.receive()).WhichOneof("reply") == "loaded"
        await tracker.want(leases=[])
        await tracker.device_is("IDLE")
        await tracker.device_is_good()

    run_farm(story, devices=("qemu:aarch64",), sandbox="none", canary_every_s=0.2)


def test_device_is_checked_after_a_crash_before_it_is_given_out_again(run_farm, hostile, runs):
    async def story(tracker, spec):
        client = await tracker.lease(1)
        assert runs == [""]
        await client.load(hostile)
        reply = await client.call("segfault", NUMBER)
        assert reply.error.code == "KERNEL_CRASHED"
        await tracker.want(leases=[])
        await tracker.device_is("IDLE")
        await tracker.until(lambda: len(runs) == 2)
        await tracker.device_is_good()
        await tracker.lease(2)  # one without a crash needs no look
        await tracker.want(leases=[])
        await tracker.device_is("IDLE")
        await tracker.device_is_good()
        assert runs == ["", ""]

    run_farm(story)
