"""``farm build --local``: results, forms, and everything that is refused before work starts."""

from __future__ import annotations

import pytest

from farm.artifact import Artifact
from farm.target import Target

OTHER = "llvm -mtriple=aarch64-linux-gnu"


def test_build_in_json_describes_the_file_that_it_wrote(cli, kernels, tmp_path):
    ended = cli("build", kernels, "--local", "-o", "json")
    written = Artifact.load(tmp_path / "kernels.farm")
    target = str(Target.parse("llvm"))
    assert ended.code == 0
    assert ended.json["artifact"] == {
        "path": "kernels.farm",
        "digest": str(written.digest),
        "size_bytes": written.digest.size_bytes,
        "target_host": target,
        "symbols": ["double"],
        "sections": [
            {
                "kind": "device",
                "symbol": "double",
                "target": target,
                "format": "elf-object",
                "size_bytes": len(written.sections[0].data),
            }
        ],
    }
    (build,) = ended.json["builds"]
    assert build.pop("seconds") > 0
    assert build == {
        "kind": "device",
        "symbol": "double",
        "target": target,
        "agent_id": "",
        "cached": False,
    }


def test_build_in_text_shows_progress_apart_from_the_result(cli, kernels, tmp_path):
    out = tmp_path / "named.farm"
    ended = cli("build", kernels, "--local", "--out", out)
    assert ended.code == 0
    assert ended.err.splitlines()[0] == f"building double for {Target.parse('llvm')}"
    assert f"{out}: " in ended.out
    assert str(Artifact.load(out).digest) in ended.out


def test_build_twice_gives_the_same_bytes(cli, kernels, tmp_path):
    for name in ("one.farm", "two.farm"):
        assert cli("build", kernels, "--local", "--out", name).code == 0
    assert (tmp_path / "one.farm").read_bytes() == (tmp_path / "two.farm").read_bytes()


def test_build_for_two_targets_needs_variants(cli, kernels, tmp_path):
    targets = ("--target", "llvm", "--target", OTHER)
    refused = cli("build", kernels, "--local", *targets, "-o", "json")
    assert (refused.code, refused.error["code"]) == (2, "DUPLICATE_SYMBOL")
    assert not (tmp_path / "kernels.farm").exists()
    built = cli("build", kernels, "--local", *targets, "--variants", "-o", "json")
    assert built.code == 0
    assert [build["target"] for build in built.json["builds"]] == [
        section["target"]
        for section in sorted(
            built.json["artifact"]["sections"],
            key=lambda section: Target.parse(section["target"]).preference,
        )
    ]


def test_build_for_a_target_host_records_it(cli, kernels):
    ended = cli("build", kernels, "--local", "--target", OTHER, "--target-host", OTHER, "-ojson")
    assert ended.json["artifact"]["target_host"] == str(Target.parse(OTHER))


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--target", "vax"), "INVALID_TARGET"),
        (("--target-host", "vax"), "INVALID_TARGET"),
        (("--target-host", "ea"), "INVALID_TARGET"),
        (("--out", "absent/x.farm"), "USAGE"),
        (("--tracker", "127.0.0.1:1"), "USAGE"),
        (("--out", "."), "USAGE"),
    ],
)
def test_build_with_options_that_cannot_be_is_refused(cli, kernels, options, code):
    ended = cli("build", kernels, "--local", *options, "-o", "json")
    assert (ended.code, ended.error["code"]) == (2, code)


def test_build_of_two_functions_of_one_name_is_refused(cli, kernels):
    kernels.write_text(
        kernels.read_text().replace("* 2", "* 3")
        + (
            'z = te.compute((8,), lambda i: x[i] * 4, name="z")\n'
            'functions.append(te.function("double", [x, z]))\n'
        )
    )
    ended = cli("build", kernels, "--local", "-o", "json")
    assert (ended.code, ended.error["code"]) == (2, "DUPLICATE_SYMBOL")


def test_build_of_a_file_that_fails_names_the_line(cli, kernels):
    kernels.write_text("x = 1\nfunctions = [undefined]\n")
    ended = cli("build", kernels, "--local")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        f"error: {kernels}:2: NameError: name 'undefined' is not defined; correct the file\n"
    )


def test_build_of_what_the_target_cannot_compile_ends_with_3_and_a_report(cli, kernels, tmp_path):
    kernels.write_text(
        kernels.read_text()
        + 'f = te.placeholder((8,), "float64", name="f")\n'
        + 'g = te.compute((8,), lambda i: te.exp(f[i]), name="g")\n'
        + 'functions.append(te.function("exponential", [f, g]))\n'
    )
    ended = cli("build", kernels, "--local", "--target", "ea", "--keep-going", "-o", "json")
    assert (ended.code, ended.error["code"]) == (3, "BUILD_FAILED")
    key = f"{Target.parse('ea')}/exponential"
    assert ended.error["details"] == {key: "UNSUPPORTED_FUNCTION"}
    assert "exponential" in ended.error["message"]
    assert not (tmp_path / "kernels.farm").exists()
