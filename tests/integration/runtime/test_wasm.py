"""WebAssembly in this process: arguments, traps, ends, refusals."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from farm.artifact import ParamSpec, assemble
from farm.errors import (
    ArtifactError,
    DeviceFault,
    InvalidArguments,
    InvalidInput,
    NoVariant,
    UndefinedReference,
)

wasm = pytest.importorskip(
    "farm.runtime.wasm",
    reason="wasmtime is missing: install kernel-farm[wasm]",
    exc_type=ImportError,
)
TARGET = "wasm"
A = np.array([1, 2, 3, 4], np.float32)
B = np.array([10, 20, 30, 40], np.float32)
X = ParamSpec("x", "int32", (1,), "inout")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def load(cache):
    loaded = []

    def load_modules(*modules):
        loaded.append(wasm.wasm_loader(cache=cache).load(assemble(TARGET, modules)))
        return loaded[-1]

    yield load_modules
    for module in loaded:
        module.close()


@pytest.fixture
def make(built):
    """Make a module of a function body for WebAssembly."""

    def make_for(name, params, body, **options):
        return built(name, params, body, target=TARGET, format_name="wasm-object", **options)

    return make_for


def test_call_gives_outputs_and_samples_and_leaves_inputs(load, make, add_params, add_body):
    module = load(make("add", add_params, add_body))
    result = module.call("add", [A, B], repeat=3)
    assert result.outputs[0].tolist() == [11, 22, 33, 44]
    assert len(result.samples_ns) == 3
    assert min(result.samples_ns) > 0
    assert A.tolist() == [1, 2, 3, 4]


def test_inout_is_put_back_before_each_timed_call(load, make):
    body = """
  %old = load i32, ptr %d0
  %new = add i32 %old, 1
  store i32 %new, ptr %d0
  %ok = icmp eq i32 %old, 7
  %code = select i1 %ok, i32 0, i32 99
  ret i32 %code"""
    result = load(make("step", [X], body)).call("step", [np.array([7], np.int32)], repeat=4)
    assert result.outputs[0].tolist() == [8]


def test_output_that_is_never_written_shows_poison(load, make):
    out = ParamSpec("y", "uint8", (3,), "output")
    assert (
        load(make("lazy", [out], "  ret i32 0")).call("lazy", []).outputs[0].tolist() == [0xA5] * 3
    )


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("  call void @llvm.trap()\n  ret i32 0", "UNREACHABLE"),
        (
            "  %far = inttoptr i32 -8 to ptr\n  store volatile i32 1, ptr %far\n  ret i32 0",
            "MEMORY_OUT_OF_BOUNDS",
        ),
        (
            "  %z = load i32, ptr %d0\n  %q = sdiv i32 1, %z\n  store i32 %q, ptr %d0\n  ret i32 0",
            "INTEGER_DIVISION_BY_ZERO",
        ),
    ],
)
def test_trap_is_a_typed_fault_and_the_next_call_has_a_new_instance(body, fault, load, make):
    module = load(
        make("bad", [X], body, outside="declare void @llvm.trap()\n"),
        make("good", [X], "  ret i32 0"),
    )
    for _ in range(2):
        with pytest.raises(DeviceFault, match=f"bad: trapped \\({fault}\\)") as error:
            module.call("bad", [np.zeros(1, np.int32)])
        assert error.value.details["fault"] == fault
    assert module.call("good", [np.array([5], np.int32)]).outputs[0].tolist() == [5]


def test_endless_call_ends_when_the_module_is_closed(load, make):
    body = "  br label %again\nagain:\n  store volatile i32 1, ptr %d0\n  br label %again"
    module = load(make("forever", [X], body))
    timer = threading.Timer(0.2, module.close)
    timer.start()
    with pytest.raises(InvalidInput, match="closed during the call"):
        module.call("forever", [np.zeros(1, np.int32)])
    timer.join()
    with pytest.raises(InvalidInput, match="was closed"):
        module.call("forever", [np.zeros(1, np.int32)])


def test_return_code_of_a_refused_argument_names_it(load, make):
    with pytest.raises(InvalidArguments, match=r"argument x \(MISALIGNED\)"):
        load(make("f", [X], "  ret i32 7")).call("f", [np.zeros(1, np.int32)])


def test_large_arrays_grow_the_memory(load, make):
    many = ParamSpec("x", "uint8", (3 << 20,), "inout")
    body = "  %last = getelementptr i8, ptr %d0, i32 3145727\n  store i8 9, ptr %last\n  ret i32 0"
    x = np.ones(3 << 20, np.uint8)
    y = load(make("touch", [many], body)).call("touch", [x]).outputs[0]
    assert (y[:-1] == 1).all()
    assert y[-1] == 9


def test_reference_to_nothing_is_refused_by_name(load, make):
    body = "  %code = call i32 @absent(ptr %args, i32 %n)\n  ret i32 %code"
    with pytest.raises(UndefinedReference, match="'absent'"):
        load(make("f", [X], body, outside="declare i32 @absent(ptr, i32)\n"))


def test_bytes_that_are_no_module_are_refused(load, make):
    import dataclasses

    good = make("f", [X], "  ret i32 0")
    with pytest.raises(ArtifactError, match="the objects do not fit"):
        load(dataclasses.replace(good, data=good.data[:40]))
    with pytest.raises(ArtifactError, match="cannot link format elf-object"):
        load(dataclasses.replace(good, format="elf-object"))


def test_feature_that_the_engine_lacks_is_named(built, cache):
    target = "llvm -mtriple=wasm32-unknown-unknown -mattr=+fp16"
    module = built("f", [X], "  ret i32 0", target=target, format_name="wasm-object")
    with pytest.raises(NoVariant, match="lacks cpu-feature:fp16"):
        wasm.wasm_loader(cache=cache).load(assemble(target, [module]))


def test_artifact_for_this_machine_only_has_no_variant(load, add_module):
    with pytest.raises(NoVariant, match="the device runs no llvm/x86_64"):
        load(add_module)
