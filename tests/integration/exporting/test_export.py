"""Exported libraries and programs: linked with a C program of ours, or started, and run where they belong."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import farm
from farm import te
from farm.cli.main import run
from farm.errors import InvalidInput, NoVariant, UndefinedReference
from farm.exporting import header
from farm.ir.declaration import functions_of
from farm.runtime import toolchain
from farm.runtime.qemu import EMULATED, find_emulator
from farm.target import Target

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None,
    reason="ziglang is missing: install kernel-farm[cross]",
)
OWN = Target.parse("llvm")
TARGETS = {
    "x86_64": OWN if OWN.family == "llvm/x86_64" else None,
    "aarch64": Target.from_tag("raspberrypi-4b"),
    "armv7": Target.from_tag("raspberrypi-2b"),
    "riscv64": Target.from_tag("visionfive2"),
}
RUNTIME = Path(toolchain.__file__).parent

# A user's program: what it knows of the functions is the header. It gives 0 if every call gave what it should.
PROGRAM = """
#include "exported_functions.h"
static float a[1] = {2.0f}, x[100], y[101];
static int32_t numbers[8], doubled[8];
int checks(void) {
  for (int i = 0; i < 100; i++) x[i] = (float)i, y[i] = 1.0f;
  for (int i = 0; i < 8; i++) numbers[i] = i;
  if (saxpy_call(a, x, y)) return 1;
  for (int i = 0; i < 100; i++)
    if (y[i] != 2.0f * (float)i + 1.0f) return 2;
  if (double_call(numbers, doubled)) return 3;
  for (int i = 0; i < 8; i++)
    if (doubled[i] != 2 * i) return 4;
  if (double_(0, 2) != 2) return 5;  // NULL_POINTER
  if (saxpy_call(a, x, (float *)((char *)y + 1)) != (7 | 2 << 8)) return 6;  // MISALIGNED, argument 2
  return 0;
}
"""
# Its entry, since no libc is linked.
ENTRY = """
#include "system.c"
int checks(void);
_Noreturn void __farm_main(const word *stack) {
  (void)stack;
  leave(checks());
}
"""


def functions():
    x = te.placeholder((8,), "int32", name="x")
    double = te.function("double", [x, te.compute((8,), lambda i: x[i] * 2, name="y")])
    saxpy = Path(__file__).parents[3] / "docs" / "examples" / "saxpy.c"
    text = saxpy.read_bytes().replace(b"1024", b"100")
    return [double, *functions_of("saxpy.c", text)]


@pytest.fixture(scope="module")
def artifact():
    targets = [target for target in (*TARGETS.values(), Target.from_tag("wasm")) if target]
    return farm.build({target: functions() for target in targets}, variants=True)


@pytest.fixture(params=TARGETS)
def machine(request):
    """Target, and the command that runs a program for it."""
    target = TARGETS[request.param]
    if target is None:
        pytest.skip("this machine is no x86-64")
    if target == OWN:
        return target, []
    emulator = find_emulator(request.param)
    if emulator is None:
        pytest.skip(f"{EMULATED[request.param].program} is missing: install the package qemu-user")
    return target, [emulator]


def zig(folder, *arguments):
    done = toolchain.run_zig([str(argument) for argument in arguments], folder)
    assert done.returncode == 0, done.stderr.decode()


def test_c_program_linked_with_the_static_library_calls_its_functions(machine, artifact, tmp_path):
    target, command = machine
    made = farm.export(
        artifact, tmp_path / "libkernels.a", target, header=tmp_path / "exported_functions.h"
    )
    assert made.symbols == ("double", "saxpy")
    (tmp_path / "main.c").write_text(PROGRAM)
    (tmp_path / "entry.c").write_text(ENTRY)
    arch = (target.option("mtriple") or "").partition("-")[0].replace("armv7", "arm")
    flags = [
        "-c",
        "-O1",
        "-ffreestanding",
        "-fno-builtin",
        "-fno-sanitize=all",
        "-Wall",
        "-Werror",
        "-Wno-unused-function",
    ]
    where = [f"--target={arch}-linux-none", f"-I{RUNTIME}"]
    for name in ("main", "entry"):
        zig(tmp_path, "cc", *where, *flags, f"{name}.c", "-o", f"{name}.o")
    objects = ["main.o", "entry.o", "libkernels.a"]
    zig(tmp_path, "ld.lld", "-static", "-e", "__farm_start", "-o", "main", *objects)
    assert subprocess.run([*command, tmp_path / "main"], check=False).returncode == 0


def test_program_calls_its_functions_on_files(machine, artifact, tmp_path):
    target, command = machine
    made = farm.export(artifact, tmp_path / "kernels", target)
    start = [*command, str(made.path)]
    listed = subprocess.run(start, capture_output=True, text=True, check=True).stdout.splitlines()
    assert listed == [
        "double(x: int32[8] input, y: int32[8] output)",
        "saxpy(a: float32[] input, x: float32[100] input, y: float32[100] inout)",
    ]
    a, x, y = np.float32(0.5), np.arange(100, dtype=np.float32), np.full(100, 3, np.float32)
    for name, array in (("a", a), ("x", x), ("y", y)):
        np.asarray(array).tofile(tmp_path / name)
    files = [str(tmp_path / name) for name in "axy"]
    done = subprocess.run([*start, "saxpy", *files], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("saxpy: ")
    assert done.stdout.endswith(" ns\n")
    assert int(done.stdout.split()[1]) > 0
    assert np.array_equal(np.fromfile(tmp_path / "y", np.float32), a * x + y)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "nothing: no such function"),
        (["saxpy", "a"], "pass one file for each parameter"),
        (["double", "absent", "y"], "absent: cannot be read"),
        (["double", "short", "y"], "short: has another size; it needs 32: bytes"),
        (["double", "long", "y"], "long: has another size"),
        (["double", "right", "no/folder"], "no/folder: cannot be written"),
    ],
)
def test_program_given_what_does_not_fit_says_so(arguments, said, artifact, tmp_path):
    if TARGETS["x86_64"] is None:
        pytest.skip("this machine is no x86-64")
    made = farm.export(artifact, tmp_path / "kernels", OWN)
    for name, size in (("short", 31), ("long", 33), ("right", 32), ("a", 4)):
        (tmp_path / name).write_bytes(bytes(size))
    done = subprocess.run(
        [made.path, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr


def test_shared_object_is_loaded_by_others_and_shows_public_functions_only(artifact, tmp_path):
    made = farm.export(artifact, tmp_path / "libkernels.so", OWN)
    library = ctypes.CDLL(str(made.path))
    assert library.double(None, 2) == 2  # NULL_POINTER
    with pytest.raises(AttributeError):
        _ = library.__farm_kernel


def test_header_is_c_and_cxx_that_a_compiler_takes(artifact, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: install gcc")
    made = farm.export(artifact, tmp_path / "libkernels.a", OWN)
    for language in ("c", "c++"):
        if language == "c++" and shutil.which("g++") is None:
            continue
        command = ["cc", "-x", language, "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
        subprocess.run([*command, "-fsyntax-only", str(made.header)], check=True)


def test_wasm_module_exports_functions_and_imports_nothing(artifact, tmp_path):
    wasmtime = pytest.importorskip("wasmtime", reason="install kernel-farm[wasm]")
    made = farm.export(artifact, tmp_path / "kernels.wasm", "wasm")
    module = wasmtime.Module(wasmtime.Engine(), made.path.read_bytes())
    assert not module.imports
    assert {"double", "saxpy", "memory", "__heap_base"} <= {item.name for item in module.exports}


def test_same_artifact_gives_the_same_files(artifact, tmp_path):
    contents = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for name in ("k.a", "k.so", "k"):
            farm.export(artifact, tmp_path / folder / name, OWN)
        contents.append({path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()})
    assert contents[0] == contents[1]


def test_what_cannot_be_exported_is_refused_with_what_can(artifact, tmp_path):
    with pytest.raises(NoVariant, match=r"for several CPUs .*name the target"):
        farm.export(artifact, tmp_path / "k.so")
    with pytest.raises(
        NoVariant, match=r"nothing was built for \(llvm -mtriple=aarch64-linux-gnu -mcpu=carmel"
    ):
        farm.export(artifact, tmp_path / "k.so", "jetson-xavier")
    with pytest.raises(InvalidInput, match="is an accelerator"):
        farm.export(artifact, tmp_path / "k.so", "ea")
    with pytest.raises(InvalidInput, match="shared cannot be made for llvm -mtriple=wasm32"):
        farm.export(artifact, tmp_path / "k.so", "wasm")
    with pytest.raises(InvalidInput, match="would be its own header"):
        farm.export(artifact, tmp_path / "k.h", OWN)
    assert not list(tmp_path.iterdir())


def test_function_that_calls_an_accelerators_is_refused_by_name(tmp_path):
    x = te.placeholder((16,), "int32", name="x")
    y = te.placeholder((16,), "int32", name="y")
    inner = te.function("inner", [x, te.compute((16,), lambda i: x[i] + 1, name="y")])
    outer = te.sequence("outer", [x], [y], [te.call("inner", x, y)])
    artifact = farm.build({"ea": inner, "llvm": outer})
    with pytest.raises(UndefinedReference, match="'inner'"):
        farm.export(artifact, tmp_path / "k.so")


def test_command_writes_both_files_and_says_what(artifact, tmp_path, capsys):
    artifact.save(tmp_path / "k.farm")
    out = tmp_path / "libk.so"
    words = [
        "export",
        str(tmp_path / "k.farm"),
        "--target",
        str(OWN),
        "--out",
        str(out),
        "-o",
        "json",
    ]
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out) == {
        "path": str(out),
        "header": str(tmp_path / "libk.h"),
        "kind": "shared",
        "target": str(OWN),
        "symbols": ["double", "saxpy"],
    }
    assert "int32_t saxpy(const DLTensor" in (tmp_path / "libk.h").read_text()
    assert run([*words[:2], "--out", str(tmp_path / "none" / "k.so")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_words_of_c_get_another_name():
    assert [header.c_name(name) for name in ("double", "saxpy", "class", "main")] == [
        "double_",
        "saxpy",
        "class_",
        "main_",
    ]
