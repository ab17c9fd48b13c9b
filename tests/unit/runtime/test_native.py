"""Loading and calling compiled code in this process."""

from __future__ import annotations

import contextlib
import itertools
from concurrent.futures import ThreadPoolExecutor

import llvmlite.binding as llvm
import numpy as np
import pytest

from farm.artifact import BuiltModule, ParamSpec, Signature, assemble
from farm.artifact.abi import private_symbol
from farm.errors import (
    ArtifactError,
    InvalidArguments,
    InvalidInput,
    KernelFailed,
    NotFound,
    NoVariant,
    UndefinedReference,
)
from farm.runtime import native
from farm.runtime.local import load_local, local_capabilities
from farm.runtime.native import NativeLoader

A = np.array([1, 2, 3, 4], np.float32)
B = np.array([10, 20, 30, 40], np.float32)


def load(*modules):
    return load_local(assemble("llvm", modules))


def test_function_called_gives_its_outputs(add_module):
    with load(add_module) as module:
        result = module.call("add", [A, B])
    assert [output.tolist() for output in result.outputs] == [[11, 22, 33, 44]]
    assert result.samples_ns == ()
    assert module.functions["add"].target == add_module.target
    assert module.functions["add"].signature == add_module.signature


def test_function_repeated_gives_one_sample_a_call(add_module):
    here = local_capabilities()
    ticks = itertools.count(0, 7)
    loader = NativeLoader(here.targets, here.provides, timer_ns=lambda: next(ticks))
    with loader.load(assemble("llvm", [add_module])) as module:
        result = module.call("add", [A, B], repeat=3)
    assert result.samples_ns == (7, 7, 7)
    assert result.outputs[0].tolist() == [11, 22, 33, 44]


def test_inputs_strided_or_misaligned_give_the_same_result(add_module):
    strided = np.array([[1, 0], [2, 0], [3, 0], [4, 0]], np.float32)[:, 0]
    raw = np.zeros(64, np.uint8)
    start = -raw.ctypes.data % 16 + 4
    misaligned = raw[start : start + 16].view(np.float32)
    misaligned[:] = A
    with load(add_module) as module:
        for array in (strided, misaligned):
            assert module.call("add", [array, B]).outputs[0].tolist() == [11, 22, 33, 44]


@pytest.mark.parametrize(
    ("inputs", "argument", "has", "needs"),
    [
        ([A, B[:3]], "b", "float32[3]", "float32[4]"),
        ([A, B.astype(np.float64)], "b", "float64[4]", "float32[4]"),
        ([A.astype(">f4"), B], "a", ">f4[4]", "float32[4]"),
        ([[1.0, 2.0, 3.0, 4.0], B], "a", "list", "float32[4]"),
    ],
    ids=["shape", "dtype", "byte-order", "no-array"],
)
def test_inputs_that_do_not_fit_are_refused_by_name(add_module, inputs, argument, has, needs):
    with load(add_module) as module, pytest.raises(InvalidArguments) as caught:
        module.call("add", inputs)
    assert caught.value.details == {
        "symbol": "add",
        "argument": argument,
        "has": has,
        "needs": needs,
    }


def test_inputs_of_wrong_number_are_refused(add_module):
    with load(add_module) as module, pytest.raises(InvalidArguments, match="pass 2: a: float32"):
        module.call("add", [A])


def test_repeat_out_of_range_is_refused(add_module):
    with load(add_module) as module:
        for repeat in (-1, 10_001):
            with pytest.raises(InvalidInput, match="bad repeat count"):
                module.call("add", [A, B], repeat=repeat)


def test_function_unknown_is_not_found_and_lists_known(add_module):
    with load(add_module) as module, pytest.raises(NotFound, match="there is add"):
        module.call("sub", [])


def test_module_closed_refuses_calls(add_module):
    module = load(add_module)
    module.close()
    module.close()
    with pytest.raises(InvalidInput, match="was closed"):
        module.call("add", [A, B])


def test_output_never_written_shows_the_poison(built):
    out = ParamSpec("out", "uint8", (3,), "output")
    with load(built("lazy", [out], "  ret i32 0")) as module:
        assert module.call("lazy", []).outputs[0].tolist() == [0xA5] * 3


def test_outputs_are_aligned_and_fresh_each_call(built):
    params = [ParamSpec("out", "uint64", (), "output", 128)]
    address = "  %int = ptrtoint ptr %d0 to i64\n  store i64 %int, ptr %d0\n  ret i32 0"
    with load(built("where", params, address)) as module:
        first, second = (module.call("where", []).outputs[0] for _ in range(2))
    assert int(first) % 128 == int(second) % 128 == 0
    assert int(first) != int(second)


def test_inout_repeated_starts_from_the_callers_value_each_time(built):
    params = [
        ParamSpec("x", "int32", (), "inout"),
        ParamSpec("seen", "int32", (), "output"),
    ]
    body = """
  %old = load i32, ptr %d0
  %new = add i32 %old, 1
  store i32 %new, ptr %d0
  %bad = icmp ne i32 %old, 41
  br i1 %bad, label %fail, label %fine
fail:
  ret i32 261
fine:
  store i32 %old, ptr %d1
  ret i32 0"""
    given = np.array(41, np.int32)
    with load(built("step", params, body)) as module:
        result = module.call("step", [given], repeat=4)
    assert [int(output) for output in result.outputs] == [42, 41]
    assert len(result.samples_ns) == 4
    assert min(result.samples_ns) > 0
    assert int(given) == 41


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        (1, InvalidArguments, "number of arguments; pass 2"),
        (7 | 1 << 8, InvalidArguments, r"argument y \(MISALIGNED\)"),
        (5 | 9 << 8, InvalidArguments, r"argument #9 \(WRONG_SHAPE\)"),
        (9, KernelFailed, "accelerator failed"),
        (77, KernelFailed, "unknown return code"),
        (256, KernelFailed, "unknown return code"),
    ],
)
def test_return_code_becomes_its_error(built, code, error, message):
    params = [ParamSpec("x", "int8", (2,), "input"), ParamSpec("y", "int8", (2,), "output")]
    with (
        load(built("f", params, f"  ret i32 {code}")) as module,
        pytest.raises(error, match=message),
    ):
        module.call("f", [np.zeros(2, np.int8)])


def test_function_calling_another_is_linked_by_symbol(built, add_module, add_params):
    forward = "  %code = call i32 @add(ptr %args, i32 %n)\n  ret i32 %code"
    outer = built("outer", add_params, forward, outside="declare i32 @add(ptr, i32)\n")
    with load(outer, add_module) as module:
        assert module.call("outer", [A, B]).outputs[0].tolist() == [11, 22, 33, 44]
        assert sorted(module.functions) == ["add", "outer"]


def test_private_helper_is_linked_but_not_callable(built, add_params):
    helper_name = private_symbol("add", "0" * 16)
    forward = f"  %code = call i32 @{helper_name}(ptr %args, i32 %n)\n  ret i32 %code"
    declared = f"declare i32 @{helper_name}(ptr, i32)\n"
    body = "  store <4 x float> zeroinitializer, ptr %d2, align 4\n  ret i32 0"
    helper = built(helper_name, add_params, body)
    outer = built("outer", add_params, forward, outside=declared)
    with load(outer, helper) as module:
        assert sorted(module.functions) == ["outer"]
        assert module.call("outer", [A, B]).outputs[0].tolist() == [0, 0, 0, 0]


def test_reference_to_nothing_is_refused(built):
    body = "  %code = call i32 @absent(ptr %args, i32 %n)\n  ret i32 %code"
    module = built("f", [], body, outside="declare i32 @absent(ptr, i32)\n")
    with pytest.raises(UndefinedReference, match="absent"):
        load(module)


def test_reference_to_the_process_is_refused_but_memcpy_is_there(built):
    body = "  %r = call i32 @getpid()\n  ret i32 0"
    with pytest.raises(UndefinedReference, match="getpid"):
        load(built("f", [], body, outside="declare i32 @getpid()\n"))
    params = [ParamSpec("x", "uint8", (99,), "input"), ParamSpec("y", "uint8", (99,), "output")]
    copy = "  %r = call ptr @memcpy(ptr %d1, ptr %d0, i64 99)\n  ret i32 0"
    outside = "declare ptr @memcpy(ptr, ptr, i64)\n"
    with load(built("g", params, copy, outside=outside)) as module:
        given = np.arange(99, dtype=np.uint8)
        assert module.call("g", [given]).outputs[0].tolist() == given.tolist()


def test_constant_data_of_an_object_is_reachable(built):
    table = "@table = internal constant [4 x i32] [i32 3, i32 1, i32 4, i32 1]\n"
    body = """
  %v = load <4 x i32>, ptr @table, align 4
  store <4 x i32> %v, ptr %d0, align 4
  ret i32 0"""
    params = [ParamSpec("y", "int32", (4,), "output")]
    with load(built("pi", params, body, outside=table)) as module:
        assert module.call("pi", []).outputs[0].tolist() == [3, 1, 4, 1]


def test_object_that_is_no_object_is_refused(add_module):
    broken = BuiltModule(
        kind="device",
        symbol="f",
        target=add_module.target,
        format="elf-object",
        format_version=1,
        requires=add_module.requires,
        toolchain="test",
        signature=Signature(()),
        data=b"not an object",
    )
    with pytest.raises(ArtifactError, match="no little-endian ELF"):
        load(broken)


def test_object_of_unknown_format_is_refused(add_module):
    newer = BuiltModule(
        kind="device",
        symbol="f",
        target=add_module.target,
        format="elf-object",
        format_version=2,
        requires=add_module.requires,
        toolchain="test",
        signature=Signature(()),
        data=add_module.data,
    )
    with pytest.raises(ArtifactError, match="cannot link format elf-object version 2"):
        load(newer)


def test_artifact_for_another_machine_has_no_variant(built, add_params):
    other = built("add", add_params, "  ret i32 0", target="llvm -mtriple=aarch64-linux-gnu")
    with pytest.raises(NoVariant, match="the device runs no llvm/aarch64"):
        load(other)


def test_most_demanding_variant_is_loaded(built, add_module, add_params):
    plain = "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64"
    slower = built("add", add_params, "  ret i32 9", target=plain)
    with load(slower, add_module) as module:
        assert module.functions["add"].target == add_module.target


def test_capabilities_of_this_machine_cover_its_own_target(add_module):
    here = local_capabilities()
    assert set(add_module.requires) <= here.provides
    assert add_module.target in here.targets
    assert here.targets[-1] == add_module.target
    assert all(target.startswith("ea ") for target in here.targets[:-1])
    assert local_capabilities(accelerators=False).targets == (add_module.target,)


def test_modules_of_equal_names_live_side_by_side_and_end_alone(add_module):
    first, second = load(add_module), load(add_module)
    assert second.call("add", [A, B]).outputs[0].tolist() == [11, 22, 33, 44]
    first.close()
    assert second.call("add", [A, B]).outputs[0].tolist() == [11, 22, 33, 44]
    second.close()


def test_modules_outlive_the_linker_that_made_them_and_a_link_that_failed(add_module, monkeypatch):
    monkeypatch.setattr(native, "_LINKER", native._Linker())
    monkeypatch.setattr(native._Linker, "LIBRARIES", 3)
    with contextlib.ExitStack() as stack:
        modules = []
        for _ in range(8):
            with pytest.raises(RuntimeError):
                native._LINKER.link(llvm.JITLibraryBuilder().add_object_img(b"no object"))
            modules.append(stack.enter_context(load(add_module)))
        for module in modules:
            assert module.call("add", [A, B]).outputs[0].tolist() == [11, 22, 33, 44]


def test_modules_loaded_by_several_threads_at_once_all_work(add_module):
    def work(_):
        with load(add_module) as module:
            return module.call("add", [A, B]).outputs[0].tolist()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(40))) == [[11, 22, 33, 44]] * 40
