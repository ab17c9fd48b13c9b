"""Hooks that raise, end the process, or give nonsense: whoever builds or runs is told who did it."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from plug_ins import GOOD, find_from, write_plug_in

import farm
from farm import te
from farm.accel.discovery import load
from farm.codegen import compile_function
from farm.codegen.accelerator import knobs_of, with_knobs
from farm.errors import (
    ArtifactError,
    InvalidInput,
    InvalidTarget,
    KernelFailed,
    PlugInFailed,
    UnsupportedFunction,
)
from farm.ir import serialise
from farm.target import Target

WHO = r"zork \(farm-zork 1.0\)"
VALUES = np.arange(4, dtype=np.int32)


@pytest.fixture
def zork(tmp_path, monkeypatch):
    """Return a function that installs zork with some text of the good one replaced."""
    find_from(monkeypatch, tmp_path)

    def write(*replaced):
        code = GOOD
        for old, new in replaced:
            assert old in code
            code = code.replace(old, new)
        write_plug_in(tmp_path, "zork", code)
        load.cache_clear()
        sys.modules.pop("plug_in_zork", None)

    yield write
    load.cache_clear()
    sys.modules.pop("plug_in_zork", None)


def double(name="double"):
    x = te.placeholder((4,), "int32", name="x")
    return te.function(name, [x, te.compute((4,), lambda i: x[i] * 2, name="y")])


def compiled(function, target="zork"):
    return compile_function(serialise(function), "device", Target.parse(target))


def assembled(function):
    """Return the artifact of a function on zork, compiled in this process."""
    from farm.artifact import assemble

    host = Target.parse("llvm")
    stub = compile_function(serialise(function), "host", host)
    return assemble(host, [compiled(function), stub])


def test_module_is_named_after_the_accelerator_and_needs_its_configuration(zork):
    zork()
    module = compiled(double())
    assert (module.format, module.format_version, module.data) == ("zork-program", 1, b"double")
    assert module.requires == ("zork-config:zork",)
    assert "farm-zork 1.0" in module.toolchain


def test_program_runs_where_it_is_loaded(zork):
    zork()
    with farm.load(assembled(double())) as module:
        assert module.functions["double"].target == "zork -config=zork"
        assert np.array_equal(module.call("double", [VALUES]).outputs[0], VALUES * 2)


def test_refusal_of_the_accelerator_is_kept_as_it_is(zork):
    zork()
    with pytest.raises(UnsupportedFunction, match="its name starts with no_"):
        compiled(double("no_thanks"))
    zork(("launch=launch)", "launch=launch, supports=lambda function, config: 'it is Tuesday')"))
    with pytest.raises(UnsupportedFunction, match="function double on zork: it is Tuesday"):
        compiled(double())


def test_unknown_configuration_is_refused_with_those_there_are(zork):
    zork()
    with pytest.raises(
        InvalidTarget, match=rf"unknown configuration \(big\); known are zork of {WHO}"
    ):
        compiled(double(), "zork -config=big")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "return 1 / 0",
            r"compile raised ZeroDivisionError: division by zero at plug_in_zork.py:9",
        ),
        ("raise SystemExit", r"compile raised SystemExit"),
        ("return 'text'", r"compile gave nonsense \('text'\), not a program as bytes"),
        ("return b''", r"compile gave nonsense"),
        ("return None", r"compile gave nonsense"),
        ("return compile(function, config, knobs)", r"compile raised RecursionError"),
    ],
)
def test_code_generator_that_goes_wrong_is_told_with_its_name(zork, line, problem):
    zork(('return b"double"', line))
    with pytest.raises(PlugInFailed, match=problem) as error:
        compiled(double())
    assert "zork (farm-zork 1.0)" in error.value.message


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        ("supports=lambda function, config: 7", "supports gave nonsense"),
        ("supports=lambda function: ''", "supports raised TypeError"),
        ("knobs=lambda function, config: 7", "knobs gave nonsense"),
        ("knobs=lambda function, config: {'a': []}", "knobs gave nonsense"),
        ("knobs=lambda function, config: {'a': [1, 1]}", "knobs gave nonsense"),
        ("knobs=lambda function, config: {'a': [1.5]}", "knobs gave nonsense"),
        ("knobs=lambda function, config: {'a': 'xy'}", "knobs gave nonsense"),
        ("knobs=lambda function, config: {'A!': [1]}", "knobs gave nonsense"),
        ("knobs=lambda function, config: 1 / 0", "knobs raised ZeroDivisionError"),
    ],
)
def test_other_hooks_that_go_wrong_are_told_with_their_name(zork, hook, problem):
    zork(("launch=launch)", f"launch=launch, {hook})"))
    with pytest.raises(PlugInFailed, match=problem):
        compiled(double())


@pytest.mark.parametrize(
    ("line", "error", "problem"),
    [
        ("1 / 0", KernelFailed, "the program raised ZeroDivisionError"),
        ("raise SystemExit(2)", KernelFailed, "the program raised SystemExit: 2"),
        ("return 'later'", KernelFailed, "the program gave nonsense"),
        ("return -1", KernelFailed, "the program gave nonsense"),
        ("arrays[0][...] = 0", KernelFailed, "read-only"),
        (
            "from farm.errors import DeviceFault; raise DeviceFault('zork: too hot')",
            KernelFailed,
            "too hot",
        ),
    ],
)
def test_program_that_goes_wrong_is_the_kernels_failure_with_its_name(zork, line, error, problem):
    zork(("arrays[-1][...] = arrays[0] * 2", line))
    with (
        farm.load(assembled(double())) as module,
        pytest.raises(error, match=problem) as raised,
    ):
        module.call("double", [VALUES])
    assert "zork" in raised.value.message


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("    1 / 0\n    def run(arrays):", "launch raised ZeroDivisionError"),
        ("    return 7\n    def run(arrays):", "launch gave nonsense"),
    ],
)
def test_launch_that_goes_wrong_is_told_when_it_is_loaded(zork, line, problem):
    zork(("    def run(arrays):", line))
    with pytest.raises(PlugInFailed, match=problem):
        farm.load(assembled(double()))


def test_program_of_another_version_is_refused_when_it_is_loaded(zork):
    zork()
    artifact = assembled(double())
    zork(("launch=launch)", "launch=launch, version=2)"))
    with pytest.raises(ArtifactError, match=r"version 1 does not run on zork .* have version 2"):
        farm.load(artifact)


def test_accelerator_that_is_not_installed_leaves_the_cpu(zork, monkeypatch):
    zork()
    f = double()
    cpu = compile_function(serialise(f), "device", Target.parse("llvm"))
    from farm.artifact import Artifact, assemble

    host = Target.parse("llvm")
    both = assemble(host, [compiled(f), compile_function(serialise(f), "host", host), cpu])
    data = both.to_bytes()
    monkeypatch.undo()
    load.cache_clear()
    with farm.load(Artifact.from_bytes(data)) as module:
        assert module.functions["double"].target.startswith("llvm")
        assert np.array_equal(module.call("double", [VALUES]).outputs[0], VALUES * 2)


def test_knobs_travel_with_the_function_and_change_no_other_code(zork):
    zork(
        (
            "launch=launch)",
            "launch=launch, knobs=lambda function, config: {'n': (1, 2), 'how': ('a', 'b')})",
        ),
        ('return b"double"', "return repr(sorted(knobs.items())).encode()"),
    )
    f = double()
    assert compiled(f).data == b"[('how', 'a'), ('n', 1)]"
    chosen = with_knobs(f, {"n": 2})
    assert knobs_of(chosen) == {"n": 2}
    assert compiled(chosen).data == b"[('how', 'a'), ('n', 2)]"
    assert with_knobs(chosen, {}) == f
    host = Target.parse("llvm")
    plain, knobbed = (compile_function(serialise(it), "device", host).data for it in (f, chosen))
    assert plain == knobbed
    for knobs, problem in (
        ({"n": 3}, r"knob n=3 for zork; use one of 1, 2"),
        ({"m": 1}, r"unknown knob m for zork; there are how, n"),
        ({"N!": 1}, r"malformed knob"),
        ({"n": 1.5}, r"use a number or text"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            compiled(with_knobs(f, knobs))
