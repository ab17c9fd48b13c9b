"""Smaller parts of the agent: locks, backoff, the wire, drivers, errors as data."""

from __future__ import annotations

import asyncio
import os
import random
import shutil

import pytest
from farm_agents.backoff import Backoff
from farm_agents.device import LocalDevice
from farm_agents.drivers import Checked, TimingClass, driver_for
from farm_agents.drivers.lock import acquire, runtime_folder
from farm_agents.failures import failed_from, failed_from_proto, failed_to_proto
from farm_agents.sandbox.confinement import Confinement
from farm_agents.sandbox.mode import Mode
from farm_agents.spec import AgentSpec, parse_devices
from farm_agents.state.messages import Desired
from farm_agents.state.model import BuildOrder, Failed, Grant, Health
from farm_agents.wire import EXPIRY_GRACE_S, desired_from_proto

from farm.api.v1 import agent_pb2, build_pb2
from farm.core.clock import SystemClock
from farm.core.digest import digest_of
from farm.core.ids import random_id
from farm.core.limits import MAX_ERROR_BYTES
from farm.core.wire import digest_to_proto
from farm.errors import DeviceBusy, InfrastructureError, InvalidInput, KernelCrashed
from farm.target import Target


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNEL_FARM_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path / "runtime"


def test_lock_is_held_by_one_and_free_after_release(runtime):
    first = acquire("t/board")
    with pytest.raises(DeviceBusy) as caught:
        acquire("t/board")
    assert caught.value.details == {"pid": str(os.getpid())}
    other = acquire("t_board")  # another name, though it reads alike
    first.release()
    acquire("t/board").release()
    other.release()


def test_lock_lasts_as_long_as_an_inherited_copy(runtime):
    lock = acquire("board")
    copy = os.dup(lock.fd)
    lock.release()
    with pytest.raises(DeviceBusy):
        acquire("board")
    os.close(copy)
    acquire("board").release()


def test_runtime_folder_open_to_others_is_refused(runtime):
    runtime.mkdir(mode=0o755)
    with pytest.raises(InfrastructureError, match="only this user can reach"):
        runtime_folder()


def test_device_whose_lock_cannot_be_made_is_bad(runtime, tmp_path):
    runtime.write_text("a file where the folder should be")
    spec = AgentSpec("127.0.0.1:1", "a", (), 0, parse_devices(["cpu"], "a"), tmp_path)
    confinement = Confinement(Mode.NONE, tmp_path, random_id, SystemClock())
    device = LocalDevice(spec, spec.devices[0], random_id, confinement)
    found = asyncio.run(device.check())
    assert found.health is Health.BAD
    assert str(runtime) in found.cause


def test_runtime_folder_that_is_a_link_is_refused(runtime, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    runtime.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InfrastructureError, match="only this user can reach"):
        runtime_folder()


def test_backoff_grows_to_its_ceiling_and_starts_over():
    backoff = Backoff(first_s=0.1, ceiling_s=2.0, source=random.Random(1))
    waits = [backoff.next_s() for _ in range(40)]
    for number, wait in enumerate(waits):
        full = min(2.0, 0.1 * 2**number)
        assert full / 2 <= wait <= full
    assert len(set(waits)) == 40
    backoff.reset()
    assert backoff.next_s() <= 0.1


def grant(**changes):
    values = {"lease_id": "l1", "device_id": "d", "epoch": 3, "remaining_s": 5.0}
    return agent_pb2.LeaseGrant(**{**values, **changes})


def task(**changes):
    item = build_pb2.BuildItem(
        kind=build_pb2.ITEM_KIND_HOST,
        target="llvm",
        symbol="f",
        function=digest_to_proto(digest_of(b"f")),
    )
    return agent_pb2.BuildTask(**{"attempt_id": "t1", "item": item, "limit_s": 9.0, **changes})


def test_desired_state_is_read_with_deadlines_on_the_agents_clock():
    message = agent_pb2.DesiredState(leases=[grant()], builds=[task()])
    desired, refused = desired_from_proto(message, now=100.0)
    order = BuildOrder("t1", "host", "llvm", "f", digest_of(b"f"), 9.0)
    assert desired == Desired((Grant("l1", "d", 3, 105.0 + EXPIRY_GRACE_S),), (order,))
    assert refused == ()


@pytest.mark.parametrize(
    "message",
    [
        agent_pb2.DesiredState(leases=[grant(lease_id="../../etc")]),
        agent_pb2.DesiredState(leases=[grant(lease_id="a..b")]),
        agent_pb2.DesiredState(leases=[grant(lease_id="")]),
        agent_pb2.DesiredState(leases=[grant(epoch=0)]),
        agent_pb2.DesiredState(leases=[grant(remaining_s=float("nan"))]),
        agent_pb2.DesiredState(leases=[grant(remaining_s=-1)]),
        agent_pb2.DesiredState(builds=[task(attempt_id="a/b")]),
        agent_pb2.DesiredState(builds=[task(limit_s=float("inf"))]),
        agent_pb2.DesiredState(builds=[task(item=build_pb2.BuildItem())]),
    ],
)
def test_desired_state_leaves_out_what_is_malformed_and_keeps_the_rest(message):
    message.leases.append(grant(lease_id="good", device_id="e"))
    desired, refused = desired_from_proto(message, now=0.0)
    assert desired == Desired((Grant("good", "e", 3, 5.0 + EXPIRY_GRACE_S),), ())
    assert len(refused) == 1


def test_failure_survives_the_wire():
    failed = failed_from(KernelCrashed("f: crashed", signal="SIGSEGV"))
    assert failed == Failed("KERNEL_CRASHED", "f: crashed", (("signal", "SIGSEGV"),))
    assert failed_from_proto(failed_to_proto(failed)) == failed


def test_failure_with_a_long_message_is_cut():
    message = failed_to_proto(Failed("X", "é" * 40_000)).message
    assert message == "é" * 32_766 + "..."
    assert len(message.encode()) <= MAX_ERROR_BYTES


def test_driver_cpu_describes_this_host():
    driver = driver_for("cpu", "")
    found = driver.describe()
    own = Target.parse("llvm")
    assert found.targets[0] == str(own)
    assert set(own.requires) <= set(found.provides)
    assert found.timing_class is TimingClass.NATIVE
    assert driver.check() == Checked(Health.GOOD)
    assert driver.loader().kind == "native"


def test_driver_cpu_of_another_architecture_is_bad():
    assert driver_for("cpu", "vax").check().health is Health.BAD


def test_driver_ea_runs_its_own_and_its_hosts_targets():
    found = driver_for("ea", "ea16").describe()
    assert str(Target.parse("ea -config=ea16")) in found.targets
    assert str(Target.parse("llvm")) in found.targets
    assert {"ea-config:ea16", *Target.parse("llvm").requires} <= set(found.provides)
    assert found.timing_class is TimingClass.SIMULATED


def test_driver_qemu_is_labelled_emulated():
    found = driver_for("qemu", "aarch64").describe()
    assert found.targets == (str(Target.parse("llvm -mtriple=aarch64-linux-gnu")),)
    assert found.timing_class is TimingClass.EMULATED


def test_driver_qemu_without_emulator_is_bad_and_names_the_package(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = driver_for("qemu", "aarch64").check()
    assert (found.health, found.cause) == (
        Health.BAD,
        "qemu-aarch64: not found; install the Debian package qemu-user",
    )


def test_driver_qemu_without_ziglang_is_bad_and_names_the_extra(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/" + name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert driver_for("qemu", "aarch64").check() == Checked(
        Health.BAD, "ziglang: not installed; install kernel-farm[cross]"
    )


@pytest.mark.parametrize(("name", "argument"), [("qemu", "vax"), ("qemu", ""), ("toaster", "")])
def test_driver_unknown_is_refused(name, argument):
    with pytest.raises(InvalidInput):
        driver_for(name, argument)


def test_emulated_cpu_of_one_name_provides_what_it_has_and_no_more():
    found = driver_for("qemu", "aarch64/cortex-a72").describe()
    assert dict(found.labels) == {
        "kind": "cpu",
        "arch": "aarch64",
        "emulator": "qemu-user",
        "cpu": "cortex-a72",
    }
    assert "cpu-feature:crc" in found.provides
    assert not {"cpu:*", "cpu-feature:*", "cpu-feature:dotprod"} & set(found.provides)


def test_wasm_is_a_device_with_what_its_engine_runs():
    found = driver_for("wasm", "").describe()
    assert ("kind", "wasm") in found.labels
    assert found.targets == (str(Target.from_tag("wasm")),)
    assert {"arch:wasm32", "cpu-feature:simd128"} <= set(found.provides)


def test_opencl_device_provides_its_extensions_or_says_why_it_is_not_there(monkeypatch):
    from farm_agents.drivers import opencl

    facts = {"platform": "Some Platform (TM)", "extensions": ["cl_khr_fp64", "Bad Name", 5]}
    monkeypatch.setattr(opencl, "_told", {"0.0": facts})
    found = driver_for("opencl", "")
    assert ("platform", "Some-Platform-TM-") in found.describe().labels
    extensions = [it for it in found.describe().provides if it.startswith("opencl")]
    assert extensions == ["opencl-c:1.2", "opencl-extension:cl_khr_fp64"]
    assert found.check().health is Health.GOOD
    monkeypatch.setattr(opencl, "_told", {"7.0": {"error": "opencl: no device"}})
    assert driver_for("opencl", "7.0").check() == Checked(Health.BAD, "opencl: no device")


@pytest.mark.parametrize(
    ("name", "argument"),
    [("wasm", "x"), ("opencl", "gpu"), ("qemu", "aarch64/z80"), ("qemu", "vax")],
)
def test_driver_refuses_an_argument_that_means_nothing(name, argument):
    with pytest.raises(InvalidInput, match=argument.rpartition("/")[2]):
        driver_for(name, argument)
