"""What is installed is read from metadata: by name, without importing anything."""

from __future__ import annotations

import sys

import pytest
from plug_ins import GOOD

from farm.accel.discovery import known, load, toolchain_of_plug_in
from farm.errors import InvalidInput, InvalidTarget, PlugInFailed
from farm.target import Target
from farm.target.installed import find_installed, installed, plug_in_folders, usable_names


@pytest.fixture(autouse=True)
def _fresh():
    installed.__globals__["_read"].cache_clear()


def test_package_brings_a_kind_of_target_without_being_imported(packages, tmp_path):
    packages("zork", version="2.5")
    target = Target.parse("zork")
    assert str(target) == "zork -config=zork"
    assert (target.family, target.is_accelerator, target.is_plug_in) == ("zork", True, True)
    assert target.requires == ("zork-config:zork",)
    assert str(Target.parse("zork -config=big")) == "zork -config=big"
    assert Target.of_family("zork") == target
    assert str(find_installed("zork")) == "zork (farm-zork 2.5)"
    assert plug_in_folders() == (tmp_path,)
    assert "plug_in_zork" not in sys.modules


@pytest.mark.parametrize(
    "text", ["zork", "zork -config=a", "zork -knob=1", "zork -config=a -config=b"]
)
def test_kind_that_is_not_installed_is_unknown(text):
    with pytest.raises(InvalidTarget, match="unknown kind"):
        Target.parse(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("zork -knob=1", "unknown option"),
        ("zork -config=a -config=b", "given twice"),
        ("zork -config=../x", "malformed configuration"),
        (f"zork -config={'a' * 65}", "malformed configuration"),
    ],
)
def test_malformed_target_of_an_accelerator_is_refused(packages, text, problem):
    packages("zork")
    with pytest.raises(InvalidTarget, match=problem):
        Target.parse(text)


def test_foreign_texts_parse_where_nothing_is_installed_if_they_are_well_formed():
    target = Target.parse("zork -config=big", foreign=True)
    assert str(target) == "zork -config=big"
    assert Target.parse("zork", foreign=True) != target
    for text in ("Zork", "zork!", "", "zork -mcpu=x", f"{'z' * 32}"):
        with pytest.raises(InvalidTarget):
            Target.parse(text, foreign=True)


def test_id_of_an_accelerators_target_depends_on_kind_and_configuration(packages):
    packages("zork")
    packages("zork-2")
    texts = ("zork", "zork -config=zork-2", "zork-2", "zork-2 -config=zork")
    assert len({Target.parse(text).id for text in texts}) == 4


def test_two_packages_with_one_name_are_told_and_neither_is_taken(packages):
    packages("zork")
    packages("zork", package="other-zork", version="3")
    packages("fine")
    assert usable_names() == ("fine",)
    with pytest.raises(
        InvalidTarget, match=r"(?s)farm-zork 1.0.*other-zork 3|other-zork 3.*farm-zork 1.0"
    ):
        Target.parse("zork")


@pytest.mark.parametrize("name", ["cpu", "ea", "llvm", "opencl", "qemu", "wasm"])
def test_package_cannot_take_a_name_of_the_farms_own(packages, name):
    packages(name, entry="plug_in_x:ACCELERATOR")
    found = find_installed(name)
    assert found is not None
    assert "the farm's own" in found.problem
    assert name not in usable_names()


@pytest.mark.parametrize("name", ["Zork", "zork.x", "1zork", "z" * 32])
def test_malformed_name_is_told(packages, name):
    packages(name, entry="plug_in_x:ACCELERATOR")
    (found,) = (it for it in installed() if it.name == name)
    assert "malformed name" in found.problem


@pytest.mark.parametrize(
    "entry", ["plug_in_zork", "plug_in_zork:", "a b:c", "plug_in_zork:A [extra]"]
)
def test_malformed_entry_point_is_told_when_it_is_used(packages, entry):
    packages("zork", entry=entry)
    with pytest.raises(InvalidTarget, match="malformed entry point"):
        known("zork")


def test_broken_metadata_of_one_package_does_not_hide_the_others(packages, tmp_path):
    packages("zork")
    broken = tmp_path / "broken-1.dist-info"
    broken.mkdir()
    (broken / "entry_points.txt").write_bytes(b"[kernel_farm.accelerators\n\xff\xfe=:")
    empty = tmp_path / "empty-1.dist-info"
    empty.mkdir()
    (empty / "entry_points.txt").write_text("[kernel_farm.accelerators]\nempty = plug_in_x:A\n")
    assert usable_names() == ("zork",)


def test_loading_gives_the_object_and_its_name(packages):
    packages("zork")
    loaded = load("zork")
    assert loaded.accelerator.name == "zork"
    assert loaded.who == "zork (farm-zork 1.0)"
    assert loaded.accelerator.ways == ("target",)
    assert load("zork") is loaded


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("raise ValueError('no board')", r"import of plug_in_zork raised ValueError: no board"),
        ("import there_is_none", r"raised ModuleNotFoundError"),
        ("def f(:", r"raised SyntaxError"),
        ("raise SystemExit(3)", r"raised SystemExit: 3"),
        ("", r"raised AttributeError"),
        ("ACCELERATOR = 7", r"gave nonsense \(7\), not a farm.accel.Accelerator"),
        (
            GOOD.replace('name="NAME"', 'name="gnat"'),
            r"gave nonsense \('gnat'\), not the name of its entry",
        ),
    ],
)
def test_plug_in_that_goes_wrong_at_import_is_told_with_its_name(packages, code, problem):
    packages("zork", code)
    with pytest.raises(PlugInFailed, match=problem) as error:
        load("zork")
    assert "zork (farm-zork 1.0)" in error.value.message


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("name='NAME'", "no way"),
        ("name='NAME', compile=print", "compile and launch belong together"),
        ("name='NAME', compile=3, launch=print", "compile is 3"),
        ("name='NAME', compile=print, launch=print, timing='quick'", "timing is 'quick'"),
        ("name='NAME', compile=print, launch=print, version=0", "version is 0"),
        ("name='NAME', compile=print, launch=print, configs={'a b': 1}", "configuration 'a b'"),
        ("name='NAME', compile=print, launch=print, configs=[1]", "configs is no mapping"),
        ("name='NAME!', compile=print, launch=print", "malformed name"),
    ],
)
def test_impossible_object_is_refused_with_what_is_wrong(packages, arguments, problem):
    packages("zork", f"from farm.accel import Accelerator\nACCELERATOR = Accelerator({arguments})")
    with pytest.raises(InvalidInput, match=problem):
        load("zork")


def test_unknown_accelerator_is_refused_with_those_there_are(packages):
    packages("zork")
    with pytest.raises(
        InvalidTarget, match=r"accelerator zurk: not installed here; there are ea, zork"
    ):
        load("zurk")


def test_toolchain_changes_with_the_source_and_runs_none_of_it(packages):
    packages("zork", "raise ValueError")
    first = toolchain_of_plug_in("zork")
    assert toolchain_of_plug_in("zork") == first
    packages("zork", "raise KeyError")
    assert toolchain_of_plug_in("zork") != first
    assert "farm-zork 1.0" in first


def test_toolchain_changes_with_every_file_of_a_package_and_its_place(packages, tmp_path):
    packages("zork", entry="zorkish.core:ACCELERATOR")
    folder = tmp_path / "zorkish"
    (folder / "sub").mkdir(parents=True)
    seen = set()
    for path, text in (
        ("__init__.py", ""),
        ("runtime.c", "int x;"),
        ("runtime.c", "int y;"),
        ("sub/tables.json", "[]"),
    ):
        (folder / path).write_text(text)
        seen.add(toolchain_of_plug_in("zork"))
    (folder / "sub" / "tables.json").rename(folder / "tables.json")
    seen.add(toolchain_of_plug_in("zork"))
    assert len(seen) == 5
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "core.pyc").write_text("made again")
    assert toolchain_of_plug_in("zork") in seen
