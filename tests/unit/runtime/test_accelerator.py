"""Launching programs of the emulated accelerator through compiled host stubs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from farm.artifact import BuiltModule, ParamSpec, Signature, assemble
from farm.ea.assembly import assemble as assemble_program
from farm.ea.encoding import encode_program
from farm.errors import ArtifactError, DeviceFault, InfrastructureError, InvalidProgram
from farm.runtime.local import load_local
from farm.target import Target

EA = "ea -config=ea16"
PARAMS = (
    ParamSpec("a", "int8", (16, 16), "input"),
    ParamSpec("c", "int8", (16, 16), "output"),
)
COPY = """
.isa 1
.mach ea16
.args a, c
.sem full
ld.s s[0], a+0, rows=16 cols=16 dstride=16 lstride=16 | post full
st.s c+0, s[0], rows={rows} cols=16 dstride=16 lstride=16 | wait full
halt
"""
GLOBALS = """
@__farm_launch_{name} = global ptr null
@__farm_context_{name} = global ptr null
"""
STUB = """
  %launch = load ptr, ptr @__farm_launch_{name}
  %context = load ptr, ptr @__farm_context_{name}
  %none = icmp eq ptr %launch, null
  br i1 %none, label %absent, label %present
absent:
  ret i32 8
present:
  %buffers = alloca [2 x ptr]
  %second = getelementptr ptr, ptr %buffers, i64 1
  store ptr %d0, ptr %buffers
  store ptr %d1, ptr %second
  %result = call i32 %launch(ptr %context, ptr %buffers)
  %good = icmp eq i32 %result, 0
  %code = select i1 %good, i32 0, i32 9
  ret i32 %code"""
A = np.arange(256, dtype=np.int8).reshape(16, 16)


def program(name, image):
    target = Target.parse(EA)
    return BuiltModule(
        kind="device",
        symbol=name,
        target=str(target),
        format="ea-program",
        format_version=1,
        requires=target.requires,
        toolchain="test",
        signature=Signature(PARAMS),
        data=image,
    )


def image_of(rows):
    return encode_program(assemble_program(COPY.format(rows=rows)))


@pytest.fixture
def stub(built):
    def make(name):
        return built(
            name,
            PARAMS,
            STUB.format(name=name),
            kind="host",
            outside=GLOBALS.format(name=name),
        )

    return make


def load(*modules):
    return load_local(assemble("llvm", modules))


def test_accelerator_function_called_gives_its_outputs(stub):
    with load(program("copy", image_of(16)), stub("copy")) as module:
        assert module.functions["copy"].target == EA
        result = module.call("copy", [A], repeat=2)
    assert np.array_equal(result.outputs[0], A)
    assert len(result.samples_ns) == 2


def test_accelerator_called_by_a_cpu_function_is_reached_by_its_name(stub, built):
    forward = "  %code = call i32 @copy(ptr %args, i32 %n)\n  ret i32 %code"
    outer = built("network", PARAMS, forward, outside="declare i32 @copy(ptr, i32)\n")
    with load(program("copy", image_of(16)), stub("copy"), outer) as module:
        assert np.array_equal(module.call("network", [A]).outputs[0], A)


@pytest.mark.parametrize("code", ["%code", "0"], ids=["passed-on", "swallowed"])
def test_fault_surfaces_typed_through_compiled_code_and_the_next_call_runs(stub, built, code):
    forward = f"  %code = call i32 @far(ptr %args, i32 %n)\n  ret i32 {code}"
    outer = built("network", PARAMS, forward, outside="declare i32 @far(ptr, i32)\n")
    modules = [
        program("far", image_with_far_store()),
        stub("far"),
        outer,
        program("copy", image_of(16)),
        stub("copy"),
    ]
    with load(*modules) as module:
        for symbol in ("far", "network", "far"):
            with pytest.raises(DeviceFault) as caught:
                module.call(symbol, [A])
            assert caught.value.details["fault"] == "DRAM_OOB"
            assert np.array_equal(module.call("copy", [A]).outputs[0], A)


def image_with_far_store():
    """A program that stores past its argument, although its header claims to need less."""
    parsed = assemble_program(COPY.format(rows=17))
    args = tuple(dataclasses.replace(arg, min_bytes=0) for arg in parsed.args)
    return encode_program(dataclasses.replace(parsed, args=args))


def test_host_stub_without_launcher_says_so(built):
    with (
        load(built("f", PARAMS, "  ret i32 8")) as module,
        pytest.raises(InfrastructureError, match="no launcher"),
    ):
        module.call("f", [A])


def test_program_damaged_is_refused_at_load(stub):
    image = bytearray(image_of(16))
    image[-1] ^= 1
    with pytest.raises(InvalidProgram, match="contents do not match"):
        load(program("copy", bytes(image)), stub("copy"))


def test_program_of_unknown_format_is_refused_at_load(stub):
    strange = dataclasses.replace(program("copy", image_of(16)), format="ea-graph")
    with pytest.raises(ArtifactError, match="format ea-graph version 1 does not run on ea"):
        load(strange, stub("copy"))
