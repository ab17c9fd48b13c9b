"""Every check finds the fault that was planted for it, and nothing where nothing is wrong."""

from __future__ import annotations

import re
import sys

import pytest
from planted_faults import PLANTED
from plug_ins import find_from, write_plug_in

from farm import ops, te
from farm.accel.discovery import load
from farm.errors import InvalidInput
from farm.porting import check_accelerator
from farm.porting.checking import check_apart
from farm.porting.scaffold import CODE, write_start

START = CODE.replace("@NAME@", "NAME")


def dense(m, n, k, dtype="int8"):
    x, w = te.placeholder((m, k), dtype, name="x"), te.placeholder((k, n), dtype, name="w")
    return te.function("layer", [x, w, ops.matmul(x, w)])


def turned():
    x, w = te.placeholder((4, 6), "int8", name="x"), te.placeholder((3, 6), "int8", name="w")
    return te.function("layer", [w, x, ops.dense(x, w)])


TURNED = ("turned", turned())
LAYERS = (
    ("small", dense(3, 2, 5)),
    ("tall", dense(20, 3, 4)),
    ("floats", dense(2, 2, 2, "float32")),
)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that installs the start as zork, with some of its text replaced, and loads it."""
    find_from(monkeypatch, tmp_path)

    def write(*replaced):
        code = START
        for old, new in replaced:
            assert old in code, old
            code = code.replace(old, new, 1)
        write_plug_in(tmp_path, "zork", code)
        load.cache_clear()
        sys.modules.pop("plug_in_zork", None)
        return load("zork").accelerator

    yield write
    load.cache_clear()
    sys.modules.pop("plug_in_zork", None)


def test_start_of_a_new_accelerator_keeps_its_contract(start):
    report = check_accelerator(start(), LAYERS)
    assert report.passed, "\n".join(map(str, report.failed))
    made = {check for check, passed, _, _ in report.counts() if passed}
    assert made == {
        "object", "codegen", "same bytes", "results", "cycles", "knobs", "encoding", "reason", "reload", "fallback"
    }  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_found(start, name, monkeypatch):
    fault = PLANTED[name]
    if fault.check not in ("reload", "fallback"):  # these need a build and two processes
        monkeypatch.setattr("farm.porting.check.check_installed", lambda *_: ())
    report = check_accelerator(start(*fault.changes), (*LAYERS, TURNED), own_only=True)
    assert [
        it
        for it in report.failed
        if it.check == fault.check and re.search(fault.problem, it.problem)
    ], "\n".join(map(str, report.failed)) or "nothing was found"
    assert not report.passed


def test_artifact_without_a_slice_for_the_cpu_is_found(start, monkeypatch):
    from farm.building import build
    from farm.porting import installed

    accelerator = start()
    monkeypatch.setattr(installed, "build", lambda request, **_: build({"zork": request["zork"]}))
    report = check_accelerator(accelerator, LAYERS, own_only=True)
    assert {it.check for it in report.failed} == {"reload", "fallback"}


def test_object_that_is_not_installed_says_what_was_not_checked(start, monkeypatch):
    accelerator = start()
    monkeypatch.undo()
    report = check_accelerator(accelerator, LAYERS, own_only=True)
    assert report.passed
    assert {it.check for it in report.findings if it.skipped} == {"reload", "fallback"}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("import os; os.abort()", r"ended with SIGABRT, after"),
        ("import os; os.kill(os.getpid(), 9)", r"ended with SIGKILL, after"),
        ("while True: pass", r"did not end within 6 s, "),
        ("import os; os._exit(4)", r"ended with exit code 4, after"),
    ],
)
def test_program_that_takes_its_process_down_is_a_finding(start, line, problem):
    start(("        x, w, out = (arrays", f"        {line}\n        x, w, out = (arrays"))
    told = []
    report = check_apart("zork", limit_s=6.0 if "while" in line else 120.0, tell=told.append)
    assert tuple(told) == report.findings
    assert not report.passed
    assert re.search(problem, report.failed[-1].problem), report.failed[-1]


def test_package_that_cannot_be_imported_is_a_finding(start):
    with pytest.raises(Exception, match="no board"):
        start(("import struct", "raise ValueError('no board')"))
    report = check_apart("zork")
    assert [it.check for it in report.failed] == ["object"]
    assert "no board" in report.failed[0].problem


def test_start_is_written_once_and_never_over_anything(tmp_path):
    files = write_start("my-npu", tmp_path / "npu")
    assert [path.name for path in files] == [
        "pyproject.toml",
        "farm_my_npu.py",
        "test_farm_my_npu.py",
    ]
    with pytest.raises(InvalidInput, match="not empty"):
        write_start("my-npu", tmp_path / "npu")
    with pytest.raises(InvalidInput, match="not empty"):
        write_start("my-npu", files[0])
    for name in ("ea", "My", "1a", "", "../x"):
        with pytest.raises(InvalidInput, match="no name for one"):
            write_start(name, tmp_path / "other")
