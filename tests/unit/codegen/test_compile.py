"""The entry for builders: what it refuses, and that it loads no compiler before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

import farm.te as te
from farm.codegen import compile_function, symbol_of, toolchain_of
from farm.errors import InvalidFunction, InvalidInput, InvalidTarget
from farm.ir import serialise
from farm.target import Target

HERE = Target.parse("llvm")


def copy(name="copy", **options):
    x = te.placeholder((4,), "int8", name="x")
    return te.function(name, [x, te.compute((4,), lambda i: x[i], name="y")], **options)


def test_import_of_codegen_loads_no_compiler():
    code = "import sys, farm.codegen; print(any(m.partition('.')[0] == 'llvmlite' for m in sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "False\n"


def test_compile_of_bytes_that_are_no_function_is_refused():
    for data in (b"", b"\xff\xff", b"\x0a\x04copy"):
        with pytest.raises(InvalidFunction):
            compile_function(data, "device", HERE)


def test_compile_of_unknown_kind_is_refused():
    with pytest.raises(InvalidInput, match="unknown kind"):
        compile_function(serialise(copy()), "kernel", HERE)


def test_compile_for_target_without_backend_is_refused():
    target = Target("abacus", ())
    with pytest.raises(InvalidTarget, match="abacus: not installed here"):
        compile_function(serialise(copy()), "device", target)
    with pytest.raises(InvalidTarget, match="abacus: not installed here"):
        toolchain_of(target)


@pytest.mark.parametrize("name", ["memcpy", "__copy", "__farm_kernel", "_GLOBAL_OFFSET_TABLE_"])
def test_function_with_reserved_name_is_refused(name):
    with pytest.raises(InvalidFunction, match="reserved name"):
        compile_function(serialise(copy(name)), "device", HERE)


def test_symbol_of_private_function_is_mangled():
    mangled = f"__farm_private_{HERE.id}_copy"
    assert symbol_of(copy(), HERE) == "copy"
    assert symbol_of(copy(private=True), HERE) == mangled
    assert compile_function(serialise(copy(private=True)), "device", HERE).symbol == mangled


def test_toolchain_names_the_version_of_llvm():
    assert toolchain_of(HERE).startswith("farm-llvm 5, llvmlite ")
