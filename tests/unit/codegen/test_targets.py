"""Targets: objects for each architecture, what is refused, and that bytes never vary."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import farm.te as te
from farm.artifact.abi import FUNCTIONS_SECTION
from farm.codegen import compile_function, toolchain_of
from farm.codegen.llvm.symbols import undefined_symbols
from farm.errors import InvalidTarget, UnsupportedFunction
from farm.ir import DType, LoopKind, serialise
from farm.ir.expr import Cast, Math, MathOp
from farm.runtime.elf import read_elf
from farm.target import Target

ELF_TARGETS = {
    "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64": 62,
    "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v4": 62,
    "llvm -mtriple=aarch64-linux-gnu": 183,
    "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72": 183,
    "llvm -mtriple=riscv64-linux-gnu": 243,
    "llvm -mtriple=riscv64-linux-gnu -mcpu=generic-rv64 -mattr=+v": 243,
    "llvm -mtriple=armv7-linux-gnueabihf": 40,
    "llvm -mtriple=armv7-linux-gnueabihf -mcpu=cortex-a15": 40,
    "llvm -mtriple=loongarch64-linux-gnu -mattr=+d": 258,
}
WASM_TARGETS = [
    "llvm -mtriple=wasm32-unknown-unknown",
    "llvm -mtriple=wasm32-wasi -mattr=+simd128,+nontrapping-fptoint",
]


NUMBERS = [DType.INT8, DType.INT32, DType.INT64, DType.UINT64, DType.FLOAT32, DType.FLOAT64]


@pytest.fixture(scope="module")
def difficult(elementwise_function):
    """A function of what some target lacks an instruction for."""
    arrays = {str(dtype): np.zeros(64, dtype.numpy) for dtype in NUMBERS}
    expressions = {}
    for position, dtype in enumerate(NUMBERS):

        def operand(elements, position=position):
            return elements[position]

        if dtype.is_float:
            for op in MathOp:
                expressions[f"{op.value}_{dtype}"] = lambda *e, op=op, x=operand: Math(op, x(e))
            for to in NUMBERS[1:4]:
                expressions[f"{dtype}_{to}"] = lambda *e, to=to, x=operand: Cast(to, x(e))
            continue
        expressions[f"div_{dtype}"] = lambda *e, x=operand: x(e) // (x(e) + 3)
        expressions[f"mod_{dtype}"] = lambda *e, x=operand: x(e) % 7
        for to in NUMBERS[4:]:
            expressions[f"{dtype}_{to}"] = lambda *e, to=to, x=operand: Cast(to, x(e))
    return serialise(elementwise_function("difficult", arrays, expressions))


@pytest.fixture(scope="module")
def halves(elementwise_function):
    """Functions of floats of 16 bits, whose conversions are library calls to LLVM where a CPU has none."""
    types = [DType.FLOAT16, DType.BFLOAT16]
    arrays = {str(dtype): np.zeros(8, dtype.numpy) for dtype in types}
    expressions = {}
    for position, dtype in enumerate(types):
        for to in (dtype, DType.INT8, DType.INT64, DType.FLOAT64):
            name = f"{dtype}_to_{to}"
            expressions[name] = lambda *e, to=to, at=position: Cast(to, e[at] * e[at])
        expressions[f"root_{dtype}"] = lambda *e, at=position: Math(MathOp.SQRT, e[at])
    return serialise(elementwise_function("halves", arrays, expressions, LoopKind.VECTORIZED))


def dense():
    """A function with a reduction, an inner buffer and a call."""
    x, w = (
        te.placeholder((8, 32), "float32", name="x"),
        te.placeholder((32, 16), "float32", name="w"),
    )
    k = te.reduce_axis(32, name="k")
    acc = te.compute((8, 16), lambda i, j: te.sum(x[i, k] * w[k, j], k), name="acc")
    y = te.compute((8, 16), lambda i, j: te.tanh(te.maximum(acc[i, j], 0.0)), name="y")
    return serialise(te.function("dense", [x, w, y]))


@pytest.mark.parametrize("text", [*ELF_TARGETS, *WASM_TARGETS])
def test_floats_of_16_bits_need_no_library(text, halves):
    built = compile_function(halves, "device", Target.parse(text))
    assert set(undefined_symbols(built.data)) <= {"memcpy", "memset", "memmove"}


@pytest.mark.parametrize("text", list(ELF_TARGETS))
def test_difficult_operations_compile_to_a_free_standing_elf_object(text, difficult):
    for code in (difficult, dense()):
        built = compile_function(code, "device", Target.parse(text))
        elf = read_elf(built.data)
        assert (built.format, elf.machine) == ("elf-object", ELF_TARGETS[text])
        assert elf.undefined <= {"memcpy", "memset", "memmove"}
        assert elf.defined == {built.symbol}
        assert FUNCTIONS_SECTION.encode() + b"\0" in built.data


@pytest.mark.parametrize("text", WASM_TARGETS)
def test_difficult_operations_compile_to_a_free_standing_wasm_object(text, difficult):
    for code in (difficult, dense()):
        built = compile_function(code, "device", Target.parse(text))
        assert built.format == "wasm-object"
        assert struct.unpack("<4sI", built.data[:8]) == (b"\0asm", 1)
        assert set(undefined_symbols(built.data)) <= {"memcpy", "memset", "memmove"}
        assert FUNCTIONS_SECTION.encode() not in built.data


@pytest.mark.parametrize("text", [*list(ELF_TARGETS)[::2], WASM_TARGETS[0]])
def test_callee_is_the_only_undefined_symbol_of_a_caller(text):
    x, y = (te.placeholder((4,), "int8", name=name) for name in "xy")
    caller = te.sequence("caller", [x], [y], [te.call("callee", x, y)])
    built = compile_function(serialise(caller), "device", Target.parse(text))
    assert undefined_symbols(built.data) == ("callee",)


def test_built_module_carries_target_requirements_toolchain_and_signature():
    target = Target.parse("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64 -mattr=+avx2")
    built = compile_function(dense(), "device", target)
    assert (built.kind, built.symbol, built.target) == ("device", "dense", str(target))
    assert built.requires == ("arch:x86_64", "cpu-feature:avx2")
    assert built.toolchain == toolchain_of(target)
    assert [str(p) for p in built.signature.params] == [
        "x: float32[8, 32]",
        "w: float32[32, 16]",
        "y: float32[8, 16]",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("llvm -mtriple=foo-linux-gnu", "no such architecture"),
        ("llvm -mtriple=nvptx64-nvidia-cuda", "no such architecture"),
        ("llvm -mtriple=i686-linux-gnu", "no such architecture"),
        ("llvm -mtriple=aarch64-linx-gnu", "unknown part of a triple \\('linx'"),
        ("llvm -mtriple=arm64-apple-darwin", "MachO objects"),
        ("llvm -mtriple=x86_64-windows-msvc", "COFF objects"),
        (
            "llvm -mtriple=x86_64-linux-gnu -mcpu=cortex-a72",
            "unknown CPU for x86-64 \\('cortex-a72'",
        ),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=help", "help is no CPU"),
        ("llvm -mtriple=aarch64-linux-gnu -mattr=+neon,+help", "help is no CPU or feature"),
        (
            "llvm -mtriple=aarch64-linux-gnu -mattr=+avx2",
            "unknown feature for aarch64 \\('\\+avx2'",
        ),
        ("llvm -mtriple=aarch64-linux-gnu -mattr=+neon,-fancy", "unknown feature"),
    ],
)
def test_target_unknown_to_llvm_is_refused_quietly(text, problem, capfd):
    with pytest.raises(InvalidTarget, match=problem):
        compile_function(dense(), "device", Target.parse(text))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("llvm -mtriple=riscv32-unknown-none", "__mulsf3"),
        ("llvm -mtriple=armv4t-none-eabi", "__aeabi_fmul"),
        ("llvm -mtriple=riscv64-linux-gnu -mattr=-d,-f", "__mulsf3"),
    ],
)
def test_function_that_needs_a_library_is_refused_with_its_symbols(text, names):
    with pytest.raises(UnsupportedFunction, match=names):
        compile_function(dense(), "device", Target.parse(text))


def test_buffer_beyond_an_address_space_is_refused():
    x = te.placeholder((1 << 31,), "int8", name="x")
    y = te.compute((1,), lambda i: x[i], name="y")
    code = serialise(te.function("first", [x, y]))
    with pytest.raises(UnsupportedFunction, match="2147483648 bytes"):
        compile_function(code, "device", Target.parse("llvm -mtriple=wasm32-wasi"))


SCRIPT = """
import sys
from farm.codegen import compile_function
from farm.core.digest import digest_of
from farm.target import Target
code = bytes.fromhex(sys.argv[1])
if sys.argv[2] == "warm":
    for text in sys.argv[:2:-1]:
        compile_function(code, "host", Target.parse(text))
for text in sys.argv[3:]:
    for kind in ("device", "host"):
        print(digest_of(compile_function(code, kind, Target.parse(text)).data))
"""


def test_bytes_are_the_same_in_every_process():
    targets = ["llvm", "llvm -mtriple=armv7-linux-gnueabihf", WASM_TARGETS[0]]
    outputs = set()
    for seed, order in (("1", "cold"), ("77", "warm")):
        result = subprocess.run(
            [sys.executable, "-c", SCRIPT, dense().hex(), order, *targets],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stderr == ""
        outputs.add(result.stdout)
    assert len(outputs) == 1
    digests = outputs.pop().split()
    devices = digests[::2]
    assert len(digests) == 2 * len(targets)
    assert len(set(devices)) == len(devices)


def test_object_holds_no_path_or_time_of_this_machine():
    data = compile_function(dense(), "device", Target.parse("llvm")).data
    for secret in (str(Path.cwd()), str(Path.home()), os.uname().nodename, "llvmlite"):
        assert len(secret) < 4 or secret.encode() not in data
