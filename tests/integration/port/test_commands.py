"""`farm accelerator`: a new one is written, installed and checked as it stands, and listed with those that fail."""

from __future__ import annotations

import json

import pytest
from planted_faults import PLANTED
from plug_ins import find_from, install, write_plug_in

from farm.cli.main import run
from farm.porting.scaffold import CODE


@pytest.fixture
def packages(tmp_path, monkeypatch):
    folder = tmp_path / "packages"
    folder.mkdir()
    find_from(monkeypatch, folder)
    return folder


def test_new_accelerator_is_written_installed_listed_and_keeps_its_contract(
    packages, tmp_path, capsys
):
    assert run(["accelerator", "new", "npu", "--dir", str(tmp_path / "npu")]) == 0
    install(packages, tmp_path / "npu")
    write_plug_in(packages, "mute", "raise ValueError('nothing to say')")
    capsys.readouterr()
    assert run(["accelerator", "list", "-o", "json"]) == 0
    listed = {it["name"]: it for it in json.loads(capsys.readouterr().out)["accelerators"]}
    assert set(listed) == {"ea", "mute", "npu"}
    assert (listed["npu"]["package"], listed["npu"]["ways"]) == ("farm-npu", ["target"])
    assert "nothing to say" in listed["mute"]["problem"]
    assert run(["accelerator", "check", "farm-npu", "-o", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["accelerator"], result["passed"]) == ("npu", True)
    assert all(it["ok"] for it in result["checks"])


def test_accelerator_that_breaks_its_contract_is_told_and_the_exit_code_says_so(packages, capsys):
    code = CODE.replace("@NAME@", "NAME")
    for old, new in PLANTED["adds to what was there"].changes:
        code = code.replace(old, new)
    write_plug_in(packages, "zork", code)
    assert run(["accelerator", "check", "zork"]) == 1
    said = capsys.readouterr()
    assert "FAILED  results: dense 1x1x1 on zork: wrong numbers" in said.out
    assert "zork: does NOT keep its contract" in said.out


@pytest.mark.parametrize(
    ("arguments", "code"), [(["check", "nothing-such"], 2), (["new", "ea"], 2), (["new", "A"], 2)]
)
def test_impossible_request_is_refused(packages, tmp_path, monkeypatch, arguments, code):
    monkeypatch.chdir(tmp_path)
    assert run(["accelerator", *arguments]) == code
