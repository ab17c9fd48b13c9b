"""Code of other instruction sets under qemu-user, in real child processes."""

from __future__ import annotations

import os
import struct
import subprocess
import threading
import time

import numpy as np
import pytest
from farm_agents.worker.processes import cpu_time_s

from farm.artifact import ParamSpec, assemble
from farm.errors import (
    ArtifactError,
    InfrastructureError,
    InvalidArguments,
    InvalidInput,
    KernelCrashed,
    NotFound,
    NoVariant,
    UndefinedReference,
)
from farm.runtime import toolchain
from farm.runtime.qemu import find_emulator, qemu_loader

TARGETS = {
    "aarch64": "llvm -mtriple=aarch64-linux-gnu",
    "armv7": "llvm -mtriple=armv7-linux-gnueabihf",
    "riscv64": "llvm -mtriple=riscv64-linux-gnu -mattr=+a,+c,+d,+f,+m",
}
ARCHS = [
    pytest.param(
        arch,
        marks=pytest.mark.skipif(
            find_emulator(arch) is None,
            reason=f"no emulator for {arch}: install the Debian package qemu-user",
        ),
    )
    for arch in TARGETS
]
A = np.array([1, 2, 3, 4], np.float32)
B = np.array([10, 20, 30, 40], np.float32)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=ARCHS)
def arch(request):
    return request.param


@pytest.fixture
def make(built, arch):
    def make_for(name, params, body, **options):
        return built(name, params, body, target=TARGETS[arch], **options)

    return make_for


@pytest.fixture
def load(arch, cache):
    loaded = []

    def load_modules(*modules):
        artifact = assemble(TARGETS[arch], modules)
        module = qemu_loader(arch, cache=cache).load(artifact)
        loaded.append(module)
        return module

    yield load_modules
    for module in loaded:
        module.close()


@pytest.fixture
def add(make, add_params, add_body):
    return make("add", add_params, add_body)


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_function_called_gives_outputs_and_samples(load, add):
    module = load(add)
    result = module.call("add", [A, B], repeat=5)
    assert [output.tolist() for output in result.outputs] == [[11, 22, 33, 44]]
    assert len(result.samples_ns) == 5
    assert min(result.samples_ns) > 0
    again = module.call("add", [A[::-1], B])
    assert again.outputs[0].tolist() == [14, 23, 32, 41]
    assert again.samples_ns == ()


@pytest.mark.parametrize("name", ["_start", "main", "farm_runner_main", "write_all", "memcpy1"])
def test_name_of_a_function_never_meets_the_runner_s_own(load, make, add_params, add_body, name):
    result = load(make(name, add_params, add_body)).call(name, [A, B])
    assert result.outputs[0].tolist() == [11, 22, 33, 44]


def test_inputs_that_do_not_fit_are_refused_before_the_child_sees_them(load, add):
    module = load(add)
    with pytest.raises(InvalidArguments) as caught:
        module.call("add", [A, B[:2]])
    assert caught.value.details["argument"] == "b"
    with pytest.raises(NotFound):
        module.call("sub", [A, B])


def test_arrays_large_and_of_all_sorts_round_trip(load, make):
    params = [
        ParamSpec("x", "uint8", (1 << 20,), "input"),
        ParamSpec("y", "uint8", (1 << 20,), "output"),
        ParamSpec("s", "float64", (), "inout"),
        ParamSpec("never", "int16", (2, 3), "output"),
    ]
    body = f"""
  %r = call ptr @memcpy(ptr %d1, ptr %d0, i64 {1 << 20})
  %old = load double, ptr %d2
  %new = fadd double %old, 1.0
  store double %new, ptr %d2
  ret i32 0"""
    module = load(make("f", params, body, outside="declare ptr @memcpy(ptr, ptr, i64)\n"))
    x = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)
    result = module.call("f", [x, np.array(41.0)], repeat=2)
    assert np.array_equal(result.outputs[0], x)
    assert float(result.outputs[1]) == 42.0
    assert result.outputs[2].tolist() == np.full((2, 3), 0xA5A5 - 65536).tolist()


@pytest.mark.parametrize("overlap", [-3, 5])
def test_memmove_and_memset_of_the_runner_are_right(load, make, overlap):
    params = [ParamSpec("x", "uint8", (100,), "inout")]
    low, high = (10, 10 + overlap) if overlap > 0 else (10 - overlap, 10)
    body = f"""
  %from = getelementptr i8, ptr %d0, i64 {low}
  %to = getelementptr i8, ptr %d0, i64 {high}
  %r = call ptr @memmove(ptr %to, ptr %from, i64 61)
  %tail = getelementptr i8, ptr %d0, i64 81
  %s = call ptr @memset(ptr %tail, i32 7, i64 18)
  ret i32 0"""
    outside = "declare ptr @memmove(ptr, ptr, i64)\ndeclare ptr @memset(ptr, i32, i64)\n"
    x = np.arange(100, dtype=np.uint8)
    expected = x.copy()
    expected[high : high + 61] = x[low : low + 61]
    expected[81:99] = 7
    module = load(make("f", params, body, outside=outside))
    assert module.call("f", [x]).outputs[0].tolist() == expected.tolist()


def test_return_code_of_compiled_code_names_the_argument(load, make):
    params = [ParamSpec("x", "int8", (2,), "input")]
    module = load(make("f", params, f"  ret i32 {7 | 0 << 8}"))
    with pytest.raises(InvalidArguments, match=r"argument x \(MISALIGNED\)"):
        module.call("f", [np.zeros(2, np.int8)])


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("  store volatile i8 0, ptr inttoptr (i64 8 to ptr)\n  ret i32 0", "SIGSEGV"),
        ("  call void @llvm.trap()\n  unreachable", "SIGILL or SIGTRAP"),
    ],
    ids=["null", "trap"],
)
def test_kernel_that_crashes_is_reported_by_signal_and_the_module_lives_on(
    load, make, add, body, name
):
    crash = make("crash", [], body, outside="declare void @llvm.trap()\n")
    module = load(crash, add)
    with pytest.raises(KernelCrashed) as caught:
        module.call("crash", [])
    assert caught.value.details["signal"] in name
    assert module.pid is None
    assert module.call("add", [A, B]).outputs[0].tolist() == [11, 22, 33, 44]


def test_kernel_that_hangs_ends_when_another_thread_closes(load, make):
    module = load(make("hang", [], "  br label %loop\nloop:\n  br label %loop"))
    pid = module.pid
    errors = []

    def call():
        try:
            module.call("hang", [])
        except InvalidInput as error:
            errors.append(error.message)

    thread = threading.Thread(target=call)
    thread.start()
    deadline = time.monotonic() + 60
    before = cpu_time_s(pid)
    while cpu_time_s(pid) < before + 0.1:  # until it hangs
        assert time.monotonic() < deadline
        time.sleep(0.01)
    module.close()
    thread.join(60)
    assert not thread.is_alive()
    assert is_gone(pid)
    assert errors == ["hang: its module was closed during the call; load the artifact again"]


def test_module_closed_leaves_no_process_and_no_folder(load, add):
    module = load(add)
    pid, folder = module.pid, module._work
    assert not is_gone(pid)
    assert folder.is_dir()
    module.close()
    module.close()
    assert is_gone(pid)
    assert not folder.exists()
    with pytest.raises(InvalidInput, match="was closed"):
        module.call("add", [A, B])


def test_function_without_entry_is_refused(load, make):
    bare = "define i32 @f(ptr %args, i32 %n) nounwind {\n  ret i32 0\n}\n"
    with pytest.raises(ArtifactError, match="no entry in the table"):
        load(make("f", [], "", text=bare))


def test_reference_to_nothing_is_refused_by_name(load, make):
    body = "  %code = call i32 @absent(ptr %args, i32 %n)\n  ret i32 %code"
    with pytest.raises(UndefinedReference, match="'absent'"):
        load(make("f", [], body, outside="declare i32 @absent(ptr, i32)\n"))


def test_artifact_for_this_machine_only_has_no_variant(load, add_module):
    with pytest.raises(NoVariant, match="runs no llvm/x86_64"):
        load(add_module)


def frame(body):
    return struct.pack("<Q", len(body)) + body


def argument(*, bits=32, role=1, ndim=1, align=4, size=16, shape=(4,), data=bytes(16)):
    head = struct.pack(f"<BBBBIQ{len(shape)}q", 2, bits, role, ndim, align, size, *shape)
    return frame(struct.pack("<IIII", 2, 0, 1, 0) + head + data)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\1",
        struct.pack("<Q", 1 << 60),
        struct.pack("<Q", 100) + b"short",
        frame(b""),
        frame(struct.pack("<I", 9)),
        frame(struct.pack("<II", 1, 0)),
        frame(struct.pack("<IIII", 2, 1, 0, 0)),
        frame(struct.pack("<IIII", 2, 0, 257, 0)),
        frame(struct.pack("<IIII", 2, 0, 0, 10_001)),
        frame(struct.pack("<IIII", 2, 0, 1, 0)),
        argument(data=bytes(15)),
        argument(data=bytes(17)),
        argument(size=12),
        argument(ndim=200),
        argument(ndim=2),
        argument(bits=12),
        argument(bits=0),
        argument(role=0),
        argument(role=4),
        argument(align=3),
        argument(align=1 << 20),
        argument(shape=(-4,)),
        argument(shape=(1 << 31, 1 << 32, 1 << 62), ndim=3),
    ],
)
def test_runner_given_a_malformed_request_ends_with_the_protocol_status(load, add, request_bytes):
    command = load(add)._command
    ended = subprocess.run(command, input=request_bytes, capture_output=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (3, b"")


def test_runner_without_a_request_ends_well(load, add):
    ended = subprocess.run(load(add)._command, input=b"", capture_output=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_runner_is_compiled_once_for_a_cache(load, add, cache, arch):
    load(add)
    kept = {
        path: path.stat().st_mtime_ns for path in cache.glob(f"runner-{arch.removesuffix('v7')}-*")
    }
    load(add)
    assert len(kept) == 1
    assert {
        path: path.stat().st_mtime_ns for path in cache.glob(f"runner-{arch.removesuffix('v7')}-*")
    } == kept


def test_cache_that_cannot_be_written_costs_only_time(arch, add, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    artifact = assemble(TARGETS[arch], [add])
    with qemu_loader(arch, cache=blocked / "cache").load(artifact) as module:
        assert module.call("add", [A, B]).outputs[0].tolist() == [11, 22, 33, 44]


def test_loader_for_unknown_architecture_is_refused():
    with pytest.raises(InvalidInput, match="one of aarch64, armv7, riscv64"):
        qemu_loader("vax")


def test_loader_without_qemu_names_the_package(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(InfrastructureError, match="install the Debian package qemu-user"):
        qemu_loader("aarch64")


def test_compiler_missing_names_the_extra(monkeypatch):
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InfrastructureError, match=r"install kernel-farm\[cross\]"):
        toolchain.zig()


def test_cpu_that_lacks_a_feature_refuses_the_slice_and_names_it(built, cache, add_params):
    target = "llvm -mtriple=aarch64-linux-gnu -mcpu=generic -mattr=+dotprod"
    artifact = assemble(target, [built("add", add_params, "  ret i32 0", target=target)])
    with pytest.raises(NoVariant, match="lacks cpu-feature:dotprod") as error:
        qemu_loader("aarch64/cortex-a72", cache=cache).load(artifact)
    assert "cpu-feature:crc" in error.value.details["provides"]
    with qemu_loader("aarch64/cortex-a76", cache=cache).load(artifact) as module:
        assert list(module.functions) == ["add"]


def test_unknown_cpu_is_refused_with_the_known_ones():
    with pytest.raises(InvalidInput, match=r"unknown CPU for riscv64 \('p550'\); use one of v"):
        qemu_loader("riscv64/p550")
