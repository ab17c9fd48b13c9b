"""``farm measure`` and ``farm compare`` on a real farm."""

from __future__ import annotations

import candidates
import pytest

import farm
from farm import te

CPU = "kind=cpu,emulator!=qemu-user"
QUICK = ("--device", CPU, "--sample", "0.001")


@pytest.fixture
def files(tmp_path):
    """Artifacts of one function each, by name."""
    made = {}
    for name in ("right", "half", "slow"):
        made[name] = tmp_path / f"{name}.farm"
        candidates.artifact(name, candidates.BODIES[name]).save(made[name])
    return made


def test_measure_shows_every_sample_and_says_what_numbers_are_worth(cli, files):
    ended = cli("measure", files["right"], *QUICK, "--samples", "5", "-o", "json")
    assert ended.code == 0, ended.out
    (found,) = ended.json["candidates"]
    assert (found["status"], found["unit"], found["timing_class"]) == ("ok", "ns", "native")
    assert found["value"] == found["statistics"]["median"] > 0
    assert len(found["samples"]["cpu_ns"]) == len(found["samples"]["start_ns"]) == 5
    assert found["fingerprint"]["cores"]
    assert found["grade"] in ("A", "B", "C")
    assert not found["checked"]
    text = cli("measure", files["right"], *QUICK, "--reference", files["right"])
    assert text.code == 0, text.err
    assert ("grade" in text.out, "not checked" in text.out) == (True, False)


def test_measure_of_a_wrong_candidate_fails_and_shows_the_others(cli, files):
    ended = cli(
        *("measure", files["half"], f"{files['right']}:right", *QUICK),
        *("--reference", f"{files['right']}:right", "-o", "json"),
    )
    assert ended.code == 1
    assert [it["status"] for it in ended.json["candidates"]] == ["wrong", "ok"]


@pytest.mark.parametrize(
    ("names", "options", "code", "verdict"),
    [
        (("right", "slow"), ("--threshold", "0.4"), 9, "slower"),
        (("slow", "right"), ("--threshold", "0.4"), 0, "faster"),
        (("right", "half"), (), 1, "none"),
    ],
)
def test_compare_ends_with_the_code_of_its_verdict(cli, files, names, options, code, verdict):
    ended = cli(
        *("compare", *(files[name] for name in names), *QUICK, *options),
        *("--rounds", "10", "20", "--reference", files["right"], "-o", "json"),
    )
    assert ended.code == code, ended.err
    (pair,) = ended.json["pairs"]
    assert pair["verdict"] == verdict
    assert ended.json["rounds"] == (0 if verdict == "none" else pair["pairs"])
    again = cli("result", ended.json["job"]["job_id"], "-o", "json")
    assert (again.code, again.json["pairs"]) == (code, [pair])
    shown = cli("get", ended.json["job"]["job_id"])
    assert "compares" in shown.out


def test_compare_of_what_computes_something_else_needs_a_flag(cli, files):
    arguments = ("compare", files["right"], files["half"], *QUICK, "--rounds", "10", "20")
    ended = cli(*arguments, "-o", "json")
    assert ended.code == 1
    assert [it["status"] for it in ended.json["candidates"]] == ["ok", "wrong"]
    ended = cli(*arguments, "--unchecked", "--threshold", "0.5", "-o", "json")
    assert [it["status"] for it in ended.json["candidates"]] == ["ok", "ok"]
    assert not any(it["checked"] for it in ended.json["candidates"])


def test_compare_of_functions_of_other_arrays_is_refused(cli, files, tmp_path):
    x = te.placeholder((8,), "int32", name="x")
    other = te.function("other", [x, te.compute((8,), lambda i: x[i] + 1, name="y")])
    farm.build({candidates.TARGET: [other]}).save(tmp_path / "other.farm")
    ended = cli("compare", files["right"], tmp_path / "other.farm", *QUICK, "--unchecked")
    assert ended.code == 2
    assert "has other arrays (input int32[8], output int32[8])" in ended.err


def test_candidate_that_is_not_there_is_refused_before_anything_is_asked(cli, files):
    for arguments in (
        ("measure", f"{files['right']}:absent"),
        ("measure", "absent.farm"),
        ("compare", files["right"]),
        ("compare", files["right"], files["half"], "--rounds", "50", "20"),
        ("compare", files["right"], files["half"], "--unchecked", "--reference", files["right"]),
        ("compare", files["right"], files["half"], "--reference", f"{files['right']}:absent"),
    ):
        assert cli(*arguments, "--tracker", "127.0.0.1:1").code == 2, arguments
