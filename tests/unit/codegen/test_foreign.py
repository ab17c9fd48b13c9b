"""Functions of C and LLVM IR: what they compute, and what is refused before or while they are compiled."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import llvmlite.binding as llvm
import needy
import numpy as np
import pytest

import farm
from farm.artifact import assemble
from farm.codegen import compile_function
from farm.codegen.alone import compile_alone
from farm.codegen.llvm.symbols import undefined_symbols
from farm.errors import BuildFailed, InvalidFunction, InvalidTarget, UnsupportedFunction
from farm.ir import DType, serialise
from farm.ir.declaration import functions_of
from farm.runtime.elf import read_elf
from farm.runtime.local import load_local
from farm.target import Target

needs_zig = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None,
    reason="ziglang is missing: install kernel-farm[cross]",
)
HOST = Target.parse("llvm")
STEP = b"""; farm: step(x: int32[4] inout)
define void @step(ptr %x) {
  %old = load i32, ptr %x
  %new = call i32 @more(i32 %old)
  store i32 %new, ptr %x
  ret void
}
define i32 @more(i32 %x) {
  %y = add i32 %x, 1
  ret i32 %y
}
"""


def compile_one(name, data, target=HOST, **options):
    (function,) = functions_of(name, data, **options)
    return compile_function(serialise(function), "device", target)


def run(name, data, inputs, **options):
    module = compile_one(name, data, **options)
    with load_local(assemble(HOST, [module])) as loaded:
        return loaded.call(module.symbol, inputs).outputs


def test_ir_text_and_bitcode_run_and_export_nothing_else():
    (result,) = run("f.ll", STEP, [np.array([41, 5, 6, 7], np.int32)])
    assert result.tolist() == [42, 5, 6, 7]
    module = compile_one("f.ll", STEP)
    assert read_elf(module.data).defined == {"step"}
    bitcode = llvm.parse_assembly(STEP.decode()).as_bitcode()
    (result,) = run(
        "f.bc",
        bitcode,
        [np.array([1, 0, 0, 0], np.int32)],
        declarations=["step(x: int32[4] inout)"],
    )
    assert result[0] == 2


def test_two_sources_with_one_helper_do_not_meet():
    other = STEP.replace(b"@step", b"@leap").replace(b"farm: step", b"farm: leap")
    other = other.replace(b"add i32 %x, 1", b"add i32 %x, 10")
    modules = [compile_one("f.ll", STEP), compile_one("f.ll", other)]
    with load_local(assemble(HOST, modules)) as loaded:
        x = np.zeros(4, np.int32)
        assert [loaded.call(n, [x]).outputs[0][0] for n in ("step", "leap")] == [1, 10]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ((b"ret i32 %y", b"ret i64 %y"), "LLVM does not read it"),
        ((b"@step", b"@stop"), r"it defines no function of that name \(it defines stop, more\)"),
        (
            (b"void @step(ptr %x)", b"void @step(ptr %x, i32 %n)"),
            r"has type void \(ptr, i32\).*needs void \(ptr\)",
        ),
        ((b"void @step(ptr %x)", b"void @step(ptr byval(i32) %x)"), "parameter that is byval"),
        (
            (b"%y = add i32 %x, 1", b'%y = call i32 asm sideeffect "nop", "=r"()'),
            "inline assembler",
        ),
        (
            (b"define i32 @more", b'module asm ".incbin \\22/etc/hostname\\22"\ndefine i32 @more'),
            "module assembler",
        ),
        (
            (b"define i32 @more", b"@t = thread_local global i32 0\ndefine i32 @more"),
            "thread-local variables",
        ),
        (
            (
                b"define i32 @more",
                b"@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] "
                b"[{ i32, ptr, ptr } { i32 1, ptr @more, ptr null }]\ndefine i32 @more",
            ),
            "constructors",
        ),
        ((b"define i32 @more", b"@also = alias i32 (i32), ptr @more\ndefine i32 @more"), "aliases"),
        (
            (
                b"define i32 @more",
                b"@also = ifunc i32 (i32), ptr @which\ndefine ptr @which() {\n  ret ptr @more\n}\ndefine i32 @more",
            ),
            "indirect functions",
        ),
        ((b"@more", b"@__farm_more"), "reserved name"),
        ((b"define void", b'target datalayout = "E-p:16:16"\ndefine void'), "for another machine"),
    ],
)
def test_ir_that_may_not_be_used_is_refused_with_the_reason(change, problem):
    with pytest.raises(InvalidFunction, match=f"function step: its source is refused: .*{problem}"):
        compile_one("f.ll", STEP.replace(*change))


def test_ir_that_needs_other_functions_is_refused_by_their_names():
    calling = STEP.replace(b"define i32 @more", b"declare i32 @more").split(b"declare i32 @more")[0]
    with pytest.raises(UnsupportedFunction, match=r"functions that no device has \(more\)"):
        compile_one("f.ll", calling + b"declare i32 @more(i32)\n")


def test_features_that_a_source_names_are_replaced_by_the_targets():
    text = STEP.replace(
        b"define void @step(ptr %x)", b'define void @step(ptr %x) "target-cpu"="skylake-avx512"'
    )
    module = compile_one("f.ll", text, Target.parse("llvm -mtriple=x86_64-linux-gnu"))
    assert module.requires == ("arch:x86_64",)
    assert (
        module.data
        == compile_one("f.ll", STEP, Target.parse("llvm -mtriple=x86_64-linux-gnu")).data
    )


CRASH = b"""; farm: f(x: float32[4] inout)
declare <4 x float> @llvm.aarch64.neon.fmulx.v4f32(<4 x float>, <4 x float>)
define void @f(ptr %x) {
  %v = load <4 x float>, ptr %x
  %w = call <4 x float> @llvm.aarch64.neon.fmulx.v4f32(<4 x float> %v, <4 x float> %v)
  store <4 x float> %w, ptr %x
  ret void
}
"""


def test_crash_of_the_compiler_is_a_build_error_and_this_process_goes_on():
    (function,) = functions_of("f.ll", CRASH)
    with pytest.raises(
        BuildFailed, match=r"the compiler crashed \(SIGABRT.*Cannot select"
    ) as error:
        compile_alone(serialise(function), "device", HOST)
    assert error.value.details["signal"] == "SIGABRT"
    with pytest.raises(BuildFailed, match="the compiler crashed"):
        farm.build({"llvm": function})


def test_damaged_bitcode_is_a_typed_error_whatever_it_does_to_the_reader():
    bitcode = llvm.parse_assembly(STEP.decode()).as_bitcode()
    damaged = bytearray(bitcode)
    for place in range(40, len(damaged), 97):
        damaged[place] ^= 0x55
    for data in (bitcode[: len(bitcode) // 2], bytes(damaged), bitcode[:4]):
        (function,) = functions_of("f.bc", data, ["step(x: int32[4] inout)"])
        with pytest.raises((InvalidFunction, BuildFailed), match=r"LLVM does not read it|crashed"):
            compile_alone(serialise(function), "device", HOST)


def test_compiling_alone_gives_the_same_module_and_the_same_errors():
    (function,) = functions_of("f.ll", STEP)
    assert compile_alone(serialise(function), "device", HOST) == compile_one("f.ll", STEP)
    with pytest.raises(InvalidTarget, match="no-such"):
        compile_alone(serialise(function), "device", Target.parse("llvm -mcpu=no-such"))


def c_of_every_type():
    """Each type by its value and through a pointer, in one function."""
    types = {
        dtype: {"bool": "bool", "float32": "float", "float64": "double"}.get(
            str(dtype), "uint16_t" if dtype.is_half else f"{dtype}_t"
        )
        for dtype in DType
    }
    params = [f"{t}_v: {t}, {t}_o: {t}[3] output" for t in types]
    args = [f"{c} {t}_v, {c} *{t}_o" for t, c in types.items()]
    body = " ".join(f"for (int i = 0; i < 3; i++) {t}_o[i] = {t}_v;" for t in types)
    return f"// farm: every({', '.join(params)})\nvoid every({', '.join(args)}) {{ {body} }}\n".encode()


def values():
    """A value of each type that shows whether it was widened rightly."""
    return [
        np.array(True)
        if t is DType.BOOL
        else np.array(-1.5 if t.is_float else t.min or t.max, t.numpy)
        for t in DType
    ]


@needs_zig
def test_c_takes_every_type_by_value_and_through_pointers():
    given = values()
    for found, value in zip(run("every.c", c_of_every_type(), given), given, strict=True):
        assert found.tolist() == [value.item()] * 3


SAXPY = Path(__file__).parents[3].joinpath("docs/examples/saxpy.c").read_bytes()


@needs_zig
def test_c_sees_its_options_and_the_targets_features():
    text = b"""// farm: f(y: int32[2] output)
void f(int *y) {
#ifdef __AVX2__
  y[0] = N;
#else
  y[0] = -N;
#endif
  y[1] = __builtin_popcount(N);
}
"""
    (function,) = functions_of("f.c", text, options=["-DN=7"])
    levels = []
    for cpu in ("x86-64", "haswell"):
        target = Target.parse(f"llvm -mtriple=x86_64-linux-gnu -mcpu={cpu}")
        levels.append(compile_function(serialise(function), "device", target).data)
    assert levels[0] != levels[1]
    assert run("f.c", text, [], options=["-DN=7"])[0].tolist()[1] == 3


@needs_zig
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            SAXPY.replace(b"y[i] +=", b"z[i] +="),
            r"source.c:3:\d+: error: use of undeclared identifier 'z'",
        ),
        (SAXPY.replace(b"float a", b"double a"), "conflicting types for 'saxpy'"),
        (b'#include "/etc/passwd"\n' + SAXPY, "reads a file"),
        (b"#include </etc/passwd>\n" + SAXPY, "reads a file"),
        (b"#include <../../x.h>\n" + SAXPY, "reads a file"),
        (b'#define X "/etc/passwd"\n#include X\n' + SAXPY, "reads a file"),
        (b'%:inc\\\nlude "/etc/passwd"\n' + SAXPY, "reads a file"),
        (b'# /* x */ include "/etc/passwd"\n' + SAXPY, "reads a file"),
        (b'const char s[] = {\n#embed "/etc/passwd"\n};\n' + SAXPY, "reads a file"),
        (b"#include <nosuch.h>\n" + SAXPY, "'nosuch.h' file not found"),
        (SAXPY.replace(b"  for", b'  __asm__("nop");\n  for'), "inline assembler"),
        (SAXPY + b"\xff", "C is not UTF-8"),
    ],
)
def test_c_that_may_not_be_used_is_refused_with_the_compilers_words(text, problem):
    with pytest.raises(InvalidFunction, match=problem):
        compile_one("saxpy.c", text)


@needs_zig
def test_c_that_needs_a_library_is_refused_and_what_is_an_instruction_is_not():
    text = b"""#include <math.h>
// farm: f(x: float32[1] inout)
void f(float *x) { *x = sqrtf(fabsf(*x)); }
"""
    assert run("f.c", text, [np.array([-9], np.float32)])[0] == 3
    with pytest.raises(UnsupportedFunction, match=r"functions that no device has \(sinf\)"):
        compile_one("f.c", text.replace(b"sqrtf", b"expf").replace(b"fabsf", b"sinf"))


CPUS = (
    "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64",
    "llvm -mtriple=aarch64-linux-gnu",
    "llvm -mtriple=armv7-linux-gnueabihf",
    "llvm -mtriple=riscv64-linux-gnu",
    "wasm",
)


@needs_zig
@pytest.mark.parametrize("target", CPUS)
def test_c_has_division_conversions_and_functions_of_floats_on_every_cpu(target):
    (function,) = functions_of("needy.c", needy.SOURCE, [needy.DECLARED])
    built = compile_function(serialise(function), "device", Target.parse(target))
    assert set(undefined_symbols(built.data)) <= {"memcpy", "memmove", "memset"}


@needs_zig
def test_what_c_gets_of_the_library_has_cs_values():
    needy.check(run("needy.c", needy.SOURCE, needy.INPUTS, declarations=[needy.DECLARED]))


@needs_zig
def test_loops_that_become_memset_and_memcpy_run():
    text = b"""// farm: moved(x: int8[20000], y: int8[20000] output, z: int8[20000] output)
void moved(const signed char *restrict x, signed char *restrict y, signed char *restrict z) {
  for (int i = 0; i < 20000; i++) y[i] = x[i];
  for (int i = 0; i < 20000; i++) z[i] = 0;
}
"""
    x = np.arange(20000).astype(np.int8)
    assert set(undefined_symbols(compile_one("moved.c", text).data)) == {"memcpy", "memset"}
    copied, zeros = run("moved.c", text, [x])
    assert (copied == x).all()
    assert not zeros.any()


@needs_zig
def test_c_is_the_same_bytes_wherever_it_is_compiled(tmp_path, monkeypatch):
    first = compile_one("saxpy.c", SAXPY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert compile_one("saxpy.c", SAXPY) == first
    assert b"kernel-farm-" not in first.data


@needs_zig
def test_cpu_that_only_llvm_knows_by_name_is_refused_by_the_c_compiler():
    target = Target.parse("llvm -mtriple=x86_64-linux-gnu -mattr=+nosuch")
    with pytest.raises(InvalidTarget, match="nosuch"):
        compile_one("saxpy.c", SAXPY, target)
